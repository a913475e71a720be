"""All clients, or those that are named: `python -m scripts.clients wandb_logger mlflow_autolog`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 600
_ABSENT, _BROKEN = 3, 4  # exit statuses: the library is not installed; it fails under Keras itself
_IN_STEP = "validating in step with the training: "
_QUIET = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "KERAS_BACKEND": "tensorflow",
    "MPLBACKEND": "Agg",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "DVC_NO_ANALYTICS": "true",
    "CLEARML_LOG_LEVEL": "ERROR",
}


def main() -> int:
    """Runs them one after another, each in a process of its own.

    Returns:
        0 if all pass, 1 if one fails, 3 if one could not be tried.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="of scripts/clients/programs.py (all)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _child(options.child)
    from scripts.clients.programs import PROGRAMS

    if unknown := set(options.names) - set(PROGRAMS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    ended: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name in options.names or PROGRAMS:
        start_s = time.monotonic()
        status, said = run(name)
        outcome = {0: "passed", _ABSENT: "skipped", _BROKEN: "skipped"}.get(status, "failed")
        ended[outcome].append(name)
        print(f"{name:21} {outcome:8} {time.monotonic() - start_s:5.0f} s  {said}", flush=True)
    print(", ".join(f"{len(those)} {outcome}" for outcome, those in ended.items()))
    if ended["skipped"]:
        print(f"not tried, so nothing is known of them: {', '.join(ended['skipped'])}")
    return 1 if ended["failed"] else 3 if ended["skipped"] else 0


def run(name: str) -> tuple[int, str]:
    """Returns the exit status of one client, and the last line that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        own = {"WANDB_DIR": folder, "COMET_OFFLINE_DIRECTORY": folder, "MPLCONFIGDIR": folder}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "scripts.clients", "--child", name],
                cwd=folder,
                env={**os.environ, **_QUIET, **own, "PYTHONPATH": path},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return 1, f"took more than {_TIMEOUT_S} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, _ABSENT):
        sys.stderr.write(done.stderr)
    return done.returncode, lines[-1] if lines else "said nothing"


def _child(name: str) -> int:
    """Trains with and without us, compares, and prints one line; returns the exit status."""
    import overlap_train
    from scripts.clients.programs import IN_STEP, PROGRAMS, Keras

    try:
        expected, _ = PROGRAMS[name](Keras)
    except ImportError as error:
        print(f"not installed: {error}")
        return _ABSENT
    except Exception as error:
        traceback.print_exc()
        print(f"fails under keras.Model.fit itself: {type(error).__name__}: {error}")
        return _BROKEN
    actual, trained_by = PROGRAMS[name](overlap_train)
    trainer = getattr(trained_by, "trainer", trained_by)
    problem, reason = difference(actual, expected), in_step(trainer)
    if problem is None and (trainer is None or not trainer.accounts):
        problem = "nothing was trained by a Trainer"
    wanted = IN_STEP.get(name)
    if problem is None and (reason is not None if wanted is None else wanted not in (reason or "")):
        problem = f"expected in step: {wanted}; got {reason}"
    print(problem or ("same numbers, overlapped" if reason is None else f"same numbers, in step: {reason}"))
    return int(problem is not None)


def in_step(trainer: Any) -> str | None:
    """Returns why a training could not run ahead of its validation, or None."""
    for message in getattr(trainer, "messages", ()):
        if message.startswith(_IN_STEP):
            return str(message.removeprefix(_IN_STEP).splitlines()[0])
    return None


def difference(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> str | None:
    """Returns where two runs differ by more than 1e-5, or None."""
    if list(actual) != list(expected):
        return f"other values: {sorted(set(actual) ^ set(expected))}"
    for name, value in expected.items():
        ours, theirs = np.asarray(actual[name]), np.asarray(value)
        if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=1e-5, atol=1e-6):
            return f"{name} differs: {ours.ravel()[:3]} for {theirs.ravel()[:3]}"
    return None


if __name__ == "__main__":
    sys.exit(main())
