"""What a run did and what it cost: spans, load, timeline, tables, progress."""

from overlap_train.monitoring.recorder import OpenSpan, SpanRecorder, overlap_s, union_s

__all__ = ["OpenSpan", "SpanRecorder", "overlap_s", "union_s"]
