"""What did nsys itself say about a capture, as far as that can be shown to anybody?

A message is free text: names of hosts and users, environment, command lines and paths occur in it, in any spelling.
So it is not searched for secrets. What has the form of a message that nsys is known to write is kept, with its numbers;
of any other message only time and severity are.
"""

from __future__ import annotations

import re

WITHHELD = "<message withheld>"

_HIDDEN = "hidden"
_FORMS = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"Process was launched by the profiler, see (?P<{_HIDDEN}>.+) and stderr\.log for program output",
        rf"Loaded CUPTI library: (?P<{_HIDDEN}>.+)",
        r"(Common|CUDA|NVTX|OpenGL|OpenACC|OpenMP|MPI|OS runtime libraries) injection (library )?initialized "
        r"successfully\.",
        r"Buffers holding CUDA trace data will be flushed on CudaProfilerStop\(\) call\."
        r"( See --flush-on-cudaprofilerstop to control this behavior\.)?",
        r"Enabling trace for device graph launch",
        r"Profiling has (started|stopped)\.",
        r"Profiling (started|stopped) due to cudaProfiler(Start|Stop) API invoked in the application\.",
        r"Not all (NVTX|CUDA|OpenGL|OS runtime libraries) events might have been collected\.",
        r"No (NVTX|CUDA|OpenGL) events collected\. Does the process use (NVTX|CUDA|OpenGL)\?",
        r"Number of (NVTX events|CUDA events|OS runtime libraries events|OpenGL events|GPU Metrics events|IP samples) "
        r"collected:\s*[\d,]+\.",
        r"Number of CUPTI events produced:\s*\d+, CUPTI buffers: \d+( of \d+)?\.( Some CUPTI events might be missing\. "
        r"To make sure all the events are collected, let the application run until it quits, and make sure "
        r'cudaDeviceReset\(\) is called before exit\. Try using the "Flush data periodically" checkbox in CUDA trace '
        r"options\.)?",
        r"Number of incomplete CUPTI events dropped: \d+\. Incomplete events appear when GPU timestamp information "
        r"have not been retrieved at the time the profiling session was stopped\.",
        r"CUDA profiling might have not been started correctly\.",
        r"Timeout while waiting for injected process to stop recording\. Starting reading storage files regardlessly\.",
        r"The cudaProfiler(Start|Stop) API was ignored \d+ times (due to configuration settings|because "
        r"cudaProfiler(Start|Stop) API was not called yet); Note that, when requested, only the first pair of "
        r"cudaProfilerStart/Stop APIs, after the collection is started, will be effective\.",
        r"Installed CUDA driver version \([\d.]+\) is not supported by this build of Nsight Systems\. CUDA trace will "
        r"be collected using libraries for driver version [\d.]+",
        r"CUDA device \d+: Unified Memory cannot be traced on devices that don't support peer-to-peer transfers\.\s?"
        r"Please verify that SLI/NVLink is functioning properly\.",
        r"CUDA hardware tracing is not supported on this system\. A legacy \(software instrumented\) trace was "
        r"collected instead\.",
        r"Dwarf backtraces collected\.|\d+ CPU IP samples collected for every CPU IP backtrace collected\.",
        r"(Hardware e|E)vent '(instructions|CPU Clock \(sw\)|CPU Cycles)', with sampling period \d+, used to trigger "
        r"(process-tree CPU IP )?sample collection\.",
        r"Unable to collect CPU kernel IP( samples and backtraces|/backtrace samples)\. perf event paranoid level is "
        r"-?\d+\.\s+Change the paranoid level to -?\d+ to enable (CPU )?kernel sample collection\.\s+Try\s+sudo sh -c "
        r"'echo -?\d+ >/proc/sys/kernel/perf_event_paranoid'\s+to change the paranoid level to -?\d+\.",
        r"(Number of Debuginfod queries|Number of used Debuginfod cached files|Total time spent on all Debuginfod "
        r"queries): \d+( sec)?( \(successful queries: \d+( sec)?(, timed out queries: \d+)?\))?\.",
    )
)
"""Forms of real messages; what is hidden in one is a path."""


def public(message: str) -> str:
    """The message if it has a known form, with paths as ``<path>``; else that it is withheld."""
    for form in _FORMS:
        if found := form.fullmatch(message):
            if _HIDDEN not in form.groupindex:
                return message
            start, end = found.span(_HIDDEN)
            return f"{message[:start]}<path>{message[end:]}"
    return WITHHELD
