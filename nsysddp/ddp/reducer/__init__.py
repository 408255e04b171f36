"""What will DistributedDataParallel's Reducer do: which buckets, launched when, held up by whom?

A model of ``torch/csrc/distributed/c10d/reducer.cpp`` and ``torch/nn/parallel/distributed.py`` (torch 2.11 to
2.14) in the standard library alone, held equal to real torch by ``tests/test_reducer*.py``. It answers in
three steps, and ``Reducer`` strings them together over the iterations of a training run:

* ``initial_layout`` / ``rebuilt_layout``: parameters (and the order their gradients got ready in) -> buckets;
* ``schedule``: buckets, the time each gradient got ready and the time a transfer takes -> start and end of
  every collective, and for each bucket that had to wait the earlier bucket and parameter that it waited for.

Parameters are named by their index in registration order, as in torch. Times are integer nanoseconds on
whatever one clock the caller has (host times of hooks, or GPU times of the kernels that produce the
gradients).

Not modelled: the Python reducer of compiled autograd, DDP's own ``mixed_precision`` (its buckets are sent in
another dtype than they are sized in), ``skip_all_reduce_unused_params``, uneven inputs (``Join``), several
forward passes before one backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nsysddp.ddp.reducer.layout import (
    DEFAULT_BUCKET_CAP_BYTES,
    DEFAULT_FIRST_BUCKET_CAP_BYTES,
    Assignment,
    Bucket,
    Layout,
    Parameter,
    Settings,
    assign_buckets,
    initial_layout,
    rebuilt_layout,
)
from nsysddp.ddp.reducer.scheduling import (
    Block,
    Collective,
    GraphChanged,
    Reduction,
    Schedule,
    run_marks,
    schedule,
)
from nsysddp.model.errors import UsageError

__all__ = [
    "DEFAULT_BUCKET_CAP_BYTES",
    "DEFAULT_FIRST_BUCKET_CAP_BYTES",
    "Assignment",
    "Block",
    "Bucket",
    "Collective",
    "GraphChanged",
    "Layout",
    "Parameter",
    "Reducer",
    "Reduction",
    "Schedule",
    "Settings",
    "UnfinishedReduction",
    "assign_buckets",
    "initial_layout",
    "rebuilt_layout",
    "schedule",
]


class UnfinishedReduction(UsageError):
    """The forward pass after a backward pass in which some bucket never got all its gradients."""


class Reducer:
    """What does DDP do over consecutive iterations (rank 0, which decides the rebuilt layout)?

    Attributes:
        layout: the buckets in use; replaced once, if the settings let DDP rebuild them.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: Settings | None = None) -> None:
        self.layout = initial_layout(parameters, settings)
        self._synchronised = 0
        self._ready_order: list[int] = []  # what the next forward pass rebuilds from
        self._static_unused: list[int] = []
        self._error: str | None = None

    def iterate(
        self, ready_ns: Mapping[int, int], transfer_ns: Callable[[int], int], *, synchronise: bool = True
    ) -> Schedule | None:
        """Run one forward and backward pass.

        Args:
            ready_ns: as for ``schedule``.
            transfer_ns: as for ``schedule``.
            synchronise: False inside ``no_sync()``: gradients accumulate, no bucket is launched, nothing is
                learnt.

        Returns:
            The schedule; None without synchronisation.

        Raises:
            UnfinishedReduction: the backward pass before left buckets incomplete.
            GraphChanged: as ``schedule``.
            UsageError: ``no_sync()`` in the first iteration of a static graph, which DDP does not survive.
        """
        settings, parameters = self.layout.settings, self.layout.parameters
        if self._error:
            raise UnfinishedReduction(self._error)
        if self._ready_order:  # also a forward pass inside no_sync() rebuilds
            self.layout = rebuilt_layout(parameters, self._ready_order, settings)
            self._ready_order = []
        if not synchronise:
            if settings.static_graph and self._synchronised == 0:
                raise UsageError(
                    "DDP fails an internal assertion when static_graph=True and training starts in no_sync()",
                    do="synchronise the first iteration",
                )
            return None
        self._synchronised += 1

        if settings.static_graph and self._synchronised == 1:
            # Hooks only count here: everything is launched from a callback at the end of backward (and a
            # communication hook sees bucket index 0 for every bucket, since nothing advances next_bucket_).
            self._static_unused = [index for index in range(len(parameters)) if index not in ready_ns]
            end_ns = max(ready_ns.values(), default=0)
            marks = [(index, end_ns) for index in range(len(parameters))]
            return run_marks(self.layout, marks, transfer_ns, used_map="first")

        unused = self._static_unused if settings.static_graph else None
        done = schedule(self.layout, ready_ns, transfer_ns, unused=unused)
        self._error = done.next_forward_error
        if settings.rebuilds and not self.layout.rebuilt:
            self._ready_order = sorted(ready_ns, key=lambda index: ready_ns[index])
        return done
