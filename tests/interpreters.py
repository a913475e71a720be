"""Python processes that begin with TensorFlow, Keras and this package imported, and none of them started.

The imports take seconds of a core. So the server of `multiprocessing` does them once and forks a child for
each program that a test wants to run in a process of its own. The child is an interpreter like any other: it
may set devices and threads, is killed by signals, prints, and ends with an exit code.

`run` and `start` stand for `subprocess.run` and `subprocess.Popen`; use those where the imports themselves,
their environment, the command line or the end of the interpreter is what is tested: the end is sudden here.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
from multiprocessing.connection import Connection
from typing import IO, Any


class Interpreter:
    """A forked interpreter, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: list[Any], *, env=None, cwd=None, stdin=None, stdout=None, stderr=None):
        """Start a program: `-c` and code, `-m` and a module, or a script, and its arguments.

        `env` and `cwd` are those of the test where they are None, and so are the outputs, which may also be
        `subprocess.PIPE` or a file; `stdin` is `subprocess.PIPE`, or None for an empty one.
        """
        self.args = [os.fspath(argument) for argument in arguments]
        streams = [_stream(kind, number) for number, kind in enumerate((stdin, stdout, stderr))]
        self.stdin, self.stdout, self.stderr = (ours for ours, _ in streams)
        # A connection is how `multiprocessing` passes a file on.
        files = [Connection(theirs) for _, theirs in streams]
        request = {**(os.environ if env is None else env)}, os.fspath(cwd or os.getcwd()), self.args
        self._process = forkserver().Process(target=_become, args=(files, *request))
        self._process.start()
        for file in files:
            file.close()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # or its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Closes the input, waits for the end, and returns what came on the pipes."""
        if self.stdin is not None:
            self.stdin.close()
        found = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            with stream:
                found[number] = stream.read()

        streams = [(n, s) for n, s in enumerate((self.stdout, self.stderr)) if s is not None and not s.closed]
        readers = [threading.Thread(target=read, args=one, daemon=True) for one in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join()
        return found[0], found[1]


start = Interpreter


def run(
    arguments: list[Any], *, timeout: float | None = None, check: bool = False, **options
) -> subprocess.CompletedProcess:
    """Runs a program to its end, and returns what it has printed.

    Raises:
        subprocess.TimeoutExpired: it had not ended after `timeout` seconds, and was killed.
        AssertionError: `check` is set and it failed.
    """
    process = start(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
    if check:
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done


@functools.cache
def forkserver() -> multiprocessing.context.ForkServerContext:
    """Returns a context of `multiprocessing` whose processes have the imports, too.

    They are made as spawned ones are, from pickled arguments, but with the environment of the first one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["overlap_train.trainer", "overlap_train._fit.run", "tests.networks"])
    return context


def begin(*files: int) -> None:
    """Has a process of the server use files as its input, output and error, and start others as any does."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (open(n, "w", closefd=False, buffering=1) for n in (1, 2))  # noqa: SIM115
    multiprocessing.set_start_method(None, force=True)


def let_threads_sleep() -> None:
    """Has TensorFlow's threads sleep as soon as they find no work; call it before they start.

    Where the tests of several processes share the cores, looking for work would take a tenth of them.
    """
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    config = config_pb2.ConfigProto()
    config.experimental.disable_thread_spinning = True
    context.context()._config = config


def _stream(kind: Any, number: int) -> tuple[IO[str] | None, int]:
    """Returns our end of a pipe, if it is one, and the file that the program gets as its n-th."""
    if kind == subprocess.PIPE:
        reader, writer = os.pipe()
        return (os.fdopen(writer, "w"), reader) if number == 0 else (os.fdopen(reader), writer)
    if kind is not None:
        return None, os.dup(kind.fileno())
    return None, os.open(os.devnull, os.O_RDONLY) if number == 0 else os.dup(number)


def _become(files: list[Connection], env: dict[str, str], cwd: str, arguments: list[str]) -> None:
    """Runs a program as `python` with its arguments would."""
    begin(*(file.fileno() for file in files))
    for file in files:
        file.close()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    let_threads_sleep()
    kind, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")
