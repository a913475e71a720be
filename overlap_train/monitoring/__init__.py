"""What a run did and what it cost: spans, load, timeline, tables, progress."""

from overlap_train.monitoring.recorder import OpenSpan, SpanRecorder, overlap_s, union_s
from overlap_train.monitoring.sampler import LoadMeter, Sampler

__all__ = ["LoadMeter", "OpenSpan", "Sampler", "SpanRecorder", "overlap_s", "union_s"]
