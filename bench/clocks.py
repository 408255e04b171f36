"""How far off is the alignment of clocks? Drawn captures with clocks that are wrong by known amounts.

    python bench/clocks.py > docs/results/clocks.md

Each host's clock is off by its anchor and runs apart at its own rate. Every 20 ms all members of a communicator end a
collective; one end in a report lies some us after the last byte (half-normal, as protocols make it). The error is what
is left between two hosts that share a communicator after the correction, and between any host and the first one.
"""

from __future__ import annotations

import sys

import numpy as np

from nsysddp.join.clocks import align
from nsysddp.join.kernels import ALL_KINDS, Kernels

MS, US = 1_000_000, 1_000
STEP_NS = 20 * MS
CASES = [
    (hosts, seconds, ppm, anchor_ms, layout)
    for hosts in (2, 8, 64)
    for layout in (("all",) if hosts == 2 else ("all", "chain"))
    for seconds in (2, 10, 60)
    for ppm, anchor_ms in ((0, 7), (50, 7), (50, 3000))
]
NOISE_NS = 5 * US
HEAD = """# Clocks of many hosts, beside the truth

Drawn captures, seed 1; made by `python bench/clocks.py`. The clock of each host is wrong by up to the anchor's error
and runs apart by up to the rate given; a collective of 15 us every 20 ms, its ends 0 to some 5 us apart by protocol.
*Worst error*: over all hosts and all times of the capture, against the first host, after the correction.
`all`: one communicator of all hosts; `chain`: pairs of neighbours only, so that errors add up along the chain.

| hosts | communicators | capture, s | drift, ppm | anchor off, ms | apart before, ms | worst error, us | of rate, ppm |
|---|---|---|---|---|---|---|---|
"""


def trial(
    hosts: int, seconds: int, ppm: float, anchor_ms: float, layout: str, seed: int
) -> tuple[float, float, float]:
    """How far apart before (ms), worst error (us) and worst error of the rate (ppm)."""
    random = np.random.default_rng(seed)
    true_end = np.arange(1, seconds * 1_000 * MS // STEP_NS, dtype=np.int64) * STEP_NS
    rate = random.uniform(-ppm, ppm, hosts) * 1e-6
    offset = np.rint(random.uniform(-anchor_ms, anchor_ms, hosts) * MS).astype(np.int64)
    groups = [range(hosts)] if layout == "all" else [(host, host + 1) for host in range(hosts - 1)]
    clock, end, collective = [], [], []
    for number, members in enumerate(groups):
        for host in members:
            seen = (
                true_end
                + number * 300 * US
                + np.abs(random.normal(0, NOISE_NS, true_end.size)).astype(np.int64)
            )
            end.append(seen + np.rint(seen * rate[host]).astype(np.int64) + offset[host])
            clock.append(np.full(true_end.size, host))
            collective.append(np.arange(true_end.size) + number * true_end.size)
    ends = np.concatenate(end)
    clocks = np.concatenate(clock).astype(np.int64)
    kernels = Kernels.of(
        event=np.arange(ends.size),
        rank=clocks,
        clock=clocks,
        start=ends - 15 * US,
        end=ends,
        stream=np.zeros(ends.size, np.int64),
        kind=np.full(ends.size, ALL_KINDS.index("all_reduce")),
    )
    kernels.collective = np.concatenate(collective)
    found = align(kernels, dict.fromkeys(range(hosts), True))
    when = np.linspace(true_end[0], true_end[-1], 100).astype(np.int64)
    first = when + np.rint(when * rate[0]).astype(np.int64) + offset[0]
    before, worst, rates = 0, 0, 0.0
    for host in range(1, hosts):
        own = when + np.rint(when * rate[host]).astype(np.int64) + offset[host]
        line = found[host].line
        before = max(before, int(np.abs(own - first).max()))
        worst = max(worst, int(np.abs(own + line.at(own) - first).max()))
        rates = max(rates, abs((1 + line.rate) * (1 + rate[host]) - (1 + rate[0])))
    return before / MS, worst / US, rates * 1e6


def main() -> None:
    """Print the page."""
    sys.stdout.write(HEAD)
    for hosts, seconds, ppm, anchor_ms, layout in CASES:
        before, worst, rates = trial(hosts, seconds, ppm, anchor_ms, layout, seed=1)
        sys.stdout.write(
            f"| {hosts} | {layout} | {seconds} | {ppm} | {anchor_ms} | {before:,.1f} | {worst:.1f} | {rates:.2f} |\n"
        )


if __name__ == "__main__":
    main()
