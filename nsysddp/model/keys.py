"""By which columns is a row of a table known, whatever its position? Part of the contract of documents."""

from __future__ import annotations

_WINDOW = ("rank", "step_index")
_PATH = ("step_index", "path_rank")

KEYS: dict[str, tuple[str, ...]] = {
    "rank": ("rank",),
    "overlap": _WINDOW,
    "phase": ("rank", "step", "phase", "host_start_ns"),
    "collective": ("rank", "stream", "start_ns", "kernel", "kind", "communicator", "sequence"),
    "kernel_class": ("rank", "name"),
    "memory": ("rank", "step", "operation"),
    "straggler": ("rank", "step"),
    "outside_steps": ("rank", "class"),
    "bucket": (*_WINDOW, "role", "bucket", "micro_step", "started_ns"),
    "communicator": ("group",),
    "communicator_role": ("role", "groups"),
    "communicator_rank": ("group", "role", "rank"),
    "pair": ("sender", "receiver"),
    "exchange": ("group", "rank"),
    "nccl_says": ("group", "kind", "kernel", "algorithm", "protocol", "channels"),
    "contention": (),  # two places of one kernel can look alike
    "contention_step": _WINDOW,
    "contention_metric": ("rank", "metric", "situation"),
    "critical_path": (*_PATH, "start_ns", "end_ns"),
    "critical_path_step": _PATH,
    "critical_path_kind": (*_PATH, "kind"),
    "critical_path_cause": (*_PATH, "kind", "rank", "phase", "name", "waits_for"),
    "critical_path_communication": (*_PATH, "rank"),
    "critical_path_evidence": ("name",),
    "diagnosis": ("cause",),
    "diagnosis_step": ("step_index", "cause"),
    "diagnosis_evidence": ("cause", "kind", "rank", "phase", "name", "host_phase"),
    "diagnosis_unjudged": ("cause", "reason"),
    "idle": (*_WINDOW, "start_ns", "end_ns"),
    "idle_step": (*_WINDOW, "cause"),
    "launch_queue": ("rank", "time_ns"),
    "launch_queue_step": _WINDOW,
    "slack": ("collective_id",),
    "late": ("what", "ranks", "kind", "since_index"),
    "lateness": ("rank", "step_index"),
    "link_counter": ("host", "rank", "device", "counter", "step_index"),
    "pipeline_stage": ("rank", "step_index"),
    "expert_wait": ("group", "rank"),
    "slack_role": ("role",),
    "whatif": ("scenario",),
    "whatif_replay": ("step_index",),
    "whatif_link": ("kind", "group_size"),
}
"""Table to the columns of its key; none where rows have none. Null is a value of a key like any other."""
