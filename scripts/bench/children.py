"""Child processes of a comparison: each ends with this process, however that ends, and gives JSON back."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class ChildFailedError(RuntimeError):
    """A child process ended without a result; the message says why."""


def _end_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# For `preexec_fn`. Loaded beforehand, as a child between fork and exec must not take locks.
ENDS_WITH_PARENT: Callable[[], None] | None = None if _LIBC is None else _end_with_parent


@contextlib.contextmanager
def in_group(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process, and ends it and what it has started with the block, or with this process."""
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=ENDS_WITH_PARENT, **options)
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run_module(
    *arguments: str,
    log: Path | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Runs `python -m` with its arguments, and returns the JSON of the last line that it prints.

    What it says on standard error goes to `log`, or is shown; it and what it has started are ended after
    `timeout_s`. `environment` is added to that of this process.
    """
    with contextlib.ExitStack() as stack:
        said = None if log is None else stack.enter_context(log.open("w+b"))
        command = [sys.executable, "-W", "ignore", "-m", *arguments]
        env = {"TF_CPP_MIN_LOG_LEVEL": "2", **os.environ, **(environment or {})}
        with in_group(command, stdout=subprocess.PIPE, stderr=said, env=env) as process:
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                raise ChildFailedError(f"it took longer than {timeout_s:g} s and was ended") from None
        if process.returncode or not output.strip():
            raise ChildFailedError(_reason(process.returncode, said))
    return json.loads(output.splitlines()[-1])


def _reason(status: int, said: IO[bytes] | None) -> str:
    """Returns the last line of a traceback, if there is one, and how the process ended."""
    ending = f"exit status {status}" if status >= 0 else f"signal {-status}"
    if said is None:
        return ending
    said.seek(0)
    lines = said.read().decode(errors="replace").splitlines()
    last = [line for line in lines if line and not line.startswith((" ", "W0000", "I0000", "E0000"))][-1:]
    return f"{last[0][:300]} ({ending})" if last else ending
