"""What each thread did when, how long work of two kinds overlapped, and where the time of each epoch went.

One `SpanRecorder` is shared by the training thread and all workers. Each thread appends under one lock;
a reader gets a copy, so it holds up writers only while that is made. The accounts belong to the training
thread, to which the workers' spans come with their results.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np

from overlap_train._support.arguments import (
    require_callable,
    require_count,
    require_instance,
    require_items,
    require_text,
)
from overlap_train.monitoring.table import EpochRow, epoch_table_html, format_epoch_table
from overlap_train.records import EpochAccount, FitAccount, Span

_start = attrgetter("start_s")


@dataclass(eq=False, slots=True)
class OpenSpan:
    """Time the body of a `with` statement, and add the span to the recorder at its end.

    Use it for one `with`, on one thread. The span is also kept if the body raises.
    """

    _recorder: SpanRecorder
    _name: str
    _epoch: int | None
    _step: int | None
    _details: dict[str, Any]
    _start_s: float = 0.0

    def note(self, **details: Any) -> None:
        """Add details that become known during the work, such as `steps`."""
        self._details.update(details)

    def __enter__(self) -> OpenSpan:
        self._start_s = self._recorder.clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        end_s, thread = self._recorder.clock(), threading.current_thread().name
        if kind is not None:
            self._details["error"] = kind.__name__
        span = Span(self._name, thread, self._start_s, end_s, self._epoch, self._step, self._details)
        self._recorder.add(span)


class SpanRecorder:
    """Keep the spans of all threads, in bounded memory.

    Every method may be called from any thread. After `max_spans`, later spans are only counted, in `dropped`:
    a trace with a known end is easier to read than one with holes.
    """

    def __init__(self, max_spans: int = 200_000, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty recorder.

        Args:
            max_spans: the largest number of spans, about 400 bytes each; 0 keeps none.
            clock: returns the time in seconds; other than `time.monotonic` only in tests.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `max_spans` is negative.
        """
        max_spans = require_count("max_spans", max_spans, minimum=0)
        require_callable("clock", clock)
        self.clock = clock
        self._max_spans = max_spans
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._dropped = 0

    def span(
        self, name: str, /, *, epoch: int | None = None, step: int | None = None, **details: Any
    ) -> OpenSpan:
        """Return a context manager that records the time spent in its body on the calling thread.

        Args:
            name: the kind of work; see `Span.name`.
            epoch: the epoch that the work belongs to, counted from 0.
            step: the training step at its beginning.
            **details: further facts for the trace viewer, preferably strings and numbers.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: `name` is empty, or a number is negative.
        """
        name = require_text("name", name)
        if epoch is not None:
            epoch = require_count("epoch", epoch, minimum=0)
        if step is not None:
            step = require_count("step", step, minimum=0)
        return OpenSpan(self, name, epoch, step, details)

    def add(self, span: Span) -> None:
        """Keep a span that was timed elsewhere, or count it as dropped.

        Raises:
            TypeError: `span` is not a `Span`.
        """
        require_instance("span", span, Span, optional=False)
        with self._lock:
            if len(self._spans) < self._max_spans:
                self._spans.append(span)
            else:
                self._dropped += 1

    def spans(self) -> tuple[Span, ...]:
        """Return the spans recorded so far, in order of their start; those still open are not included."""
        with self._lock:
            spans = self._spans.copy()
        spans.sort(key=_start)
        return tuple(spans)

    @property
    def dropped(self) -> int:
        """The number of spans that were dropped because the recorder was full."""
        with self._lock:
            return self._dropped

    def clear(self) -> None:
        """Delete all spans, and reset the count of dropped ones."""
        with self._lock:
            self._spans = []
            self._dropped = 0


def require_spans(name: str, spans: Any) -> tuple[Span, ...]:
    """Return spans as a tuple, or raise TypeError for anything else."""
    return require_items(name, spans, Span, expected="a collection of Span, such as trainer.recorder.spans()")


def union_s(spans: Iterable[Span]) -> float:
    """Return the seconds during which at least one of `spans` ran. O(n log n)."""
    return sum(end - start for start, end in _union("spans", spans))


def overlap_s(spans_a: Iterable[Span], spans_b: Iterable[Span]) -> float:
    """Return the seconds during which a span of `spans_a` and a span of `spans_b` both ran. O(n log n).

    Spans of one side that overlap each other, such as those of several workers, count once.
    """
    a, b = _union("spans_a", spans_a), _union("spans_b", spans_b)
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def _union(name: str, spans: Iterable[Span]) -> list[tuple[float, float]]:
    """Merge spans into disjoint (start_s, end_s), in order."""
    intervals: list[tuple[float, float]] = []
    for span in sorted(require_spans(name, spans), key=_start):
        if intervals and span.start_s <= intervals[-1][1]:
            intervals[-1] = (intervals[-1][0], max(intervals[-1][1], span.end_s))
        else:
            intervals.append((span.start_s, span.end_s))
    return intervals


@dataclass
class _Entry:
    steps: int = 0
    trained: list[Span] = field(default_factory=list)
    validated: list[Span] = field(default_factory=list)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    slow_host: int | None = None

    @property
    def charged_s(self) -> float:
        waited_by_others = self.seconds.get("slow_host_s", 0.0)
        return sum(span.duration_s for span in self.trained) + sum(self.seconds.values()) - waited_by_others


class Accounts:
    """Collects what each epoch cost.

    Each second of the training thread counts once: it is charged to an epoch or to the preparation, or is
    among the other seconds of the epoch that is being trained. Spans are kept for recent epochs only; a
    delivered epoch has numbers.
    """

    def __init__(self, start_s: float | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open: dict[int, _Entry] = {}
        self._closed: dict[int, EpochAccount] = {}
        self._recent: list[Span] = []
        self._clock = clock
        self._start_s = self._since_s = clock() if start_s is None else start_s
        self._training: int | None = None  # the epoch to which the time since `_since_s` counts
        self._charged_s = 0.0  # since then
        self._other: defaultdict[int | None, float] = defaultdict(float)  # of None: the preparation

    def begin(self, epoch: int) -> None:
        """Start an epoch, or start it again after a rollback."""
        self._open[epoch] = _Entry()

    def train(self, epoch: int | None) -> None:
        """Count what is not charged from now on to an epoch; to the preparation before the first one."""
        now_s = self._clock()
        self._other[self._training] += max(0.0, now_s - self._since_s - self._charged_s)
        self._training, self._since_s, self._charged_s = epoch, now_s, 0.0

    def prepared(self, seconds: float) -> None:
        """Charge seconds to the preparation."""
        self._other[None] += seconds
        self._charged_s += seconds

    def trained(self, span: Span, steps: int) -> None:
        """Charge a training call."""
        assert span.epoch is not None
        entry = self._open[span.epoch]
        entry.steps += steps
        entry.trained.append(span)
        self._recent.append(span)
        self._charged_s += span.duration_s

    def validated(self, epoch: int, spans: Sequence[Span], *, delivering: bool = False) -> None:
        """Add the spans of an epoch's validation; the training thread waited if it made them to deliver."""
        entry = self._open[epoch]
        entry.validated.extend(spans)
        if delivering:
            entry.seconds["waited_s"] += union_s(spans)
            entry.seconds["delivered_s"] -= union_s(spans)

    def charge(self, epoch: int, name: str, seconds: float) -> None:
        """Charge seconds to `waited_s`, `snapshot_s` or `delivered_s` of an epoch."""
        self._open[epoch].seconds[name] += seconds
        self._charged_s += seconds

    def slow_host(self, epoch: int, host: int, seconds: float) -> None:
        """Note for which host the others waited in an epoch, and how long."""
        self._open[epoch].slow_host = host
        self._open[epoch].seconds["slow_host_s"] += seconds

    def trained_s(self, epoch: int) -> float:
        """Return the seconds trained so far in an open epoch."""
        return sum(span.duration_s for span in self._open[epoch].trained)

    def close(self, epoch: int, *, skipped: bool = False) -> EpochAccount:
        """End an epoch whose results are delivered, and return its account as far as it is known."""
        entry = self._open.pop(epoch)
        account = self._closed[epoch] = EpochAccount(
            epoch=epoch,
            steps=entry.steps,
            trained_s=sum(span.duration_s for span in entry.trained),
            validated_s=_extent_s(entry.validated),
            hidden_s=overlap_s(entry.validated, self._recent),
            skipped=skipped,
            slow_host=entry.slow_host,
            **entry.seconds,
        )
        oldest = min((s.start_s for e in self._open.values() for s in e.trained), default=float("inf"))
        self._recent = [span for span in self._recent if span.end_s >= oldest]
        return account

    def roll_back(self, epoch: int) -> float:
        """Forget the open epochs later than this one; charge it with what they took, and return that."""
        self.train(epoch)
        later = [e for e in self._open if e > epoch]
        seconds = sum(self._open.pop(e).charged_s + self._other.pop(e, 0.0) for e in later)
        self._open[epoch].seconds["rolled_back_s"] += seconds
        return seconds

    def closed(self) -> list[EpochAccount]:
        """Return the accounts until now of the delivered epochs, in order."""
        self.train(self._training)  # which adds to the other seconds
        return [replace(self._closed[epoch], other_s=self._other[epoch]) for epoch in sorted(self._closed)]

    def fit(self, epochs: Sequence[EpochAccount], spans: Iterable[Span] | None = None) -> FitAccount:
        """Return the account of the fit whose `closed` epochs these are; what it saved is in its spans."""
        saved = None if spans is None else saved_s(epochs, [s for s in spans if s.start_s >= self._start_s])
        others = sum(s for epoch, s in self._other.items() if epoch is not None and epoch not in self._closed)
        return FitAccount(
            fit_s=self._since_s - self._start_s,
            prepared_s=self._other[None],
            undelivered_s=others + sum(entry.charged_s for entry in self._open.values()),
            validated_s=sum(account.validated_s for account in epochs),
            hidden_s=sum(account.hidden_s for account in epochs),
            waited_s=sum(account.waited_s for account in epochs),
            rolled_back_s=sum(account.rolled_back_s for account in epochs),
            saved_s=saved,
        )


class EpochAccounts(list[EpochAccount]):
    """The accounts of a fit's delivered epochs, in order; a prompt or a notebook shows them as a table.

    Attributes:
        logs: the metrics of each epoch.
        fit: the account of the whole fit.
    """

    def __init__(
        self,
        accounts: Iterable[EpochAccount] = (),
        logs: Mapping[int, Mapping[str, Any]] | None = None,
        fit: FitAccount | None = None,
    ) -> None:
        super().__init__(accounts)
        self.logs, self.fit = logs or {}, fit

    def _rows(self) -> list[EpochRow]:
        return [(account, self.logs.get(account.epoch, {})) for account in self]

    def __repr__(self) -> str:
        return format_epoch_table(self._rows(), self.fit)

    def _repr_html_(self) -> str:
        return epoch_table_html(self._rows(), self.fit) if self else repr(self)


def saved_s(epochs: Sequence[EpochAccount], spans: Sequence[Span]) -> float | None:
    """Estimate how much longer a fit would have taken if it had waited for each validation.

    It would have waited for each as long as for the validations that nothing hid, mostly the last one. It
    would have been spared the other waits, slower training calls during validations, and what was rolled
    back. Returns None if there was no validation, or no training call, that nothing disturbed.
    """
    hidden = [account for account in epochs if account.hidden_s > 0]
    lost_s = sum(account.rolled_back_s for account in epochs)
    if not hidden:
        return -lost_s
    busy = _union("spans", (span for span in spans if span.name == "validate"))
    ends = [end_s for _, end_s in busy]
    undisturbed: list[float] = []  # seconds of a step
    disturbed: list[float] = []
    steps = 0  # that were disturbed
    for span in [s for s in spans if s.name == "train" and s.details.get("steps")][1:]:  # the first compiles
        after = bisect.bisect(ends, span.start_s)
        if after < len(busy) and busy[after][0] < span.end_s:
            disturbed.append(span.duration_s / span.details["steps"])
            steps += span.details["steps"]
        else:
            undisturbed.append(span.duration_s / span.details["steps"])
    alone = [a.validated_s for a in epochs if a.validated_s and a.hidden_s < 0.1 * a.validated_s]
    if not (alone and undisturbed):
        return None
    if disturbed:
        lost_s += steps * max(0.0, float(np.median(disturbed) - np.median(undisturbed)))
    return sum(min(a.validated_s, float(np.median(alone))) - a.waited_s for a in hidden) - lost_s


def _extent_s(spans: Sequence[Span]) -> float:
    if not spans:
        return 0.0
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)
