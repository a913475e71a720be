"""Thread settings reach TensorFlow before it starts; afterwards a warning says what to do."""

from __future__ import annotations

import pytest

import overlap_train
from tests import interpreters

EARLY = """
import warnings; warnings.simplefilter("error", RuntimeWarning)
import overlap_train
print(overlap_train.configure(cores=2)); overlap_train.configure(cores=2)
import tensorflow as tf
tf.constant(1)
overlap_train.configure(cores=2)
from overlap_train.options.threads import splits_pay
print(tf.config.threading.get_intra_op_parallelism_threads(), splits_pay())
try:
    overlap_train.configure(cores=3)
except RuntimeWarning as warning:
    print(warning)
"""


def test_before_start_it_takes_effect_and_afterwards_it_warns():
    run = interpreters.run(["-c", EARLY], check=True, timeout=150)
    lines = run.stdout.splitlines()
    assert lines[0] == "TensorFlow uses 1 intra-op and 2 inter-op threads"
    assert lines[1].startswith("1 ")
    assert "came too late" in lines[2]
    assert "right after the imports" in lines[2]


@pytest.mark.parametrize("arguments", [{"cores": 0}, {"intra_op_threads": -1}])
def test_counts_below_one_are_refused(arguments):
    with pytest.raises(ValueError, match="at least 1"):
        overlap_train.configure(**arguments)


def test_other_types_are_refused():
    with pytest.raises(TypeError, match="cores must be an integer"):
        overlap_train.configure(cores="2")
