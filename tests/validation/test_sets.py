"""What counts as one set or as several, which of them is validated live, and how many workers they get."""

import dataclasses

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy, ValidationSet
from overlap_train._validation.sets import SetRequest, prepare_sets
from overlap_train._validation.validation_sources import ValidationSources, named_sets
from tests.networks import arrays, linear
from tests.pools import sequential
from tests.whole_fits.test_own_methods import OwnTestFunction, PassesOn

X, Y = arrays(40)


def request_of(model, *, policy=None, **options):
    settings = Trainer(model, validation=policy or ValidationPolicy(workers=3))._settings()
    return SetRequest(settings, ValidationSources(model, {}), **options)


def prepared_of(request, sets):
    return prepare_sets(dataclasses.replace(request, sources=ValidationSources(request.model, sets)), sets)


def of_data(data, **options):
    return {"": ValidationSet(data=data, **options)}


def test_sets_of_the_same_kind_share_a_trace():
    sets = {"a": ValidationSet(data=(X, Y)), "b": ValidationSet(data=(X[:9], Y[:9]))}
    first, second = prepared_of(request_of(sequential()), sets)
    assert first.step is second.step


class SetsWeights(keras.callbacks.Callback):
    def on_test_batch_end(self, batch, logs=None):
        self.model.set_weights(self.model.get_weights())


SCALE = tf.Variable(2.0, name="scale")


@pytest.mark.parametrize(
    ("kind", "options", "identifier", "cause"),
    [
        (OwnTestFunction, {}, "model-evaluates", "OwnTestFunction makes its test function itself"),
        (PassesOn, {}, "model-evaluates", "PassesOn has an evaluate of its own"),
        (keras.Sequential, {"run_eagerly": True}, "model-eager", "eagerly"),
        (keras.Sequential, {"callbacks": [SetsWeights()]}, "callback-validates", "between its batches"),
        (keras.Sequential, {"preprocessed": SCALE}, "data-follows", "what no pass holds (scale)"),
    ],
    ids=["test function", "evaluate", "eager", "a callback", "a variable"],
)
def test_what_no_snapshot_can_foresee_is_validated_live_and_says_why(kind, options, identifier, cause):
    model = linear(kind=kind, run_eagerly=options.get("run_eagerly", False))
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)
    if scale := options.get("preprocessed"):
        data = data.map(lambda x, y: (x * scale, y))
    explained = Trainer(model).explain(
        X, Y, validation_data=data, callbacks=options.get("callbacks", []), epochs=2
    )
    assert identifier == explained.reasons[0].identifier
    assert cause in explained.reasons[0].sentence


def test_steps_are_whole_groups_where_keras_groups_them():
    model = linear(steps_per_execution=3)
    (prepared,) = prepared_of(request_of(model), of_data((X, Y), batch_size=4, steps=4))
    assert prepared.batches.num_batches == 6


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
