"""Cases that run in interpreters of their own, so that an abort of TensorFlow's is a result."""

import os
import pickle

import pytest

from tests import interpreters

PROGRAM = r"""
import os, pickle, sys
import numpy as np
import tensorflow as tf
from overlap_train import errors, zero_copy

with open(sys.argv[1], "rb") as file:
    code, cases = pickle.load(file)
code = compile(code, "<case>", "exec")
results = []
try:
    for values in cases:
        scope = {"np": np, "tf": tf, "errors": errors, "zero_copy": zero_copy, **values}
        exec(code, scope)
        results.append(scope.get("result"))
    outcome = ("returned", results)
except BaseException as error:
    outcome = ("raised", [kind.__name__ for kind in type(error).__mro__], f"{error}; {values}")
with open(sys.argv[1], "wb") as file:
    pickle.dump(outcome, file)
os._exit(0)
"""


WITHOUT_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}


def address(array):
    return array.__array_interface__["data"][0]


class Cases:
    def __init__(self, directory):
        self._file = directory / "case"

    def run(self, code, cases):
        """Runs cases in one process, each with its names; stops at the first that fails.

        Returns ("returned", the `result` of each), ("raised", MRO, message) or ("killed", signal).
        """
        self._file.write_bytes(pickle.dumps((code, cases)))
        done = interpreters.run(["-c", PROGRAM, self._file], env=WITHOUT_GPU)
        if done.returncode < 0:
            return "killed", -done.returncode
        assert done.returncode == 0, done.stderr
        return pickle.loads(self._file.read_bytes())

    def results(self, code, cases):
        outcome = self.run(code, cases)
        assert outcome[0] == "returned", outcome
        return outcome[1]

    def result(self, code, **values):
        return self.results(code, [values])[0]


@pytest.fixture
def cases(tmp_path):
    return Cases(tmp_path)
