"""How long would the step be with other communication, ranks or buckets?

    predicted = recorded x replay(changed) / replay(unchanged)             mean over the steady steps but the first
    band      = from the least to the most of all that the capture leaves open (contention, link, shared links),
                each further by the error
    error     = max(1 %, standard deviation of the steps)                  what runs of one setting differ by (below
                                                                           3 steps: at least 5 %; 1 % where the step
                                                                           without the profiler was measured)
                + |replay(unchanged) / recorded - 1|                       the self-replay error
                + a tenth of the predicted change
                + a share of |replay(host scaled) / measured - 1|          with a step measured without the profiler
                + for other buckets: a share of |replay(captured buckets, fitted link) / recorded - 1|

The shares are 15 % and more: twice the predicted change. Predictions are relative to a step that is known, and what the
model misses of it counts as far as something changes.

Scenarios: no communication; communication k times faster; no straggler; no contention (``scenarios``, ``even``); the
optimizer in backward; other bucket caps or order (``layouts`` with ``rebucket``, ``wire``). What communication costs
the kernels beside it is given back where it is shorter (``slowing``). Profiling lengthens host time: with the step that
was measured without the profiler, the host's time is scaled so that the replay of the unchanged run reproduces it, and
predictions are of that run (``model``).

Between bucket caps, what all of them share cancels; what counts is the link, and that runs of one cap differ by 1 %.
Caps that differ less, for any link that the fit allows, cannot be told apart, and none of them is named the best.
"""

from nsysddp.questions.question import Option, Question
from nsysddp.questions.whatif.answer import GOOD_REPLAY, whatif
from nsysddp.questions.whatif.layouts import apart
from nsysddp.questions.whatif.model import Model
from nsysddp.questions.whatif.request import Ask, milliseconds, numbers, sizes
from nsysddp.questions.whatif.scenarios import without_communication
from nsysddp.questions.whatif.tables import TABLES, WHATIF, WHATIF_LINK, WHATIF_REPLAY

__all__ = [
    "GOOD_REPLAY",
    "QUESTION",
    "TABLES",
    "WHATIF",
    "WHATIF_LINK",
    "WHATIF_REPLAY",
    "Ask",
    "Model",
    "apart",
    "whatif",
    "without_communication",
]

QUESTION = Question(
    name="whatif",
    ask="How long would the step be with other communication, ranks or buckets?",
    more="From a replay of the recorded run. Each prediction has an error band; where bands of bucket caps overlap, "
    "none is named the best. The error of replaying the run unchanged is shown.",
    tables=TABLES,
    run=lambda context, options: whatif(context, Ask.of(options)),
    shown=WHATIF.name,
    reads=frozenset({"launches", "host_calls", "shapes"}),
    options=(
        Option("bucket_cap", "Bucket caps to predict, e.g. 1,4,16,25,64.", numbers, (), "MIB,..."),
        Option(
            "bucket_order",
            "Fill buckets as gradients get ready, or the other way round; repeatable.",
            str,
            (),
            choices=("ready", "reverse"),
            multiple=True,
        ),
        Option(
            "faster", "Factors by which communication is faster; below 1 slower.", numbers, (2.0,), "K,..."
        ),
        Option(
            "parameters",
            "JSON list of the parameters' sizes in bytes, in the order in which their gradients get ready.",
            sizes,
            None,
            "FILE",
        ),
        Option(
            "measured_step",
            "Mean step in ms of the same setting without the profiler: predict that run.",
            milliseconds,
            None,
            "MS",
        ),
    ),
    whole_capture=True,
    findings={
        "whatif_replay": "how well replaying the run unchanged gives its steps",
        "whatif": "the step under one change, and whether that is within the error",
        "bucket_caps": "the bucket cap of the shortest step, or which cannot be told apart",
    },
    warnings={
        "whatif_replay_error": "replaying the run unchanged misses its steps by more than a good replay",
        "whatif_measured_step": "no host time makes the replay give the step that was measured without the profiler",
        "whatif_one_size": "all gradient messages have about one size: the link's latency is unknown",
    },
    examples=("report.sqlite", "report.sqlite --bucket-cap 1,4,16,25,64"),
)
