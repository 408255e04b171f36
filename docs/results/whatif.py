"""How good are the predictions of `nsysddp whatif` for other bucket caps? Predicted against measured, as whatif.md.

    python docs/results/whatif.py                  predicts, and writes whatif.md and the predictions in whatif.json
    python docs/results/whatif.py collect FOLDER   first condenses the records of the sweeps in FOLDER into whatif.json

``whatif.json`` holds the median step of every rank and repeat of the sweeps, which ran without the profiler. Each link
is predicted from one capture, made at a cap of 25 MiB; the measured step of that cap is given, as a user would.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORD = HERE / "whatif.json"
CAPTURES = {
    "nvlink": ROOT / "tests" / "fixtures" / "h200" / "gpt_cap25_nvlink.sqlite.gz",
    "nop2p": ROOT / "nsysddp" / "samples" / "gpt_slow_link.sqlite.gz",
}
TITLES = {"nvlink": "NVLink", "nop2p": "Without peer-to-peer (`NCCL_P2P_DISABLE=1`)"}
CAPS = (1, 4, 16, 25, 64)
CAPTURED = 25


def collect(folder: Path) -> None:
    """Medians of the sweeps: link, cap, repeat, rank -> ms, as CUDA events on the GPU saw each step."""
    measured: dict[str, dict[str, list[list[float]]]] = {}
    for link in CAPTURES:
        for cap in CAPS:
            repeats = []
            for path in sorted((folder / f"sweep_{link}").glob(f"cap{cap}_repeat*/summary.json")):
                ranks = json.loads(path.read_text())["ranks"]
                steps = [
                    one["median_ns"] / 1e6
                    for rank in ranks
                    for one in rank["figures"]
                    if one["name"] == "step" and one["clock"] == "cuda_event"
                ]
                repeats.append([round(step, 3) for step in steps])
            measured.setdefault(link, {})[str(cap)] = repeats
    RECORD.write_text(json.dumps({"measured_ms": measured}, indent=1) + "\n")


def mean(repeats: list[list[float]]) -> float:
    """Of the repeats, the slowest rank each: the step of the job."""
    return statistics.mean(max(ranks) for ranks in repeats)


def predict(link: str, measured: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Predictions of one link from its one capture."""
    from nsysddp import samples
    from nsysddp.join.load import load
    from nsysddp.questions import context_of
    from nsysddp.questions.whatif import Ask, whatif

    sizes = json.loads(samples.path(samples.GPT_PARAMETERS).read_text())
    trace = load(CAPTURES[link], host_calls=True, shapes=True)
    ask = Ask(
        caps_mib=CAPS,
        parameter_bytes=tuple(sizes),
        measured_step_ns=round(mean(measured[str(CAPTURED)]) * 1e6),
        standard=False,
    )
    result = whatif(context_of(trace), ask)
    rows = result["whatif"].filter(result["whatif"]["buckets"].is_not_null())
    return {
        "verdict": next(one.message for one in result.findings if one.code == "bucket_caps"),
        "replay": next(one.message for one in result.findings if one.code == "whatif_replay"),
        "warnings": [one.message for one in result.warnings if one.code.startswith("whatif")],
        "caps": {
            row["scenario"].removeprefix("cap_"): {
                "step_ms": round(row["step_ns"] / 1e6, 3),
                "error_ratio": round(row["error_ratio"], 4),
                "excess_ratio": round(row["excess_ratio"], 4),
                "buckets": row["buckets"],
            }
            for row in rows.iter_rows(named=True)
        },
    }


def table(measured: dict[str, list[list[float]]], predicted: dict[str, Any]) -> list[str]:
    """Predicted against measured, cap by cap."""
    lines = [
        "| cap, MiB | buckets | predicted | band | measured | repeats | predicted / measured |",
        "| ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for cap in map(str, CAPS):
        one = predicted["caps"][cap]
        was = mean(measured[cap])
        repeats = ", ".join(f"{max(ranks):.2f}" for ranks in measured[cap])
        given = " (given)" if cap == str(CAPTURED) else ""
        lines.append(
            f"| {cap} | {one['buckets']} | {one['step_ms']:.2f}{given} | ± {one['error_ratio']:.1%} | {was:.2f} | "
            f"{repeats} | {one['step_ms'] / was - 1:+.1%} |"
        )
    return lines


HEAD = """# Bucket caps: predicted and measured

Made by [whatif.py](whatif.py) from [whatif.json](whatif.json) and two captures. A GPT with 219 million parameters (12
layers, width 1024, bf16 autocast, float32 gradients: 877 MB a step) on the machine of the [other results](README.md);
`gradient_as_bucket_view=True`, no communication hook. Measured: 40 steps after warm-up without the profiler, two
interleaved repeats, the median of the slower rank, in ms. Predicted: from *one* profiled capture of three steps at a
cap of 25 MiB, with `--measured-step` the measured step of that cap and `--parameters` the sizes of the gradients:

    nsysddp whatif CAPTURE --bucket-cap 1,4,16,25,64 --parameters gpt_parameters.json --measured-step MS
"""

FOOT = """
## What this shows, and what it does not

* The largest error of a prediction is {worst:.1%} of the step (the target was 5 %).
* Without peer-to-peer the order 64 < 25 < 16 < 1 = 4 MiB is that of the measurement, as far as that has one: 1, 4 and
  16 MiB differ by less than their repeats.
* Over NVLink the answer is that nearly all caps cannot be told apart. The measured ones differ by up to 1.5 %: 25 MiB
  lies above the others by more than its repeats differ, and the prediction does not show that; 64 MiB is predicted to
  be longer by less than the capture leaves open, and is not.
* Every measured step lies in its band, and the bands are those of what is not known: the step of the captured cap is
  given, so the level cancels. **How far the errors of the model count (15 % of them, and twice the predicted change)
  was chosen with these measurements known**; simulated jobs, which had no part in that, are judged elsewhere.
* 1 and 4 MiB give the same buckets here, since the large parameters are larger than either cap.
* The captures hold no gradient message below 33 MB, so for the smaller buckets of 1, 4 and 16 MiB the link is
  extrapolated: the prediction is the middle between the fitted line and the chord to a barrier's 4 bytes. **This rule
  was chosen after a first comparison with these very measurements**, in which the line alone was 3 % too high at 1 MiB
  (the chord alone would be 2 % too low): these rows are a fit as much as a test. The rows of 25 and 64 MiB are not
  touched by it. A capture at a small cap does not need it.
* Over NVLink the profiled run is bound by the host and takes far longer than the run without the profiler, on one rank
  more than on the other. No scale of the host's time makes the replay give the measured step: kernels of the profiled
  run are slower, because NCCL's waiting kernels slow the other rank's computation down. Predictions there are of
  relative changes, and the band says how little the level is known.
* A capture with annotated buckets is another setting: the hook costs the host about 0.3 ms a bucket under the profiler.
  Predictions from such a capture are of runs with the hook: `gpt_ddp.sqlite.gz` of this very model over NVLink gives
  +17 % for 1 MiB, which nobody would see without the hook. Without `--parameters`, sizes are spread evenly, which
  overstates the number of small buckets (149 instead of 51 at 1 MiB); the band then reaches the captured layout.
* Two links and one model are few. Other models, more ranks and several nodes were not tried.
"""


def write(record: dict[str, Any]) -> str:
    """The page."""
    lines = [HEAD]
    worst = 0.0
    for link, predicted in record["predicted"].items():
        measured = record["measured_ms"][link]
        lines += [f"## {TITLES[link]}", "", *table(measured, predicted), "", f"> {predicted['verdict']}"]
        for text in [predicted["replay"], *predicted["warnings"]]:
            lines += [">", f"> {text[0].upper()}{text[1:].rstrip('.')}."]
        lines.append("")
        errors = [
            abs(one["step_ms"] / mean(measured[cap]) - 1)
            for cap, one in predicted["caps"].items()
            if cap != str(CAPTURED)
        ]
        worst = max(worst, *errors)
    return "\n".join(lines).rstrip("\n") + "\n" + FOOT.format(worst=worst)


def main(argv: list[str]) -> None:
    """Collect if asked to, predict, write."""
    if argv[:1] == ["collect"]:
        collect(Path(argv[1]))
    record = json.loads(RECORD.read_text())
    record["predicted"] = {link: predict(link, record["measured_ms"][link]) for link in CAPTURES}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    (HERE / "whatif.md").write_text(write(record))


if __name__ == "__main__":
    main(sys.argv[1:])
