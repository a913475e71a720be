"""What `gpu_evidence.sh` shows of each stage: tables, the bars, and plots."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scripts.gpu.cuda_library import DIRECTIONS
from scripts.gpu.page import Row, Section, table
from scripts.gpu.record import Record
from scripts.gpu.timing_stages import AGAINST, BARS, PRECISION, geometric_means

__all__ = ["SECTIONS", "plot_all"]

_CONTESTANTS = ("ours_fp32", "ours_tf32", "cudnn_fp32", "cudnn_tf32")


def _build(rows: list[Row]) -> str:
    numbers = ("registers", "static_shared_bytes", "spilled_bytes")
    return table(
        ("kernel", *[n.replace("_", " ") for n in numbers]),
        [(r["key"], *[r[n] for n in numbers]) for r in rows],
    )


def _check(rows: list[Row]) -> str:
    largest: dict[str, float] = {}
    for row in rows:
        for what, error in row["errors"].items():
            largest[what] = max(largest.get(what, 0.0), error)
    wrong = [f"- {row['key']}: {', '.join(row['wrong'])}" for row in rows if row["wrong"]]
    head = "No result is wrong." if not wrong else "**Wrong results:**\n\n" + "\n".join(wrong)
    text = f"{head} {len(rows)} shapes, each by every kernel that takes it, against double precision:"
    return f"{text}\n\n{table(('kernel', 'largest relative error'), sorted(largest.items()))}"


def _sanitize(rows: list[Row]) -> str:
    return table(
        ("tool", "found nothing", "last words"),
        [
            (row["key"], "yes" if row["clean"] else "**no**", " / ".join(row["last_words"][-2:]))
            for row in rows
        ],
    )


def _timing(rows: list[Row]) -> str:
    precisions = [row for row in rows if row["key"] == PRECISION]
    rows = [row for row in rows if "network" in row]
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
            *[_median(row, n) for n in _CONTESTANTS],
        )
        for row in rows
    ]
    medians = table(("network", "layer", "direction", "GFLOP", *[f"{n}, ms" for n in _CONTESTANTS]), layers)
    bars = _bars(means, emulated=any(row.get("emulated") for row in rows))
    return (
        f"Times as fast as cuDNN (geometric means over layers):\n\n{ratios}\n\n{bars}\n\n"
        f"Medians of the rounds:\n\n{medians}{''.join(map(_precision, precisions))}"
    )


def _precision(row: Row) -> str:
    errors = table(("cuDNN", "relative error"), list(row["errors"].items()))
    wrong = f"\n\n**Wrong: {'; '.join(row['wrong'])}.**" if row["wrong"] else ""
    return f"\n\nWhether cuDNN computed in the precision that is named:\n\n{errors}{wrong}"


def _median(row: Row, name: str) -> float | str:
    quartiles = row["milliseconds_quartiles"].get(name)
    return quartiles[1] if quartiles else ""


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


def _streams(rows: list[Row]) -> str:
    names = list(rows[0]["milliseconds"])
    return table(
        ("layer", *[f"{name}, ms" for name in names]),
        [(row["layer"], *[row["milliseconds"][name] for name in names]) for row in rows],
    )


def _mapped(rows: list[Row]) -> str:
    sizes = [row for row in rows if "us" in row]
    ways = ("pageable_copy", "pinned_copy", "mapped")
    parts = [f"Wrong: {'; '.join(row['wrong'])}." for row in rows if row.get("wrong")]
    parts.append(
        table(
            ("kernel", "KiB", *[f"{way}, µs" for way in ways]),
            [(row["kernel"], row["bytes"] >> 10, *[row["us"][way] for way in ways]) for row in sizes],
        )
    )
    parts += [_inference(row) for row in rows if row["key"] == "inference"]
    return "\n\n".join(parts)


def _inference(row: Row) -> str:
    energy = row["energy"]
    lines = []
    for way, ms in row["milliseconds"].items():
        by_source = energy.get("net_mwh", {}).get(way, {})
        lines.append((way, ms, "; ".join(f"{s}: {mwh:.3g}" for s, mwh in by_source.items()) or "unavailable"))
    why = f"\n\nEnergy: {energy['unavailable']}." if "unavailable" in energy else ""
    head = (f"{row['network']}, one image", "ms", f"mWh for {row['runs']} runs, beyond idle")
    return table(head, lines) + why


def _load(rows: list[Row]) -> str:
    return table(
        ("network", "duty", "achieved", "median, ms", "90th percentile, ms"),
        [(row["network"], *[row[n] for n in ("duty", "achieved", "median_ms", "p90_ms")]) for row in rows],
    )


SECTIONS = (
    Section("build", "What the kernels compile to", _build),
    Section("check", "Results against double precision", _check),
    Section("sanitize", "compute-sanitizer", _sanitize),
    Section("timing", "Beside cuDNN", _timing),
    Section("streams", "A batch over several streams (P2, Figure 3)", _streams),
    Section("mapped", "Mapped memory beside a pinned copy (P3)", _mapped),
    Section("load", "An inference beside a load (P4)", _load),
)


def plot_all(record: Callable[[str], Record], directory: Path, *, emulated: bool) -> list[Path]:
    """Draw what there are rows for; nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return []
    import matplotlib

    matplotlib.use("Agg")
    drawn = []
    for stage, draw in (("timing", _plot_timing), ("streams", _plot_streams), ("mapped", _plot_mapped)):
        rows = record(stage).rows
        if rows:
            path = directory / f"{stage}.png"
            draw(rows, path, " (emulated)" if emulated else "")
            drawn.append(path)
    return drawn


def _axes(title: str, x: str, y: str) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 4.5), layout="constrained")
    axis.set(title=title, xlabel=x, ylabel=y)
    return figure, axis


def _save(figure: Any, axis: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False)
    figure.savefig(path)
    plt.close(figure)


def _plot_timing(rows: Sequence[Row], path: Path, mark: str) -> None:
    rows = [row for row in rows if "network" in row]
    figure, axis = _axes(f"Times as fast as cuDNN{mark}", "layer and direction, network by network", "ratio")
    for name in AGAINST:
        points = [(i, row["ratios"][name]) for i, row in enumerate(rows) if name in row["ratios"]]
        if points:
            axis.plot(*zip(*points, strict=True), ".", label=name.replace("_", " "))
    axis.axhline(1.0, color="black", linewidth=0.8)
    axis.set_yscale("log")
    _save(figure, axis, path)


def _plot_streams(rows: Sequence[Row], path: Path, mark: str) -> None:
    figure, axis = _axes(f"A batch over streams{mark}", "", "times as fast as one launch")
    for row in rows:
        axis.plot(list(row["ratios"]), list(row["ratios"].values()), "o-", label=row["layer"])
    _save(figure, axis, path)


def _plot_mapped(rows: Sequence[Row], path: Path, mark: str) -> None:
    figure, axis = _axes(f"Mapped memory beside copies{mark}", "KiB", "µs")
    for kernel in dict.fromkeys(row["kernel"] for row in rows if "us" in row):
        for way in ("pinned_copy", "mapped"):
            points = [(r["bytes"] / 1024, r["us"][way]) for r in rows if r.get("kernel") == kernel]
            axis.plot(*zip(*points, strict=True), "o-", label=f"{kernel}, {way.replace('_', ' ')}")
    axis.set_xscale("log")
    axis.set_yscale("log")
    _save(figure, axis, path)
