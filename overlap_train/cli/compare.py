"""`overlap-train compare train.py`: whether a script is faster when overlapped, with the same results.

The script runs by Keras and overlapped as under `overlap-train verify`, in the order Keras, overlapped,
overlapped, Keras. So a machine that becomes slower or faster meanwhile favours neither.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

from overlap_train.cli import verify
from overlap_train.cli.report import Finding, Report, UsageError

if TYPE_CHECKING:  # which imports NumPy
    from overlap_train.cli.comparing import Run

_IDLE_CORES = 0.5  # fewer leave nothing to overlap on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments, which are those of `verify`."""
    verify.add_arguments(parser)
    parser.epilog = (
        "example: overlap-train compare --epochs 3 train.py --rows 1000. "
        "Arguments behind the script are the script's. The benchmark of a checkout is scripts/compare.sh."
    )


def run(options: argparse.Namespace) -> Report:
    """Run the script twice each way; the verdict is of the time and of the results."""
    with tempfile.TemporaryDirectory(prefix=verify.PREFIX) as directory:
        keras, ours = (verify.record(directory, by, options) for by in ("keras", "overlap"))
        verify.require_comparable(options.script, keras, ours)
        if not keras.counts["fits"]:
            raise UsageError(f"{options.script} has not called fit")
        ours_again, keras_again = (verify.record(directory, by, options) for by in ("overlap", "keras"))
        again = {"keras": keras_again, "overlap": ours_again}
        verdict, *others = verify.judge(
            options.tolerance,
            keras,
            ours,
            lambda by: again[by] if by in again else verify.record(directory, by, options),
        )
    if verdict.state != "mend":
        time = _time((keras, keras_again), (ours, ours_again))
        results = verdict.text.partition(",")[0]  # without the place of the largest difference
        verdict = dataclasses.replace(time, text=f"{time.text}; the results are {results}")
    return Report("compare", {"result": [verdict, *others]}, str(options.script))


def _time(keras: Sequence[Run], ours: Sequence[Run]) -> Finding:
    """Return which way is faster: the one whose slower run is ahead of the faster run of the other."""
    from overlap_train.options.threads import available_cores

    by_keras, overlapped = ([run.in_fits("seconds") for run in runs] for runs in (keras, ours))
    took = "{:.2f} and {:.2f} s in fit, by Keras {:.2f} and {:.2f} s".format(*overlapped, *by_keras)
    share = sum(overlapped) / sum(by_keras)
    if max(overlapped) < min(by_keras):
        return Finding("verdict", "faster", f"overlapped it takes {share:.2f} of the time: {took}")
    busy = sum(run.in_fits("cpu_seconds") for run in keras) / sum(by_keras)
    cores = available_cores()
    cause = f"; Keras keeps {busy:.1f} of {cores} cores busy" if cores - busy < _IDLE_CORES else ""
    if min(overlapped) > max(by_keras):
        return Finding(
            "verdict", "slower", f"overlapped it takes {share:.2f} times as long: {took}{cause}", "note"
        )
    return Finding("verdict", "same", f"overlapping gained nothing that two runs show: {took}{cause}", "note")
