"""A process that runs each case in a child of its own, so that an abort of TensorFlow's is a result.

Importing TensorFlow takes seconds. So one process imports it, starts none of its threads, and forks a child
for each case; the child starts TensorFlow's runtime itself.
"""

import os
import pickle
import signal
import struct
import subprocess
import sys

import pytest

SERVER = r"""
import os, pickle, struct, sys, traceback
import numpy as np
import tensorflow as tf
from overlap_train import errors, zero_copy

source, sink = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)

def answer(outcome):
    data = pickle.dumps(outcome)
    sink.write(struct.pack("<q", len(data)) + data)
    sink.flush()

answer("ready")
while True:
    head = source.read(8)
    if len(head) < 8:
        break
    code, values = pickle.loads(source.read(struct.unpack("<q", head)[0]))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        scope = {"np": np, "tf": tf, "errors": errors, "zero_copy": zero_copy, **values}
        try:
            exec(compile(code, "<case>", "exec"), scope)
            outcome = ("returned", scope.get("result"))
        except BaseException as error:
            outcome = ("raised", [kind.__name__ for kind in type(error).__mro__], str(error))
        with os.fdopen(writer, "wb") as file:
            pickle.dump(outcome, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        data = file.read()
    _, status = os.waitpid(child, 0)
    answer(("killed", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else pickle.loads(data))
"""


class CaseServer:
    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        assert self._read() == "ready"

    def run(self, code, **values):
        """Runs a case; returns ("returned", its `result`), ("raised", MRO, message) or ("killed", signal)."""
        data = pickle.dumps((code, values))
        self._process.stdin.write(struct.pack("<q", len(data)) + data)
        self._process.stdin.flush()
        return self._read()

    def result(self, code, **values):
        outcome = self.run(code, **values)
        assert outcome[0] == "returned", outcome
        return outcome[1]

    def _read(self):
        head = self._process.stdout.read(8)
        assert len(head) == 8, f"the case server died: {self._process.wait()}"
        return pickle.loads(self._process.stdout.read(struct.unpack("<q", head)[0]))

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


@pytest.fixture(scope="session")
def cases():
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork to run each case in a process of its own")
    server = CaseServer()
    yield server
    server.close()


@pytest.fixture
def run_python():
    """Runs a script in a fresh interpreter, fails unless it ends well, and returns what it printed."""

    def run(code):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else done.returncode
        assert done.returncode == 0, f"{name}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run
