"""How much of each validation lies beside training calls.

python -m overlap_train.benchmark.hidden --workload mlp --epochs 24
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import overlap_train
from overlap_train.benchmark import pipelines
from overlap_train.benchmark.workloads import WORKLOADS
from overlap_train.records import EpochAccount

__all__ = ["measure"]


def measure(workload: str, *, epochs: int, workers: int, max_lag: int, quick: bool) -> list[EpochAccount]:
    """Trains a workload and returns where the time of each epoch went.

    Args:
        workload: its name.
        epochs: how many.
        workers: validation threads.
        max_lag: as in `ValidationPolicy`.
        quick: with less data.
    """
    chosen = WORKLOADS[workload]
    overlap_train.configure()
    with tempfile.TemporaryDirectory(prefix="overlap_train-hidden-") as cache_dir:
        task = chosen.task(Path(cache_dir), quick=quick)
    policy = overlap_train.ValidationPolicy(workers=workers, max_lag=max_lag)
    trainer = overlap_train.Trainer(chosen.model(from_raw=True), validation=policy)
    trainer.fit(**pipelines.trainer_data(chosen, task, workers), epochs=epochs, verbose=0)
    return list(trainer.accounts)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=list(WORKLOADS), default="mlp")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--max_lag", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="with less data")
    options = parser.parse_args(arguments)
    accounts = measure(
        options.workload,
        epochs=options.epochs,
        workers=options.workers,
        max_lag=options.max_lag,
        quick=options.quick,
    )
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
