"""Callbacks that are changed while they train: by themselves or by others, in a class, a list or a global."""

import types

import keras
import pytest

from overlap_train._callbacks.grounds import Grounds
from tests.networks import arrays, sequential
from tests.whole_fits.comparing import AtEpoch, assert_as_keras

Callback = keras.callbacks.Callback
RATE = 0.1
TRAINED = []


def quiet(batch): ...


def loud(batch):
    TRAINED[0].optimizer.learning_rate.assign(0.3)


HOOK = quiet


class Asks(Callback):
    """Notes batches, and acts as well once it has been told to, in one of several ways."""

    def __init__(self):
        super().__init__()
        self.hook = quiet
        self.kept = []

    def on_train_batch_end(self, batch, logs=None):
        self.kept.append(batch)
        self.hook(batch)
        HOOK(batch)


def attribute(callback):
    callback.hook = loud


def kept(callback):
    callback.kept = [callback.model]


def method(callback):
    callback.on_train_batch_end = types.MethodType(lambda self, batch, logs=None: loud(batch), callback)


def other_hook(callback):
    callback.on_train_batch_begin = types.MethodType(lambda self, batch, logs=None: loud(batch), callback)


def of_the_class(callback):
    type(callback).on_train_batch_end = lambda self, batch, logs=None: loud(batch)


def class_itself(callback):
    callback.__class__ = type(
        "Other", (Asks,), {"on_test_batch_end": lambda self, batch, logs=None: loud(batch)}
    )


def global_name(callback):
    global HOOK
    HOOK = loud


WAYS = (attribute, kept, method, other_hook, of_the_class, class_itself, global_name)


@pytest.fixture(autouse=True)
def put_back(monkeypatch):
    monkeypatch.setitem(globals(), "HOOK", quiet)
    monkeypatch.setitem(globals(), "RATE", 0.1)


def own_class():
    return type("Own", (Asks,), {"on_train_batch_end": Asks.on_train_batch_end})


@pytest.mark.parametrize("change", WAYS)
def test_a_change_of_a_callback_is_noticed(change):
    callback = own_class()()
    TRAINED[:] = [keras.Model()]
    callback.set_model(TRAINED[0])
    grounds = Grounds(keras.callbacks.CallbackList([callback]))
    assert grounds.changed() is None
    callback.unrelated = 5
    assert grounds.changed() is None
    change(callback)
    assert grounds.changed() is not None


def test_a_setting_of_a_stock_callback_is_noticed():
    saver = keras.callbacks.ModelCheckpoint("m.keras")
    grounds = Grounds(keras.callbacks.CallbackList([saver]))
    saver.save_freq = 3
    assert grounds.changed() is not None


def cut_rate(callback):
    global RATE
    RATE = 0.01


@pytest.mark.parametrize("change", [attribute, global_name, method, cut_rate])
# A test above shows for each way that it is noticed.
@pytest.mark.by_default("cut_rate")
def test_an_epoch_that_ran_ahead_of_a_change_is_trained_again(change, monkeypatch):
    def run(trained):
        monkeypatch.setitem(globals(), "HOOK", quiet)
        monkeypatch.setitem(globals(), "RATE", 0.1)
        TRAINED[:] = [getattr(trained, "model", trained)]
        scheduled = keras.callbacks.LearningRateScheduler(lambda epoch: RATE)
        callback = scheduled if change is cut_rate else own_class()()
        changes = AtEpoch(lambda _, epoch: change(callback) if epoch == 1 else None)
        given = dict(callbacks=[callback, changes], validation_data=arrays(32, 1))
        trained.fit(*arrays(96), epochs=4, batch_size=32, verbose=0, **given)

    assert_as_keras(run, build=lambda: sequential(keras.optimizers.SGD(0.1)))
