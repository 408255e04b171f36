"""Where work is done: in this process, in several on this machine, or on a cluster; knows nothing of reports."""

from nsysddp.execute.place import HERE, Place

__all__ = ["HERE", "Place"]
