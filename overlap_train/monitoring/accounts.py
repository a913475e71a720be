"""H: the accounts, where the time of each epoch went.

The training thread writes; the intervals of the workers come to it with their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from overlap_train.monitoring.recorder import overlap_s
from overlap_train.records import EpochAccount, Span

__all__ = ["Accounts"]


@dataclass
class _Entry:
    steps: int = 0
    trained: list[Span] = field(default_factory=list)
    validated: list[Span] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    slow_host: int | None = None


class Accounts:
    """Collects what each epoch cost.

    Only the intervals of recent epochs are kept; what is finished is a number.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Entry] = {}
        self._closed: dict[int, EpochAccount] = {}
        self._recent: list[Span] = []

    def begin(self, epoch: int) -> None:
        """Start an epoch, or start it again after a rollback."""
        self._open[epoch] = _Entry()

    def trained(self, span: Span, steps: int) -> None:
        """Add a training call."""
        assert span.epoch is not None
        entry = self._open[span.epoch]
        entry.steps += steps
        entry.trained.append(span)
        self._recent.append(span)

    def validated(self, epoch: int, spans: Sequence[Span]) -> None:
        """Add the workers' spans of an epoch."""
        self._open[epoch].validated.extend(spans)

    def add(self, epoch: int, name: str, seconds: float) -> None:
        """Add seconds to one of `waited_s`, `snapshot_s`, `delivered_s` or `rolled_back_s`."""
        seconds_by_name = self._open[epoch].seconds
        seconds_by_name[name] = seconds_by_name.get(name, 0.0) + seconds

    def slow_host(self, epoch: int, host: int, seconds: float) -> None:
        """Note for which host the others waited in an epoch, and how long."""
        self._open[epoch].slow_host = host
        self.add(epoch, "slow_host_s", seconds)

    def trained_s(self, epoch: int) -> float:
        """Return the seconds trained so far in an open epoch."""
        return sum(span.duration_s for span in self._open[epoch].trained)

    def close(self, epoch: int, *, skipped: bool = False) -> EpochAccount:
        """End an epoch whose results are delivered, and return its account."""
        entry = self._open.pop(epoch)
        account = EpochAccount(
            epoch=epoch,
            steps=entry.steps,
            trained_s=sum(span.duration_s for span in entry.trained),
            validated_s=_extent_s(entry.validated),
            hidden_s=overlap_s(entry.validated, self._recent),
            skipped=skipped,
            slow_host=entry.slow_host,
            **entry.seconds,
        )
        self._closed[epoch] = account
        oldest = min((s.start_s for e in self._open.values() for s in e.trained), default=float("inf"))
        self._recent = [span for span in self._recent if span.end_s >= oldest]
        return account

    def drop_after(self, epoch: int) -> float:
        """Forget the open epochs later than this one and return the seconds that they had trained."""
        later = [self._open.pop(e) for e in list(self._open) if e > epoch]
        return sum(span.duration_s for entry in later for span in entry.trained)

    def closed(self) -> list[EpochAccount]:
        """Return the accounts of the delivered epochs, in order."""
        return [self._closed[epoch] for epoch in sorted(self._closed)]


def _extent_s(spans: Sequence[Span]) -> float:
    if not spans:
        return 0.0
    return max(span.end_s for span in spans) - min(span.start_s for span in spans)
