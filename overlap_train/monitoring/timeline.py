"""Draws what the threads of a run did when, with the load of CPU and GPUs below, and writes both as a trace.

matplotlib is imported on first use and used without pyplot, so nothing of the user's figures is touched. The
trace is in the Trace Event format (Google, 2016), which Perfetto and chrome://tracing open: complete events
(X), counters (C) and metadata (M).
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlap_train._support.arguments import require_items, require_text, short_repr, text_of
from overlap_train._support.files import Replacing, require_path
from overlap_train._support.imports import import_extra
from overlap_train._support.printing import printable
from overlap_train.monitoring.recorder import overlap_s, require_spans, union_s
from overlap_train.records import TIMELINE, Sample, Span

# Okabe and Ito, "Color Universal Design" (2008): told apart with any common colour vision.
_COLOURS = {
    "train": "#0072B2",
    "validate": "#E69F00",
    "snapshot": "#000000",
    "deliver": "#009E73",
    "wait": "#C8C8C8",
    "rollback": "#D55E00",
    "checkpoint": "#CC79A7",
    "trace": "#F0E442",
}
_OTHER_COLOURS = ("#56B4E9", "#8C6BB1", "#7F5F3F", "#7F7F7F", "#A6D854")
_NUMBERED = ("train", "validate")  # the spans whose epochs are shown
_DPI = 110
_WIDTH_IN = 14.0
_LEGEND = 180  # characters of the legend that the width holds in a row
_ROW_PIXELS = 1300  # of the drawing area, within some percent: names of threads differ in length
_NARROWEST_PIXELS = 1.5  # shorter bars are drawn this wide, or snapshots would be invisible
_DIGIT_PIXELS = 7


@dataclass(frozen=True)
class _Scale:
    """Turns seconds of the clock into the unit of the time axis."""

    origin_s: float
    length_s: float

    @property
    def unit(self) -> tuple[float, str]:
        return (
            (1.0, "s") if self.length_s < 600 else (60.0, "min") if self.length_s < 36_000 else (3600.0, "h")
        )

    @property
    def pixel_s(self) -> float:
        return self.length_s / _ROW_PIXELS

    def x(self, time_s: float) -> float:
        return (time_s - self.origin_s) / self.unit[0]


def save_timeline(
    path: str | os.PathLike[str], spans: Iterable[Span], samples: Iterable[Sample] = (), title: str = ""
) -> Path:
    """Draw one row for each thread, the training thread first, and the load below on the same time axis.

    Numbers are epochs, counted from 1; their shades alternate. Spans shorter than a pixel are drawn wide
    enough to be seen.

    Args:
        path: the file; the suffix sets the format (.png, .svg, .pdf). Its folders are made, and an older
            file is replaced atomically.
        spans: what the threads did, such as `trainer.recorder.spans()`, in any order.
        samples: the load, such as `sampler.samples()`, oldest first.
        title: text above the picture.

    Returns:
        The path.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the file cannot be written.
        TypeError: an argument has the wrong type.
        ValueError: matplotlib does not know the suffix.
    """
    import_extra("matplotlib", purpose="save_timeline")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    spans, samples = require_spans("spans", spans), _samples(samples)
    title = require_text("title", title, empty=True)
    path = require_path("path", path)
    _check_suffix(path)
    scale = _scale(spans, samples)
    rows = merged_bars(spans, pixel_s=scale.pixel_s)
    colours = _colours(spans)
    row_in = 0.34 if len(rows) <= 16 else 0.2
    heights = [max(0.6, row_in * len(rows)), *([1.1] if samples else []), *([1.1] if _gpus(samples) else [])]
    figure = Figure(figsize=(_WIDTH_IN, sum(heights) + 1.3), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _draw_rows(axes[0], rows, colours, scale)
    if samples:
        _draw_cpu(axes[1], samples, scale)
    if _gpus(samples):
        _draw_gpus(axes[2], samples, scale)
    axes[-1].set_xlim(0, scale.x(scale.origin_s + 1.003 * scale.length_s))
    axes[-1].set_xlabel(f"time ({scale.unit[1]})", fontsize=9)
    _head(figure, axes[0], spans, colours, title)
    marked = path.suffix.lower() in (".png", ".svg", ".pdf")  # others take no metadata, or compress them
    with Replacing(path) as unfinished:
        figure.savefig(unfinished, metadata={"Creator": TIMELINE} if marked else None)
    return path


def _samples(samples: object) -> tuple[Sample, ...]:
    return require_items("samples", samples, Sample, expected="a collection of Sample")


def _check_suffix(path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    types = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in types:
        raise ValueError(f"path must end in one of .{', .'.join(sorted(types))}; got {short_repr(str(path))}")


def _scale(spans: Sequence[Span], samples: Sequence[Sample]) -> _Scale:
    starts = [span.start_s for span in spans] or [sample.time_s for sample in samples] or [0.0]
    ends = [span.end_s for span in spans] or [sample.time_s for sample in samples] or [0.0]
    length_s = max(ends) - min(starts)
    return _Scale(min(starts), length_s if length_s > 0 else 1.0)


def _colours(spans: Iterable[Span]) -> dict[str, str]:
    """Give each span name its colour: those of `_COLOURS` first, in their order, then the others by name."""
    names = {span.name for span in spans}
    others = sorted(names - _COLOURS.keys())
    standard = {name: colour for name, colour in _COLOURS.items() if name in names}
    return standard | {name: _OTHER_COLOURS[i % len(_OTHER_COLOURS)] for i, name in enumerate(others)}


def _draw_rows(
    axis: Any, rows: Mapping[str, Sequence[Bar]], colours: Mapping[str, str], scale: _Scale
) -> None:
    from matplotlib.collections import PolyCollection

    narrowest = _NARROWEST_PIXELS * scale.pixel_s / scale.unit[0]
    corners, fills = [], []
    for row, bars in enumerate(rows.values()):
        # Later bars are drawn over earlier ones: inner over outer, short over long.
        for bar in sorted(bars, key=lambda bar: (bar.depth, bar.start_s - bar.end_s)):
            left = scale.x(bar.start_s)
            right = max(scale.x(bar.end_s), left + narrowest)
            half = 0.4 * 0.72 ** min(bar.depth, 3)
            corners.append([(left, row - half), (right, row - half), (right, row + half), (left, row + half)])
            fills.append(_shade(colours[bar.name], bar))
        _write_epochs(axis, row, bars, scale)
    axis.add_collection(PolyCollection(corners, facecolors=fills, linewidths=0))
    axis.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), [_short(name) for name in rows], fontsize=9 if len(rows) <= 16 else 7)
    for label in axis.get_yticklabels():
        label.set_parse_math(False)
    axis.tick_params(axis="y", length=0)
    _dress(axis)
    if not rows:
        axis.text(0.5, 0.5, "no spans were recorded", transform=axis.transAxes, ha="center", va="center")


def _write_epochs(axis: Any, row: int, bars: Iterable[Bar], scale: _Scale) -> None:
    """Write the number of each epoch on its training and validation where it fits."""
    extents: dict[tuple[str, int], tuple[float, float]] = {}
    for bar in bars:
        if bar.epoch is not None and bar.name in _NUMBERED:
            start_s, end_s = extents.get((bar.name, bar.epoch), (bar.start_s, bar.end_s))
            extents[bar.name, bar.epoch] = (min(start_s, bar.start_s), max(end_s, bar.end_s))
    for (name, epoch), (start_s, end_s) in extents.items():
        if (end_s - start_s) / scale.pixel_s >= _DIGIT_PIXELS * len(str(epoch + 1)) + 2:
            axis.text(
                scale.x((start_s + end_s) / 2),
                row,
                str(epoch + 1),
                color="white" if name == "train" else "black",
                fontsize=8,
                ha="center",
                va="center_baseline",
                clip_on=True,
            )


def _draw_cpu(axis: Any, samples: Sequence[Sample], scale: _Scale) -> None:
    times = [scale.x(sample.time_s) for sample in samples]
    percents = [sample.cpu_percent for sample in samples]
    # A sample is about the time before it.
    axis.fill_between(times, percents, step="pre", color="#56B4E9", alpha=0.5, linewidth=0)
    axis.step(times, percents, where="pre", color="#0072B2", linewidth=0.8)
    axis.set_ylim(0, max(100.0, *percents) * 1.08)
    axis.set_ylabel("CPU %\n100 = a core", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    _dress(axis)


def _draw_gpus(axis: Any, samples: Sequence[Sample], scale: _Scale) -> None:
    colours = [*list(_COLOURS.values())[:4], *_OTHER_COLOURS]
    for gpu in range(_gpus(samples)):
        of_gpu = [sample for sample in samples if gpu < len(sample.gpu_percent)]
        axis.step(
            [scale.x(sample.time_s) for sample in of_gpu],
            [sample.gpu_percent[gpu] for sample in of_gpu],
            where="pre",
            linewidth=1,
            color=colours[gpu % len(colours)],
            label=f"GPU {gpu}",
        )
    axis.set_ylim(0, 108)
    axis.set_ylabel("GPU %", fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    if _gpus(samples) > 1:
        axis.legend(loc="upper left", fontsize=7, frameon=False, ncols=8)
    _dress(axis)


def _head(figure: Any, uppermost: Any, spans: Sequence[Span], colours: Mapping[str, str], title: str) -> None:
    """Write the heading, and the legend with the seconds of each kind of work."""
    from matplotlib.patches import Patch

    of_name = {name: [span for span in spans if span.name == name] for name in colours}
    if of_name:
        labels = {n: f"{_short(n)} {_seconds(union_s(of_name[n]))}" for n in of_name}
        longest = max(map(len, labels.values()))
        uppermost.legend(
            handles=[Patch(color=colours[n], label=label) for n, label in labels.items()],
            loc="lower left",
            bbox_to_anchor=(0, 1),
            borderaxespad=0.2,
            ncols=max(1, min(8, _LEGEND // (longest + 4))),  # four for the patch and the gap
            fontsize=9,
            frameon=False,
            handlelength=1,
        )
    validated_s = union_s(of_name.get("validate", ()))
    hidden_s = overlap_s(of_name.get("validate", ()), of_name.get("train", ()))
    hidden = [f"{hidden_s / validated_s:.0%} of the validation ran during training"] if validated_s else []
    heading = " · ".join([*filter(None, [printable(title, None)]), *hidden])
    figure.suptitle(heading, fontsize=11, x=0.008, ha="left").set_parse_math(False)


def _dress(axis: Any) -> None:
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.grid(axis="x", color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(axis="x", labelsize=8)


def _gpus(samples: Sequence[Sample]) -> int:
    return max((len(sample.gpu_percent) for sample in samples), default=0)


def _shade(colour: str, bar: Bar) -> tuple[float, ...]:
    """Lighten training and validation of every second epoch, so that neighbours are told apart."""
    from matplotlib.colors import to_rgb

    second = bar.name in _NUMBERED and bar.epoch is not None and bar.epoch % 2
    white = 0.28 if second else 0.0
    return tuple(part + (1 - part) * white for part in to_rgb(colour))


def _short(name: str, longest: int = 28) -> str:
    name = printable(name.removeprefix("overlap_train-"), None)
    return name if len(name) <= longest else name[: longest - 1] + "…"


def _seconds(seconds: float) -> str:
    factor, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * factor:.1f} {unit}"


@dataclass(slots=True)
class Bar:
    """One rectangle to draw: a span, or neighbours of one name and epoch that run together."""

    name: str
    epoch: int | None
    depth: int  # how many spans of the same thread it lies inside
    start_s: float
    end_s: float


def thread_order(spans: Iterable[Span]) -> list[str]:
    """Return the threads, those that train first, the others by name with worker-2 before worker-10."""
    trains: dict[str, bool] = {}
    for span in spans:
        trains[span.thread] = trains.get(span.thread, False) or span.name == "train"
    return sorted(trains, key=lambda thread: (not trains[thread], _natural(thread)))


def merged_bars(spans: Iterable[Span], *, pixel_s: float) -> dict[str, list[Bar]]:
    """Arrange each thread's spans into bars, in the order of `thread_order`.

    Neighbours of one name and epoch become one bar where the gap between them is narrower than a pixel:
    the picture is the same, and many short spans cost no more than the pixels that they cover.

    Returns:
        The bars of each thread, in order of start, outer ones before the inner.
    """
    spans = list(spans)
    by_thread: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_thread[span.thread].append(span)
    return {thread: _bars_of_thread(by_thread[thread], pixel_s) for thread in thread_order(spans)}


def _bars_of_thread(spans: Sequence[Span], pixel_s: float) -> list[Bar]:
    bars: list[Bar] = []
    open_ends: list[float] = []
    latest: dict[tuple[str, int | None, int], Bar] = {}
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        while open_ends and open_ends[-1] <= span.start_s:
            open_ends.pop()
        key = (span.name, span.epoch, len(open_ends))
        open_ends.append(span.end_s)
        bar = latest.get(key)
        if bar is not None and span.start_s - bar.end_s <= pixel_s:
            bar.end_s = max(bar.end_s, span.end_s)
        else:
            latest[key] = bar = Bar(span.name, span.epoch, key[2], span.start_s, span.end_s)
            bars.append(bar)
    return bars


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Make a sorting key in which numbers inside a name count as numbers."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name)]


_PROCESS = 1
_MIB = 1 << 20


def save_chrome_trace(
    path: str | os.PathLike[str], spans: Iterable[Span], samples: Iterable[Sample] = ()
) -> Path:
    """Write a trace for Perfetto or chrome://tracing; an older file at `path` is replaced atomically.

    Times are microseconds from the first span or sample on. Epochs count from 0, as in the records. Spans of
    one thread should be nested or follow each other, as those of `SpanRecorder.span` do; viewers draw no
    others.

    Args:
        path: the file; its folders are made.
        spans: what the threads did, in any order.
        samples: the load, oldest first.

    Returns:
        The path.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: `path` is not a possible path.
        OSError: the file cannot be written.
    """
    path = require_path("path", path)
    spans, samples = require_spans("spans", spans), _samples(samples)
    origin_s = min((*(span.start_s for span in spans), *(sample.time_s for sample in samples)), default=0.0)
    events = [*_span_events(spans, origin_s), *_counter_events(samples, origin_s)]
    with Replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as stream:
        trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"creator": TIMELINE}}
        json.dump(trace, stream, allow_nan=False)
    return path


def _span_events(spans: Sequence[Span], origin_s: float) -> Iterator[dict[str, Any]]:
    threads = {name: number for number, name in enumerate(thread_order(spans), start=1)}
    yield _metadata("process_name", _PROCESS, {"name": "overlap_train"})
    for name, number in threads.items():
        yield _metadata("thread_name", number, {"name": name})
        yield _metadata("thread_sort_index", number, {"sort_index": number})
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        place = {"epoch": span.epoch, "step": span.step}
        place = {key: value for key, value in place.items() if value is not None}
        yield {
            "ph": "X",
            "name": span.name,
            "cat": span.name,
            "pid": _PROCESS,
            "tid": threads[span.thread],
            "ts": _microseconds(span.start_s - origin_s),
            "dur": _microseconds(span.duration_s),
            "args": _plain({**place, **(span.details or {})}),
        }


def _counter_events(samples: Iterable[Sample], origin_s: float) -> Iterator[dict[str, Any]]:
    for sample in samples:
        values = {"CPU percent": sample.cpu_percent, "Resident memory MiB": sample.rss_bytes / _MIB}
        for gpu, percent in enumerate(sample.gpu_percent):
            values[f"GPU {gpu} percent"] = percent
        for gpu, size_bytes in enumerate(sample.gpu_memory_bytes):
            values[f"GPU {gpu} memory MiB"] = size_bytes / _MIB
        for name, value in values.items():
            if math.isfinite(value):
                time = _microseconds(sample.time_s - origin_s)
                yield {"ph": "C", "name": name, "pid": _PROCESS, "ts": time, "args": {"value": value}}


def _metadata(name: str, thread: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": _PROCESS, "tid": thread, "args": args}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _plain(details: Mapping[str, Any]) -> dict[str, Any]:
    """Turn what JSON does not know into text, so that a detail never costs the trace."""
    return {
        text_of(key): value
        if value is None
        or isinstance(value, (str, bool, int))
        or (isinstance(value, float) and math.isfinite(value))
        else text_of(value)
        for key, value in details.items()
    }
