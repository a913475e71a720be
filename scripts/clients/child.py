"""One client in a process of its own: `python -m scripts.clients.child wandb_logger`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from scripts.clients.case import Run, in_step

ABSENT, BROKEN = 3, 4
"""Exit statuses: the library is not installed; it fails under Keras itself."""


def main() -> int:
    """Trains with and without us, compares, and prints one line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for variable in ("WANDB_DIR", "COMET_OFFLINE_DIRECTORY", "MPLCONFIGDIR"):
            os.environ[variable] = folder
        try:
            client = importlib.import_module(f"scripts.clients.{name}")
        except ImportError as error:
            print(f"not installed: {error}")
            return ABSENT
        try:
            expected = client.stock()
        except Exception as error:
            traceback.print_exc()
            print(f"fails under keras.Model.fit itself: {type(error).__name__}: {error}")
            return BROKEN
        actual = client.ours()
        os.chdir("/")
    problem = difference(actual, expected) or refusal(actual, getattr(client, "IN_STEP", None))
    reason = in_step(actual.trainer) if actual.trainer is not None else None
    print(problem or ("same numbers, overlapped" if reason is None else f"same numbers, in step: {reason}"))
    return int(problem is not None)


def difference(actual: Run, expected: Run) -> str | None:
    """Returns where two runs differ by more than 1e-5, or None."""
    if list(actual.values) != list(expected.values):
        return f"other values: {sorted(set(actual.values) ^ set(expected.values))}"
    for name, value in expected.values.items():
        ours, theirs = np.asarray(actual.values[name]), np.asarray(value)
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-5, atol=1e-6):
            return f"{name} differs: {ours.ravel()[:3]} for {theirs.ravel()[:3]}"
    return None


def refusal(actual: Run, expected: str | None) -> str | None:
    """Returns what is wrong with how a training was validated, or None."""
    trainer = actual.trainer
    if trainer is None or not trainer.accounts:
        return "nothing was trained by a Trainer"
    reason = in_step(trainer)
    if expected is None:
        return None if reason is None else f"did not overlap: {reason}"
    return (
        None if reason is not None and expected in reason else f"expected in step ({expected}); got {reason}"
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
