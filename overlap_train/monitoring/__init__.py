"""What a run did and what it cost: spans, load, timeline, tables, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.monitoring.account_files import AccountLog, AccountWriter
    from overlap_train.monitoring.recorder import OpenSpan, SpanRecorder, overlap_s, union_s
    from overlap_train.monitoring.sampler import LoadMeter, Sampler
    from overlap_train.monitoring.table import EpochRow, format_epoch_table, format_metric
    from overlap_train.monitoring.timeline import save_chrome_trace, save_timeline

__all__ = [
    "AccountLog",
    "AccountWriter",
    "EpochRow",
    "LoadMeter",
    "OpenSpan",
    "Sampler",
    "SpanRecorder",
    "format_epoch_table",
    "format_metric",
    "overlap_s",
    "save_chrome_trace",
    "save_timeline",
    "union_s",
]

_HOMES = {
    **dict.fromkeys(("AccountLog", "AccountWriter"), "account_files"),
    **dict.fromkeys(("EpochRow", "format_epoch_table", "format_metric"), "table"),
    **dict.fromkeys(("LoadMeter", "Sampler"), "sampler"),
    **dict.fromkeys(("OpenSpan", "SpanRecorder", "overlap_s", "union_s"), "recorder"),
    **dict.fromkeys(("save_chrome_trace", "save_timeline"), "timeline"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
