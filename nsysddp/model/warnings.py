"""What reading or an analysis had to leave out or infer: one warning, and every code there is."""

from __future__ import annotations

from dataclasses import dataclass

WARNING_CODES: dict[str, str] = {
    "clock_corrected": "clocks of reports that were corrected by more than 1 ms against their session starts",
    "clock_residual": "clocks of reports agree less well than the tolerance; wait and transfer between them are null",
    "clock_unknown": "reports of which nothing tells how their times lie to those of the first one",
    "events_without_launch": "GPU events without a launch row, placed in a step by their start",
    "calls_without_thread": "API calls that name no thread, in a report of several processes, left out",
    "impossible_call_times": "API calls that end before they start, left out",
    "impossible_range_times": "NVTX ranges that end before they start, left out",
    "impossible_times": "GPU events that end before they start or lie beyond any real time, left out",
    "missing_phases": "no range is named like forward, backward or optimizer; what is asked about them is null",
    "newer_schema": "the export's major schema is newer than any this version was tried on",
    "no_steps": "there are no step ranges, or no launches; the whole capture is one window",
    "observer_effect": "variables of the captured environment that change what is measured; no value is shown",
    "payloads_skipped": "NVTX payloads whose schema is missing, ambiguous or malformed, or with numbers that cannot be",
    "cut_short": "ranks that end long before the others; collectives are compared on the part that all share",
    "report_missing": "reports that could not be read; the answer is about the others",
    "rank_without_window": "ranks that launched nothing inside a step (asked for): no figure of steps holds them",
    "rank_beyond_world_size": "ranks whose numbers are not below the size of the job that they name",
    "process_without_gpu_events": "processes that launched work of which the report holds no GPU event",
    "rank_sources_differ": "variables of the environment that name different ranks; torchrun's counts first",
    "ranges_without_thread": "NVTX ranges that name no thread, in a report of several processes, left out",
    "renamed_table": "a versioned table name was read as its plain one",
    "sequence_offset": "the capture began at another collective on a rank; matched after shifting",
    "shared_gpu": "ranks that ran on one physical GPU; the lengths of their kernels include each other's time",
    "shifted_times": "the export was made with normalised or shifted times",
    "steps_without_gpu_events": "step ranges in which a rank launched nothing have no window",
    "suspected_collectives": "unclassified kernels that are named like collectives",
    "truncated_step": "a last step that was still running when the profiler stopped, left out",
    "unclassified_kernels": "kernel names that no rule knows, counted as compute",
    "unnamed_kernels": "kernels whose names the export does not hold, counted as compute",
    "unmatched_collectives": "communication kernels without a counterpart on other ranks, with the reasons",
    "world_sizes_differ": "ranks name jobs of different sizes",
    "whole_graph_spans": "windows that hold CUDA graphs traced as one span; overlap is null there",
}
"""Every warning code of `nsysddp analyze`; the reference is made from it."""


OF_THE_WHOLE = ("report_missing", "process_without_gpu_events", "shared_gpu")
"""Warnings without which no answer about the run can be read; every answer repeats them."""


@dataclass(frozen=True)
class Warning:
    """Something missing, unmatched, inferred or left out, with how often it happened."""

    code: str
    count: int
    message: str
