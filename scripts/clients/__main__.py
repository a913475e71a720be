"""All clients, or those that are named: `python -m scripts.clients wandb_logger mlflow_autolog`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from scripts.clients.child import ABSENT, BROKEN

_ROOT = Path(__file__).parents[2]
_HELPERS = ("__init__", "__main__", "case", "child")
_TIMEOUT_S = 600
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
    """Runs them one after another.

    Returns:
        0 if all pass, 1 if one fails, 3 if one could not be tried.
    """
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in _HELPERS)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no such client: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    ended: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name in chosen:
        start_s = time.monotonic()
        status, said = run(name)
        outcome = {0: "passed", ABSENT: "skipped", BROKEN: "skipped"}.get(status, "failed")
        ended[outcome].append(name)
        print(f"{name:14} {outcome:8} {time.monotonic() - start_s:5.0f} s  {said}", flush=True)
    print(", ".join(f"{len(those)} {outcome}" for outcome, those in ended.items()))
    if ended["skipped"]:
        print(f"not tried, so nothing is known of them: {', '.join(ended['skipped'])}")
    return 1 if ended["failed"] else 3 if ended["skipped"] else 0


def run(name: str) -> tuple[int, str]:
    """Returns the exit status of one client, and the last line that it printed."""
    command = [sys.executable, "-m", "scripts.clients.child", name]
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **_QUIET, "PYTHONPATH": path}
    try:
        done = subprocess.run(
            command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return 1, f"took more than {_TIMEOUT_S} s"
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, ABSENT):
        sys.stderr.write(done.stderr)
    return done.returncode, lines[-1] if lines else "said nothing"


if __name__ == "__main__":
    sys.exit(main())
