"""The Python attributes of a model: a function sees those of its epoch, as Keras's `on_epoch_end` would."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._validation.private_model import Attributes, watched
from tests.networks import CLASSES, FEATURES, arrays, crossentropy

X, Y = arrays(48)


class Scaled(keras.layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.scale, self.names, self._hidden = 1.0, ["a"], 5

    def call(self, x):
        return x


def model():
    keras.utils.set_random_seed(5)
    made = keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(CLASSES), Scaled()])
    made.threshold, made.table, made.lock = 0.5, np.zeros(2), threading.Lock()
    made.compile("sgd", crossentropy())
    return made


def test_a_copy_gets_what_was_set_and_nothing_that_is_set_later():
    own, copy = model(), model()
    own.threshold, own.layers[-1].scale, own.layers[-1]._hidden = 2.0, 3.0, 7
    own.names = {"best": ["x"]}
    taken = Attributes.of(own)
    own.threshold, own.table[0] = 9.0, 9.0
    own.names["best"].append("y")
    taken.give(copy, None)
    assert (copy.threshold, copy.layers[-1].scale, copy.layers[-1]._hidden) == (2.0, 3.0, 7)
    assert (copy.names, copy.table[0], copy.lock is own.lock) == ({"best": ["x"]}, 0.0, True)
    del own.names
    Attributes.of(own).give(copy, taken)
    assert not hasattr(copy, "names")
    assert copy.threshold == 9.0


def test_a_copy_keeps_its_own_layers_and_variables():
    own, copy = model(), model()
    own.head, own.parts, own.counter = own.layers[0], [own.layers[0]], keras.Variable(1.0)
    names = set().union(*Attributes.of(own).values)
    assert not names & {"head", "parts", "counter", "optimizer", "history", "stop_training"}
    Attributes.of(own).give(copy, None)
    assert copy.layers[0] is not own.layers[0]


def test_a_copy_computes_with_the_activation_that_was_set():
    own, copy = model(), model()
    before = Attributes.of(own)
    own.layers[0].activation = keras.activations.tanh
    own.layers[-1].own = lambda x: own.layers[0](x)
    taken = Attributes.of(own)
    taken.give(copy, None)
    assert copy.layers[0].activation is not keras.activations.tanh, "a clone that has another one is no copy"
    taken.give(copy, before)
    assert copy.layers[0].activation is keras.activations.tanh
    assert not hasattr(copy.layers[-1], "own")
    assert taken.changed(before) == "Dense.activation"


def test_what_has_been_set_is_named():
    own = model()
    changed = watched(own, looked_at=True)
    assert changed() is None
    own.table[1] = 1.0
    assert changed() == "a callback set Sequential.table, at which evaluation functions may look"
    changed = watched(own, looked_at=True)
    own.layers[-1].names.append("b")
    assert "Scaled.names" in changed()
    assert watched(own, looked_at=False)() is None


class Sets(keras.callbacks.Callback):
    """Sets attributes of each kind in one of its hooks."""

    overlap_safe = True

    def __init__(self, hook):
        super().__init__()
        setattr(self, hook, self._set)

    def _set(self, epoch, logs=None):
        self.model.threshold += 1.0
        self.model.table[0] = epoch
        self.model.layers[-1].names.append(str(epoch))
        if epoch == 1:
            self.model.later = 100.0


def look(of):
    return of.threshold + 10 * of.table[0] + len(of.layers[-1].names) + getattr(of, "later", 0.0)


@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end", "on_train_batch_end"])
@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.by_default("0-on_epoch_end", "1-on_epoch_begin", "0-on_train_batch_end")
def test_a_function_sees_the_model_as_a_callback_behind_the_epoch(hook, lag):
    expected = []

    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            expected.append(look(self.model))

    call = dict(batch_size=16, epochs=4, verbose=0)
    model().fit(X, Y, callbacks=[Looks(), Sets(hook)], **call)
    policy = ValidationPolicy(functions={"f": look}, max_lag=lag, overlap="always")
    sets = Sets(hook)
    if hook != "on_epoch_end":
        del type(sets).overlap_safe
    try:
        trainer = Trainer(model(), validation=policy)
        history = trainer.fit(X, Y, callbacks=[sets], **call)
    finally:
        Sets.overlap_safe = True
    assert history.history["val_f"] == expected
    if lag and hook == "on_epoch_end":
        assert any("back to the end of epoch" in text for text in trainer.messages)
