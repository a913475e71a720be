"""How much of the validation is hidden: by time beside training calls, or by the clock.

    python -m scripts.bench.hidden --workload mlp --epochs 24
    python -m scripts.bench.hidden --workload mlp --epochs 24 --rounds 9

With `--rounds`, one process trains without validation, in step and overlapped, in turn. What counts is the
time from one epoch's beginning to the next one's, without the first epochs, in which loops are built and
plans are tried.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import overlap_train
from overlap_train.records import EpochAccount
from scripts.bench import pipelines
from scripts.bench.workloads import WORKLOADS

__all__ = ["Way", "measure", "measure_by_the_clock"]

_WARM_UP = 3


class Way:
    """A workload with its trainer, to be trained again and again in one process.

    Args:
        workload: its name.
        workers: validation threads.
        max_lag: as in `ValidationPolicy`; None does not validate.
        quick: with less data.
    """

    def __init__(self, workload: str, *, workers: int, max_lag: int | None, quick: bool) -> None:
        chosen = WORKLOADS[workload]
        overlap_train.configure()
        with tempfile.TemporaryDirectory(prefix="overlap_train-hidden-") as cache_dir:
            task = chosen.task(Path(cache_dir), quick=quick)
        policy = overlap_train.ValidationPolicy(workers=workers, max_lag=max_lag or 0)
        self._trainer = overlap_train.Trainer(chosen.model(from_raw=True), validation=policy)
        self._arguments = pipelines.trainer_data(chosen, task, workers)
        if max_lag is None:
            del self._arguments["validation_data"]

    def train(self, epochs: int) -> list[float]:
        """Trains, and returns the seconds from each later epoch's beginning to the next one's."""
        start_s = time.monotonic()
        self._trainer.fit(**self._arguments, epochs=epochs, verbose=0)
        begun_s: dict[int, float] = {}
        for span in self._trainer.recorder.spans():
            if span.name == "train" and span.epoch is not None and span.start_s >= start_s:
                begun_s.setdefault(span.epoch, span.start_s)
        ordered = [begun_s[epoch] for epoch in sorted(begun_s)]
        return [after - before for before, after in itertools.pairwise(ordered[_WARM_UP:])]

    @property
    def accounts(self) -> list[EpochAccount]:
        """Where the time of each epoch of the last training went."""
        return self._trainer.accounts


def measure(workload: str, *, epochs: int, workers: int, max_lag: int, quick: bool) -> list[EpochAccount]:
    """Trains a workload and returns where the time of each epoch went; arguments as of `Way`."""
    way = Way(workload, workers=workers, max_lag=max_lag, quick=quick)
    way.train(epochs)
    return way.accounts


def measure_by_the_clock(
    workload: str, *, epochs: int, workers: int, max_lag: int, quick: bool, rounds: int
) -> list[tuple[float, float, float]]:
    """Returns the median seconds of an epoch without validation, in step and overlapped, for each round."""
    options = {"workers": workers, "quick": quick}
    ways = [Way(workload, max_lag=lag, **options) for lag in (None, 0, max_lag)]  # type: ignore[arg-type]
    for way in ways:
        way.train(epochs)
    found = []
    for index in range(rounds):
        order = [*range(index % 3, 3), *range(index % 3)]
        seconds = {place: statistics.median(ways[place].train(epochs)) for place in order}
        found.append((seconds[0], seconds[1], seconds[2]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mlp")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--max_lag", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0, help="measure by the clock, in so many rounds")
    parser.add_argument("--quick", action="store_true", help="with less data")
    options = vars(parser.parse_args(arguments))
    workload, rounds = options.pop("workload"), options.pop("rounds")
    if rounds:
        if options["epochs"] < _WARM_UP + 2 or options["max_lag"] < 1:
            parser.error(f"--rounds needs {_WARM_UP + 2} epochs and a max_lag of 1 at least")
        _print_rounds(measure_by_the_clock(workload, rounds=rounds, **options))
    else:
        _print_accounts(measure(workload, **options))
    return 0


def _print_accounts(accounts: Sequence[EpochAccount]) -> None:
    print("epoch  trained ms  validated ms  hidden ms  waited ms")
    for account in accounts:
        seconds = (account.trained_s, account.validated_s, account.hidden_s, account.waited_s)
        print(f"{account.epoch + 1:5d} " + " ".join(f"{1e3 * value:11.1f}" for value in seconds))
    followed = [account for account in accounts[:-1] if account.validated_s > 0]
    if followed:
        shares = [account.hidden_s / account.validated_s for account in followed]
        whole = sum(a.hidden_s for a in followed) / sum(a.validated_s for a in followed)
        print(
            f"hidden of the {len(followed)} validations that an epoch follows: "
            f"median {statistics.median(shares):.0%}, least {min(shares):.0%}, of their time {whole:.0%}"
        )


def _print_rounds(rounds: Sequence[tuple[float, float, float]]) -> None:
    print("round  no validation ms  in step ms  overlapped ms  hidden by the clock")
    shares = []
    for index, (none_s, in_step_s, overlapped_s) in enumerate(rounds):
        shares.append(_share(none_s, in_step_s, overlapped_s))
        figures = f"{1e3 * none_s:16.1f}  {1e3 * in_step_s:10.1f}  {1e3 * overlapped_s:13.1f}"
        print(f"{index + 1:5d}  {figures}  {shares[-1]:19.0%}")
    none_s, in_step_s, overlapped_s = (statistics.median(column) for column in zip(*rounds, strict=True))
    whole, typical = _share(none_s, in_step_s, overlapped_s), statistics.median(shares)
    print(f"medians: {1e3 * none_s:.1f}, {1e3 * in_step_s:.1f} and {1e3 * overlapped_s:.1f} ms an epoch")
    print(f"hidden by the clock of its cost in step: {whole:.0%} (median of the rounds {typical:.0%})")


def _share(none_s: float, in_step_s: float, overlapped_s: float) -> float:
    """Returns the part of a validation's cost in step that overlapping takes back."""
    cost_s = in_step_s - none_s
    return (in_step_s - overlapped_s) / cost_s if cost_s > 0 else float("nan")


if __name__ == "__main__":
    sys.exit(main())
