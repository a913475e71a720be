"""Runs functions in forks of the clean process of `interpreters.forkserver`, each of which begins at once.

A process that a test limits, kills or makes read-only must be one of its own, and an import of TensorFlow
takes most of the time of a small one. TensorFlow can be forked as long as it has run nothing.
"""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import interpreters


def start(function: Callable[..., Any], *arguments: Any, said: Path, limit_s: float = 120) -> Any:
    """Starts a process that calls a function of a module, and returns the `multiprocessing.Process`.

    Args:
        function: what to call.
        *arguments: for it; must be picklable.
        said: the file for standard output and error.
        limit_s: seconds after which the process prints its stack and ends.
    """
    process = interpreters.forkserver().Process(target=_run, args=(function, arguments, said, limit_s))
    process.start()
    return process


def run(function: Callable[..., Any], *arguments: Any, said: Path, limit_s: float = 120) -> str:
    """Runs a function in such a process and returns what it wrote; fails the test if it raises or hangs."""
    process = start(function, *arguments, said=said, limit_s=limit_s)
    process.join()
    code = process.exitcode
    process.close()
    text = said.read_text(errors="replace")
    if code:
        pytest.fail(f"{function.__qualname__} ended with exit code {code}:\n{text[-4000:]}", pytrace=False)
    return text


def _run(function: Callable[..., Any], arguments: tuple[Any, ...], said: Path, limit_s: float) -> None:
    with said.open("wb") as file:
        interpreters.begin(0, file.fileno(), file.fileno())
    faulthandler.dump_traceback_later(limit_s, exit=True, file=sys.stderr)
    function(*arguments)
