"""What a run did and what it cost: spans, load, timeline, tables, progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlap_train._support.imports import lazy_names

if TYPE_CHECKING:
    from overlap_train.monitoring.account_files import AccountLog, AccountWriter
    from overlap_train.monitoring.recorder import SpanRecorder, overlap_s
    from overlap_train.monitoring.sampler import Sampler
    from overlap_train.monitoring.table import format_epoch_table
    from overlap_train.monitoring.timeline import save_chrome_trace, save_timeline

__all__ = [
    "AccountLog",
    "AccountWriter",
    "Sampler",
    "SpanRecorder",
    "format_epoch_table",
    "overlap_s",
    "save_chrome_trace",
    "save_timeline",
]

_HOMES = {
    **dict.fromkeys(("AccountLog", "AccountWriter"), "account_files"),
    **dict.fromkeys(("SpanRecorder", "overlap_s"), "recorder"),
    "Sampler": "sampler",
    "format_epoch_table": "table",
    **dict.fromkeys(("save_chrome_trace", "save_timeline"), "timeline"),
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
