"""What a user may say refuses what cannot be meant, saying what came and what was expected."""

import dataclasses
import re
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import overlap_train
from overlap_train import CheckpointPolicy, EvaluationFunction, ExecutionPlan, ValidationPolicy, ValidationSet
from overlap_train.options.checkpoint import checkpoint_policy
from overlap_train.options.functions import metric_values, require_functions, split_functions
from tests import interpreters


def test_the_defaults_are_the_documented_ones_and_do_not_change(monkeypatch):
    policy = ValidationPolicy()
    found = (policy.max_lag, policy.backlog, policy.on_change, policy.timeout_s)
    assert found == (1, "block", "rollback", None)
    assert policy.resolved_workers >= 1
    assert ValidationPolicy(workers=7).resolved_workers == 7
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.max_lag = 2
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {3})  # whatever the machine has
    assert ValidationPolicy().resolved_workers == 1


def mean_output(model):
    return 1.0


REFUSED = {
    ValidationPolicy: [
        ({"workers": 0}, ValueError, "workers must be at least 1; got 0"),
        (
            {"workers": True},
            TypeError,
            r"workers must be an integer, a sequence of devices .*; got True of type bool",
        ),
        ({"backlog": "wait"}, ValueError, "backlog must be one of 'block'.*; got 'wait'"),
        ({"timeout_s": float("inf")}, ValueError, "timeout_s must be finite; got inf"),
        ({"workers": "GPU:0"}, TypeError, "workers must be an integer, a sequence of devices"),
        ({"workers": ()}, ValueError, "workers is empty"),
        ({"workers": ("GPU:x",)}, ValueError, "names of devices such as 'GPU:1'; got 'GPU:x'"),
        ({"timeout_s": "5"}, TypeError, "timeout_s must be a number of seconds or None; got '5'"),
        ({"functions": {1: mean_output}}, TypeError, "functions must be a mapping of names"),
        ({"functions": {"": mean_output}}, ValueError, "empty"),
        ({"functions": {"a": keras.Model}}, TypeError, r"functions\['a'\] must be a function"),
    ],
    CheckpointPolicy: [
        ({"directory": 3}, TypeError, "directory must be a path"),
        ({"directory": "d", "every_steps": "5"}, TypeError, "every_steps must be an integer or"),
        ({"directory": "d", "keep": 1.0}, TypeError, "keep must be an int"),
        ({"directory": "d", "every_s": -1}, ValueError, "every_s must be at least 0"),
        ({"directory": "d", "keep_weights": True}, ValueError, "keep_weights must be one of 'all', 'fl"),
    ],
    ExecutionPlan: [
        ({"loop": "fast"}, ValueError, "loop must be one of"),
        ({"batch_splits": 2.0}, TypeError, "batch_splits must be an integer"),
        *(({"jit": jit}, TypeError, "jit must be True, False or 'auto'") for jit in ("yes", 2, None)),
        ({"steps_per_call": 10**30}, ValueError, "steps_per_call must be at most"),
        ({"batch_splits": 4, "jit": True}, ValueError, "exclude each other"),
    ],
    EvaluationFunction: [
        ({"function": 3}, TypeError, "function must be"),
        ({"function": EvaluationFunction(mean_output)}, TypeError, "got an EvaluationFunction"),
        ({"function": mean_output, "freq": 0}, ValueError, "freq must be at least 1"),
        ({"function": mean_output, "clone": 3}, TypeError, "clone must be"),
    ],
    overlap_train.configure: [({"cores": "2"}, TypeError, "cores must be an integer")],
}


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [(kind, *case) for kind, cases in REFUSED.items() for case in cases],
    ids=[
        re.sub(" at 0x[0-9a-f]+", "", f"{kind.__name__}-{case[0]}")  # the same in each process of a run
        for kind, cases in REFUSED.items()
        for case in cases
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**arguments)


def test_scalars_of_numpy_are_kept_as_those_of_python():
    numbers = {"workers": np.int32(2), "max_lag": np.int64(1), "timeout_s": np.float32(0.5)}
    policy = ValidationPolicy(overlap=np.str_("always"), **numbers)
    plain = ValidationPolicy(workers=2, max_lag=1, overlap="always", timeout_s=0.5)
    assert policy == plain
    # Hosts compare the texts of their policies.
    assert str(policy) == str(plain)
    plan = ExecutionPlan(loop=np.str_("iterator"), steps_per_call=np.int64(3), jit=np.False_)
    assert plan == ExecutionPlan(loop="iterator", steps_per_call=3, jit=False)
    assert ExecutionPlan(jit=1).jit is True
    assert not ExecutionPlan(batch_splits=1, jit=True).splits, "one split does not exclude XLA"
    kept = CheckpointPolicy("d", every_epochs=np.int64(2), keep=np.int8(1), every_s=np.float32(0))
    assert (kept.every_epochs, kept.keep, type(kept.keep)) == (2, 1, int)


def test_a_directory_is_a_policy_of_its_own_and_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in ("", b"run", 3):
        with pytest.raises((TypeError, ValueError), match="resume must be"):
            checkpoint_policy(wrong)
    assert checkpoint_policy("run") == CheckpointPolicy(directory=str(tmp_path / "run"))
    assert checkpoint_policy(Path("run")).directory == str(tmp_path / "run")
    kept = checkpoint_policy(CheckpointPolicy(directory="run", keep=7, every_s=1.5))
    assert (kept.directory, kept.keep, kept.every_s) == (str(tmp_path / "run"), 7, 1.5)


X, Y = np.zeros((4, 2)), np.zeros(4)


def is_set(value):
    return isinstance(value, tuple | ValidationSet)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (EvaluationFunction(mean_output), TypeError, "without a name"),
        ({"f": EvaluationFunction(mean_output), "x": X}, TypeError, r"validation_data\['x'\]"),
        ({"mean": EvaluationFunction(mean_output)}, ValueError, "both name 'mean'"),
        ({"mean": (X, Y)}, ValueError, "both name 'mean'"),
    ],
)
def test_bad_sets_beside_functions_are_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        split_functions(data, {"mean": mean_output}, is_set)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), {"": 0.5}),
        (True, {"": 1.0}),
        (float("nan"), {"": float("nan")}),
        (tf.constant(0.25, tf.bfloat16), {"": 0.25}),
        ({"a": {"b": 1, "c": {"d": 2}}, "e": 3}, {"a_b": 1.0, "a_c_d": 2.0, "e": 3.0}),
        ({}, {}),
    ],
)
def test_numbers_of_all_kinds_are_taken(value, expected):
    np.testing.assert_equal(metric_values(value), expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "a number or a dict of numbers; got None of type NoneType"),
        (np.ma.masked, "a number or a dict of numbers; got masked of type MaskedConstant"),
        ([0.5], r"got \[0.5\] of type list"),
        (1j, "of type complex"),
        ({"a": {"b": "1"}}, "got '1' of type str for 'a_b'"),
        ({1: 2.0}, "names its values by strings; got 1"),
        ({"a_b": 1.0, "a": {"b": 2.0}}, "two values of the name 'a_b'"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_named_with_its_place(value, message):
    with pytest.raises(ValueError if message.startswith("two") else TypeError, match=message):
        metric_values(value)


def test_plain_functions_are_wrapped_and_others_kept():
    own = EvaluationFunction(mean_output, freq=np.int64(3))
    assert type(own.freq) is int
    found = require_functions("functions", {"plain": mean_output, "own": own})
    assert found["own"] is own
    assert found["plain"] == EvaluationFunction(mean_output)


def test_functions_are_taken_out_of_the_data():
    own, data = EvaluationFunction(mean_output), (X, Y)
    left, functions = split_functions({"clean": data, "own": own}, {"policys": mean_output}, is_set)
    assert (left, list(functions)) == ({"clean": data}, ["policys", "own"])
    assert split_functions({"own": own}, None, is_set) == (None, {"own": own})
    assert split_functions(data, None, is_set) == (data, {})
    assert split_functions(None, None, is_set) == (None, {})
    inputs = {"left": X, "right": Y}  # by name, of one set
    assert split_functions(inputs, {"left": mean_output}, is_set)[0] is inputs


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
