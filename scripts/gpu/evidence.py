"""Builds, checks and times our CUDA kernels on a GPU, without TensorFlow; see scripts/gpu_evidence.sh."""

from __future__ import annotations

import sys
from typing import Any

from scripts.gpu import kernel_stages
from scripts.gpu.cuda_library import DIRECTIONS
from scripts.gpu.driver import Evidence, Row, table, wrong_rows
from scripts.gpu.kernel_stages import AGAINST, BARS, PRECISION, geometric_means, medians_of_calls
from scripts.gpu.stages import Stage

_SOURCES = ("overlap_train/conv/native", "scripts/gpu/cuda_library.py", "scripts/gpu/kernel_stages.py")
_CHECKED = "Results against double precision, also under compute-sanitizer"
_CONTESTANTS = ("ours_fp32", "ours_tf32", "cudnn_fp32", "cudnn_tf32")


def _build(rows: list[Row]) -> str:
    return table(("", "kernels", "that spill"), [(r["key"], r["kernels"], r["spilling"]) for r in rows])


def _check(rows: list[Row]) -> str:
    return table(
        ("check", "found nothing", "last words"),
        [
            (row["key"], "yes" if row["clean"] else "**no**", " / ".join(row["last_words"][-2:]))
            for row in rows
        ],
    )


def _timing(rows: list[Row]) -> str:
    precisions = [row for row in rows if row["key"] == PRECISION]
    wrong, rows = wrong_rows(rows), medians_of_calls(rows)
    means = geometric_means(rows)
    compared = [
        (network, direction, *[by_name.get(name, "") for name in AGAINST])
        for network, directions in means.items()
        for direction, by_name in directions.items()
        if by_name
    ]
    ratios = table(("network", "direction", *[f"{name} / {AGAINST[name]}" for name in AGAINST]), compared)
    layers = [
        (
            row["network"],
            row["layer"],
            row["direction"],
            row["gflop"],
            *[row["milliseconds"].get(n, "") for n in _CONTESTANTS],
        )
        for row in rows
    ]
    medians = table(("network", "layer", "direction", "GFLOP", *[f"{n}, ms" for n in _CONTESTANTS]), layers)
    bars = _bars(means, emulated=any(row.get("emulated") for row in rows))
    return (
        f"Times as fast as cuDNN (geometric means over layers):\n\n{ratios}\n\n{bars}\n\n"
        f"Medians of {max((row['calls'] for row in rows), default=0)} calls:\n\n{medians}"
        f"{''.join(map(_precision, precisions[:1]))}{wrong}"
    )


def _precision(row: Row) -> str:
    errors = table(("cuDNN", "relative error"), list(row["errors"].items()))
    wrong = f"\n\n**Wrong: {'; '.join(row['wrong'])}.**" if row["wrong"] else ""
    return f"\n\nWhether cuDNN computed in the precision that is named:\n\n{errors}{wrong}"


def _bars(means: dict[str, Any], *, emulated: bool) -> str:
    unet = means.get("unet", {})
    lines = []
    for name, bar in BARS.items():
        reached = [unet[d][name] for d in DIRECTIONS if name in unet.get(d, {})]
        verdict = "not measured" if not reached else "met" if min(reached) >= bar else "missed"
        if emulated:
            verdict = "none: emulated"
        least = f"{min(reached):.2f}" if reached else "-"
        lines.append((name, f"{bar} of {AGAINST[name]}", least, verdict))
    return table(("bar over U-Net's layers", "aim", "least of the directions", "verdict"), lines)


EVIDENCE = Evidence(
    "scripts.gpu.evidence",
    "scripts/gpu_evidence.sh",
    "The CUDA kernels",
    "",
    (
        Stage("build", kernel_stages.build, 120, _SOURCES, 28, "What the kernels compile to", _build),
        Stage("check", kernel_stages.check, 200, _SOURCES, 58, _CHECKED, _check),
        Stage("timing", kernel_stages.timing, 200, _SOURCES, 56, "Beside cuDNN", _timing),
        *(Stage(name, kernel_stages.timing, 200, _SOURCES, 56) for name in ("timing-2", "timing-3")),
    ),
)

if __name__ == "__main__":
    sys.exit(EVIDENCE.main(__doc__))
