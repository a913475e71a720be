"""The callbacks of libraries are known, one by one, as far as the library's own code runs."""

from __future__ import annotations

import functools
import sys
import types

import keras
import pytest
from tqdm import tqdm
from tqdm.keras import TqdmCallback

from overlap_train._callbacks.hooks import (
    Known,
    hook_that_waits,
    knowledge_of,
    may_change_training,
    only_watches,
    wants_train_batches,
)

kc = keras.callbacks


@pytest.fixture
def library(monkeypatch):
    """Returns what makes a class of a library, as that of a module in its package."""

    def make(package, name, base=kc.Callback, **hooks):
        module = types.ModuleType(f"{package}.keras")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        members = {
            hook: types.FunctionType(function.__code__, vars(module), function.__name__)
            for hook, function in hooks.items()
        }
        vars(module)["print"] = print
        return type(name, (base,), {**members, "__module__": module.__name__})

    return make


def acts(self, batch, logs=None):
    print(self.model)


LOGGERS = {
    "mlflow, epochs": ("mlflow", "MlflowCallback", {"log_every_n_steps": None}, Known.IDLE),
    "mlflow, batches": ("mlflow", "MlflowCallback", {"log_every_n_steps": 5}, None),
    "wandb, epochs": ("wandb", "WandbMetricsLogger", {"logging_batch_wise": False}, Known.NOTES),
    "wandb, batches": ("wandb", "WandbMetricsLogger", {"logging_batch_wise": True}, None),
    "wandb, models": ("wandb", "WandbModelCheckpoint", {"save_freq": "epoch"}, Known.IDLE),
    "comet": ("comet_ml", "CometKerasCallback", {}, Known.NOTES),
    "of no known name": ("wandb", "WandbCallback", {}, None),
    "of no known library": ("elsewhere", "MlflowCallback", {"log_every_n_steps": None}, None),
}


@pytest.mark.parametrize(("package", "name", "settings", "known"), LOGGERS.values(), ids=LOGGERS)
def test_a_logger_is_known_with_its_settings(library, package, name, settings, known):
    callback = library(package, name, on_train_batch_end=acts)()
    vars(callback).update(settings)
    assert knowledge_of(callback, "on_train_batch_end") is known
    assert only_watches(callback) is (package != "elsewhere")
    waits = hook_that_waits(callback, watched=False, late=True)
    assert waits == (None if known else "on_train_batch_end")
    assert wants_train_batches(callback) is (known is not Known.IDLE)


class OwnSave(kc.ModelCheckpoint):
    def _should_save_on_batch(self, batch):
        return batch == 3


class OwnHook(kc.ModelCheckpoint):
    @functools.wraps(kc.ModelCheckpoint.on_train_batch_end)
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


class OwnEnd(kc.ModelCheckpoint):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


@pytest.mark.parametrize(("kind", "known"), [(OwnEnd, True), (OwnSave, False), (OwnHook, False)])
def test_a_subclass_is_known_as_far_as_the_library_s_own_code_runs(kind, known):
    callback = kind("m.keras")
    assert wants_train_batches(callback) is not known
    assert may_change_training(callback)


def test_the_bars_of_tqdm_show_what_they_are_given():
    class OwnBar(tqdm):
        def update(self, n=1):
            print(n)

    for verbose in (0, 1, 2):
        bars = TqdmCallback(verbose=verbose, disable=True)
        bars.set_params({"steps": 2, "epochs": 3})
        for _ in range(2):
            assert hook_that_waits(bars, watched=True, late=True) is None
            assert not may_change_training(bars)
            bars.on_epoch_begin(0)
    own = TqdmCallback(tqdm_class=functools.partial(OwnBar, disable=True))
    assert hook_that_waits(own, watched=False, late=True) == "on_batch_end"


class Tuner:
    def on_batch_end(self, trial, model, batch, logs=None): ...

    on_epoch_begin = on_batch_begin = on_epoch_end = on_batch_end


class Acting(Tuner):
    def on_batch_end(self, trial, model, batch, logs=None):
        model.optimizer.learning_rate = 0.5


def calls_tuner(self, batch, logs=None):
    print(self.tuner)


def test_a_tuner_s_hooks_may_be_the_user_s(library):
    hooks = dict.fromkeys(("on_epoch_begin", "on_batch_end", "on_epoch_end"), calls_tuner)
    callback = library("keras_tuner", "TunerCallback", **hooks)()
    own = {name: member for name, member in vars(Tuner).items() if isinstance(member, types.FunctionType)}
    callback.tuner = library("keras_tuner", "Tuner", object, **own)()
    assert not wants_train_batches(callback)
    assert hook_that_waits(callback, watched=True, late=True) is None
    assert not may_change_training(callback)
    callback.tuner = type("Mine", (type(callback.tuner),), {"on_batch_end": Acting.on_batch_end})()
    assert hook_that_waits(callback, watched=False, late=True) == "on_batch_end"
    assert may_change_training(callback)
