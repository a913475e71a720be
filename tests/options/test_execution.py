"""An execution plan refuses what cannot be meant, before anything starts."""

from __future__ import annotations

import numpy as np
import pytest

from overlap_train import ExecutionPlan


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"loop": "fast"}, ValueError, "loop must be one of"),
        ({"steps_per_call": 0}, ValueError, "at least 1"),
        ({"steps_per_call": "many"}, ValueError, "integer or 'auto'"),
        ({"batch_splits": 2.0}, TypeError, "batch_splits must be an integer"),
        ({"batch_splits": True}, TypeError, "batch_splits must be an integer"),
        ({"jit": "yes"}, TypeError, "jit must be True, False or 'auto'"),
        ({"jit": 2}, TypeError, "jit must be True, False or 'auto'"),
        ({"jit": None}, TypeError, "jit must be True, False or 'auto'"),
        ({"steps_per_call": 10**30}, ValueError, "steps_per_call must be at most"),
        ({"batch_splits": 4, "jit": True}, ValueError, "exclude each other"),
    ],
)
def test_bad_values_are_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        ExecutionPlan(**arguments)


def test_one_split_does_not_exclude_xla():
    assert not ExecutionPlan(batch_splits=1, jit=True).splits


def test_scalars_of_numpy_are_kept_as_those_of_python():
    plan = ExecutionPlan(loop=np.str_("iterator"), steps_per_call=np.int64(3), jit=np.False_)
    assert plan == ExecutionPlan(loop="iterator", steps_per_call=3, jit=False)
    assert ExecutionPlan(jit=1).jit is True
