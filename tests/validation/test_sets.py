"""What counts as one set or as several, which of them is validated live, and how many workers they get."""

from __future__ import annotations

import contextlib
import dataclasses

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from overlap_train._snapshot import ModelState
from overlap_train._validation.live import KerasEvaluation, LiveRunner
from overlap_train._validation.runner import ValidationRunner
from overlap_train._validation.sets import SetRequest, build_suite, prepare_sets
from overlap_train._validation.validation_sources import ValidationSources, named_sets
from tests.networks import CLASSES, FEATURES, arrays, crossentropy
from tests.pools import sequential

X, Y = arrays(40)


def dataset(size=8):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size)


def generator():
    yield X, Y


def request_of(model, *, policy=None, **options):
    settings = Trainer(model, validation=policy or ValidationPolicy(workers=3))._settings()
    return SetRequest(settings, ValidationSources(model, {}), **options)


def prepared_of(request, sets):
    return prepare_sets(dataclasses.replace(request, sources=ValidationSources(request.model, sets)), sets)


def of_data(data, **options):
    return {"": ValidationSet(data=data, **options)}


def suite_of(request, sets, resources):
    request = dataclasses.replace(request, sources=ValidationSources(request.model, sets))
    prepared = prepare_sets(request, sets)
    variables = [v for each in prepared if each.step is not None for v in each.step.variables]
    state = ModelState(request.model, variables)
    return build_suite(request, prepared, state, lambda span: None, resources), prepared


class OwnEvaluate(keras.Sequential):
    def evaluate(self, *arguments, **options):
        return super().evaluate(*arguments, **options)


class OwnTestFunction(keras.Sequential):
    def make_test_function(self, force=False):
        return super().make_test_function(force)


def small(kind=keras.Sequential, **options):
    model = kind([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", crossentropy(), **options)
    return model


def test_sets_of_the_same_kind_share_a_trace():
    sets = {"a": ValidationSet(data=(X, Y)), "b": ValidationSet(data=(X[:9], Y[:9]))}
    first, second = prepared_of(request_of(sequential()), sets)
    assert first.step is second.step


@pytest.mark.parametrize(
    ("kind", "options", "within", "reason"),
    [
        (OwnTestFunction, {}, False, "model-evaluates"),
        (OwnEvaluate, {}, False, "model-evaluates"),
        (OwnEvaluate, {}, True, None),
        (keras.Sequential, {"run_eagerly": True}, False, "model-eager"),
    ],
)
def test_models_that_validate_by_themselves_are_live(kind, options, within, reason):
    request = request_of(small(kind, **options), within_evaluate=within)
    (prepared,) = prepared_of(request, of_data((X, Y)))
    assert (prepared.live and prepared.live.identifier) == reason
    with contextlib.ExitStack() as resources:
        suite, _ = suite_of(request, of_data((X, Y)), resources)
        runner = suite._sets[""].runner
        if reason is None:
            assert type(runner) is ValidationRunner
        else:
            assert type(runner) is LiveRunner
            assert type(runner._validate) is KerasEvaluation
            assert suite.reasons == [prepared.live]


SCALE = tf.Variable(2.0, name="scale")


@pytest.mark.parametrize(
    ("data", "options", "identifier", "cause"),
    [
        ((X, Y), {"acts": "SetsWeights"}, "callback-validates", "SetsWeights between its batches"),
        (dataset().map(lambda x, y: (x * SCALE, y)), {}, "data-follows", "what no pass holds (scale)"),
        (dataset().shuffle(9), {"sets_before": "Swaps"}, "callback-validates", "Swaps.on_test_begin"),
    ],
    ids=["acts between batches", "reads a variable", "set before batches that are drawn"],
)
def test_what_no_snapshot_can_foresee_makes_it_live_and_says_why(data, options, identifier, cause):
    (prepared,) = prepared_of(request_of(sequential(), **options), of_data(data))
    assert prepared.live.identifier == identifier
    assert cause in prepared.live.sentence


def test_steps_are_whole_groups_where_keras_groups_them():
    model = small(steps_per_execution=3)
    (prepared,) = prepared_of(request_of(model), of_data((X, Y), batch_size=4, steps=4))
    assert prepared.batches.num_batches == 6


@pytest.mark.cpu_only("validations on a GPU take no cores from the training")
@pytest.mark.parametrize(
    ("sizes", "options", "expected"),
    [
        ([8], {}, 3),
        ([20], {}, 2),
        ([40], {}, 1),
        ([40, 40], {}, 2),
        ([8, 8], {"policy": ValidationPolicy(workers=4)}, 4),
        ([4], {"listened": True}, 1),  # cannot be divided
        (
            [4],
            {"policy": ValidationPolicy(workers=("CPU:0",))},
            0,
        ),  # of those that take cores from the training
        ([4], {"model": small(run_eagerly=True)}, 0),  # live
    ],
)
def test_there_are_as_many_workers_as_batches_can_keep_busy(sizes, options, expected):
    request = request_of(**{"model": sequential(), **options})
    sets = {f"set {i}": ValidationSet(data=(X, Y), batch_size=size) for i, size in enumerate(sizes)}
    with contextlib.ExitStack() as resources:
        suite, _ = suite_of(request, sets, resources)
        assert (0 if suite._pool is None else len(suite._pool._threads)) == expected
        assert suite.shares_cores is bool(expected)


@pytest.mark.parametrize("device", ["GPU:7", "CPU:9", "/device:CPU:9"])
def test_a_device_that_is_not_there_is_named_with_those_that_are(device):
    request = request_of(sequential(), policy=ValidationPolicy(workers=("CPU:0", device)))
    with pytest.raises(ValueError, match=f"there is no device '{device}'; TensorFlow has CPU:0"):
        prepared_of(request, of_data((X, Y)))


DEFAULT = ValidationSet(data=None, freq=3, steps=7, batch_size=8)


@pytest.mark.parametrize("data", [(X, Y), {"left": X, "right": Y}, {"left": X, "both": (X, Y)}])
def test_data_alone_is_one_set_without_a_name(data):
    (chosen,) = named_sets(data, DEFAULT).items()
    assert chosen[0] == ""
    assert chosen[1] == dataclasses.replace(DEFAULT, data=chosen[1].data)
    assert chosen[1].data is data


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({}, ValueError, "validation_data is an empty dict"),
        ({3: (X, Y)}, TypeError, "names of validation sets must be strings; got 3"),
        ({"": (X, Y)}, ValueError, "must not be empty"),
        ({"a": (X, Y), "b": None}, TypeError, r"validation_data\['b'\] is None; leave this set out"),
        ({"a": ValidationSet(data=None)}, TypeError, r"validation_data\['a'\] is None"),
    ],
)
def test_sets_that_cannot_be_meant_are_refused_by_name(data, error, message):
    with pytest.raises(error, match=message):
        named_sets(data, DEFAULT)
