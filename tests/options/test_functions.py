"""What a user says of an evaluation function, and what may come back from one."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, ValidationPolicy, ValidationSet
from overlap_train.options.functions import metric_values, require_functions, split_functions

X, Y = np.zeros((4, 2)), np.zeros(4)


def mean_output(model):
    return 1.0


def is_set(value):
    return isinstance(value, tuple | ValidationSet)


@pytest.mark.parametrize(
    ("functions", "error", "message"),
    [
        ([mean_output], TypeError, "functions must be a mapping"),
        ({1: mean_output}, TypeError, "functions must be a mapping of names"),
        ({"": mean_output}, ValueError, "empty"),
        ({"a": 3}, TypeError, r"functions\['a'\] must be a function"),
        ({"a": keras.Model}, TypeError, r"functions\['a'\] must be a function"),
    ],
)
def test_bad_functions_are_refused_by_name(functions, error, message):
    with pytest.raises(error, match=message):
        ValidationPolicy(functions=functions)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (EvaluationFunction(mean_output), TypeError, "without a name"),
        ({"f": EvaluationFunction(mean_output), "x": X}, TypeError, r"validation_data\['x'\]"),
        ({"mean": EvaluationFunction(mean_output)}, ValueError, "both name 'mean'"),
        ({"mean": (X, Y)}, ValueError, "both name 'mean'"),
        ({"": EvaluationFunction(mean_output)}, ValueError, "empty"),
        (
            {"f": mean_output},
            TypeError,
            r"\['f'\] is a function; pass EvaluationFunction\(mean_output\)",
        ),
    ],
)
def test_bad_sets_beside_functions_are_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        split_functions(data, {"mean": mean_output}, is_set)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), {"": 0.5}),
        (np.array(2), {"": 2.0}),
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
        ({"a": np.ma.masked_array(1.0, mask=True)}, "a number or a dict of numbers"),
        ([0.5], r"got \[0.5\] of type list"),
        (1j, "of type complex"),
        (np.zeros(2), "of type ndarray"),
        ({"a": {"b": "1"}}, "got '1' of type str for 'a_b'"),
        ({1: 2.0}, "names its values by strings; got 1"),
        ({"a": {"": 1.0}}, "names its values by strings; got ''"),
    ],
    ids=repr,
)
def test_what_is_no_number_is_named_with_its_place(value, message):
    with pytest.raises(TypeError, match=message):
        metric_values(value)


def test_two_values_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two values of the name 'a_b'"):
        metric_values({"a_b": 1.0, "a": {"b": 2.0}})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"function": 3}, TypeError, "function must be"),
        ({"function": EvaluationFunction(mean_output)}, TypeError, "got an EvaluationFunction"),
        ({"freq": 0}, ValueError, "freq must be at least 1"),
        ({"freq": "often"}, TypeError, "freq"),
        ({"backend": "process"}, TypeError, "EvaluationFunction has no argument 'backend'"),
        ({"clone": 3}, TypeError, "clone must be"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        EvaluationFunction(**{"function": mean_output, **options})


def test_plain_functions_are_wrapped_and_others_kept():
    own = EvaluationFunction(mean_output, freq=np.int64(3))
    assert type(own.freq) is int
    found = require_functions("functions", {"plain": mean_output, "own": own})
    assert found["own"] is own
    assert found["plain"] == EvaluationFunction(mean_output)
    assert require_functions("functions", None) == {}


def test_functions_are_taken_out_of_the_data():
    own, data = EvaluationFunction(mean_output), (X, Y)
    left, functions = split_functions({"clean": data, "own": own}, {"policys": mean_output}, is_set)
    assert (left, list(functions)) == ({"clean": data}, ["policys", "own"])
    assert split_functions({"own": own}, None, is_set) == (None, {"own": own})
    assert split_functions(data, None, is_set) == (data, {})
    assert split_functions(None, None, is_set) == (None, {})
    inputs = {"left": X, "right": Y}  # by name, of one set
    assert split_functions(inputs, {"left": mean_output}, is_set)[0] is inputs
