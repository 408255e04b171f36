"""What does a range cost a training step that is not profiled? ``python bench/annotate.py``: about a microsecond."""

from __future__ import annotations

import timeit

from nsysddp import annotate


def main() -> None:
    def annotated() -> None:
        with annotate.phase("forward"):
            pass

    def bare() -> None:
        pass

    ours, empty = (min(timeit.repeat(one, number=100_000, repeat=7)) / 100_000 for one in (annotated, bare))
    print(f"{(ours - empty) * 1e6:.2f} us a range")


if __name__ == "__main__":
    main()
