"""Python processes that begin with TensorFlow, Keras and this package imported, and none of them started.

The imports take seconds of a core. So one process does them once, starts no thread, and forks a child for
each program that a test wants to run in a process of its own. The child is an interpreter like any other: it
may set devices and threads, is killed by signals, prints, and ends with an exit code.

`run` and `start` stand for `subprocess.run` and `subprocess.Popen`; use those where the imports themselves,
the environment of the imports or the command line of the interpreter is what is tested.
"""

from __future__ import annotations

import atexit
import functools
import gc
import multiprocessing
import os
import pickle
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from typing import IO, Any

import numpy

LARGEST_REQUEST = 1 << 20


class Interpreter:
    """A forked interpreter, with the part of `subprocess.Popen` that the tests use."""

    def __init__(self, arguments: list[str], *, env=None, cwd=None, stdin=None, stdout=None, stderr=None):
        """Start a program: `-c` and code, `-m` and a module, or a script, and its arguments.

        `env` and `cwd` are those of the test where they are None, and so are the outputs, which may also be
        `subprocess.PIPE` or a file; `stdin` is `subprocess.PIPE`, or None for an empty one.
        """
        self.args = arguments
        self.returncode: int | None = None
        self._status, status = os.pipe()
        self.stdin, read = _pipe(stdin, "w")
        self.stdout, out = _pipe(stdout, "r", 1)
        self.stderr, err = _pipe(stderr, "r", 2)
        request = {
            "arguments": [os.fspath(argument) for argument in arguments],
            "env": {**os.environ} if env is None else env,
            "cwd": os.fspath(cwd) if cwd is not None else os.getcwd(),
        }
        files = (read, out, err, status)
        socket.send_fds(_server(), [pickle.dumps(request)], files)
        for file in files:
            os.close(file)
        self.pid = int(os.read(self._status, 8))

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
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


def start(arguments: list[Any], **options) -> Interpreter | subprocess.Popen:
    """Starts a program; `arguments` and `options` are those of `Interpreter`."""
    if hasattr(os, "fork"):
        return Interpreter(arguments, **options)
    return subprocess.Popen([sys.executable, *arguments], text=True, **options)


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
    context.set_forkserver_preload(["overlap_train.trainer", "tests.networks"])
    return context


def let_threads_sleep() -> None:
    """Has TensorFlow's threads sleep as soon as they find no work; call it before they start.

    Where the tests of several processes share the cores, looking for work would take a tenth of them.
    """
    from tensorflow.core.protobuf import config_pb2
    from tensorflow.python.eager import context

    config = config_pb2.ConfigProto()
    config.experimental.disable_thread_spinning = True
    context.context()._config = config


def _pipe(kind: Any, mode: str, inherited: int = 0) -> tuple[IO[str] | None, int]:
    """Returns our end of a pipe, if it is one, and the descriptor that the program gets."""
    if kind == subprocess.PIPE:
        reader, writer = os.pipe()
        ours, theirs = (writer, reader) if mode == "w" else (reader, writer)
        return os.fdopen(ours, mode), theirs
    if kind is not None:
        return None, os.dup(kind.fileno())
    return None, os.open(os.devnull, os.O_RDONLY) if mode == "w" else os.dup(inherited)


@functools.cache
def _server() -> socket.socket:
    """Starts the process that forks; it ends when the socket is closed, at the latest with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.interpreters", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _next_program(requests: socket.socket) -> dict[str, Any] | None:
    """Forks a child for each request. Returns the request in each child, and None when no more will come."""
    waker, wake = socket.socketpair()
    for end in (waker, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, waker], [], [])
        if waker in ready:
            waker.recv(1024)
            _tell_ends(statuses)
        if requests not in ready:
            continue
        message, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 4)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for status in (*statuses.values(), files[3]):
                os.close(status)
            for end in (waker, wake, requests):
                end.close()
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
                os.close(file)
            return pickle.loads(message)
        os.write(files[3], b"%-8d" % pid)
        statuses[pid] = files[3]
        for file in files[:3]:
            os.close(file)


def _tell_ends(statuses: dict[int, int]) -> None:
    """Tells the tests which children have ended, and how, as `Popen.returncode` does."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        file = statuses.pop(pid)
        os.write(file, b"%d" % os.waitstatus_to_exitcode(status))
        os.close(file)


def _become(request: dict[str, Any]) -> None:
    """Runs a program as `python` with its arguments would."""
    os.environ.clear()
    os.environ.update(request["env"])
    numpy.random.seed()  # Python's own generator does so after each fork
    os.chdir(request["cwd"])
    kind, *rest = request["arguments"]
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        module = types.ModuleType("__main__")
        sys.modules["__main__"] = module
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        runpy.run_path(kind, run_name="__main__")


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import overlap_train._fit.run
    import overlap_train.trainer  # noqa: F401

    let_threads_sleep()
    gc.freeze()  # a child that looked for garbage among what was imported would copy it
    request = _next_program(requests)
    if request is not None:
        _become(request)


if __name__ == "__main__":
    _main()
