"""The spans and samples of a run in the Trace Event format, which Perfetto and chrome://tracing open.

The format: "Trace Event Format", Google, 2016; complete events (X), counters (C) and metadata (M).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overlap_train._support.arguments import require_path, text_of
from overlap_train._support.files import replacing
from overlap_train.monitoring.recorder import require_samples, require_spans
from overlap_train.monitoring.timeline import thread_order
from overlap_train.records import Sample, Span

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
    spans, samples = require_spans("spans", spans), require_samples("samples", samples)
    origin_s = min((*(span.start_s for span in spans), *(sample.time_s for sample in samples)), default=0.0)
    events = [*_span_events(spans, origin_s), *_counter_events(samples, origin_s)]
    with replacing(path) as unfinished, unfinished.open("w", encoding="utf-8") as stream:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, stream, allow_nan=False)
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
