"""Which callbacks let the training group steps and run ahead: Keras's, people's and those of libraries."""

import functools
import sys
import types

import keras
import pytest
from tqdm import tqdm
from tqdm.keras import TqdmCallback

from overlap_train import EpochOnly
from overlap_train._callbacks.hooks import (
    acts_in,
    asks_schedule,
    hook_that_waits,
    may_change_training,
    overrides,
    wants_test_batches,
    wants_train_batches,
)

kc = keras.callbacks


class Begins(kc.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1


def waits(callback, *, watched=False, late=True):
    return hook_that_waits(callback, watched=watched, late=late)


@pytest.mark.parametrize("hook", ["on_train_batch_begin", "on_train_batch_end", "on_batch_end"])
def test_an_override_of_a_batch_hook_is_heard_in_class_and_instance(hook):
    kind = type("Mine", (kc.Callback,), {hook: lambda self, batch, logs=None: self.model.stop()})
    assert wants_train_batches(kind())
    assert waits(kind()) == hook
    instance = kc.Callback()
    setattr(instance, hook, lambda batch, logs=None: keras.backend.set_epsilon(batch))
    assert overrides(instance, hook)
    assert wants_train_batches(instance)


def test_a_hook_that_is_put_into_the_class_of_all_callbacks_is_heard(monkeypatch):
    monkeypatch.setattr(kc.Callback, "on_train_batch_end", lambda self, batch, logs=None: self.model.stop())
    assert wants_train_batches(kc.History())
    assert waits(kc.History()) == "on_train_batch_end"


def test_saving_in_the_middle_of_an_epoch_is_heard(tmp_path):
    assert wants_train_batches(kc.ModelCheckpoint(tmp_path / "m.keras", save_freq=10))
    assert wants_train_batches(kc.TensorBoard(tmp_path, update_freq=5))
    assert wants_test_batches(kc.TensorBoard(tmp_path, update_freq="batch"))
    assert wants_train_batches(kc.TensorBoard(tmp_path, profile_batch=3))


def test_a_subclass_of_a_scheduler_may_set_anything():
    scheduler = type("Scheduler", (kc.LearningRateScheduler,), {"on_epoch_begin": Begins.on_epoch_begin})
    assert not asks_schedule(scheduler(lambda epoch: 0.1))


def test_a_beginning_of_an_epoch_waits_only_where_it_cannot_be_called_late_or_is_watched():
    assert waits(Begins()) is None
    assert waits(Begins(), watched=True) == waits(Begins(), late=False) == "on_epoch_begin"
    assert not wants_train_batches(Begins())


def test_an_empty_hook_is_not_called():
    class Empty(kc.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            """Called at the beginning of a batch."""

        def on_test_batch_end(self, batch, logs=None):
            return None

    assert not wants_train_batches(Empty())
    assert not wants_test_batches(Empty())
    assert waits(Empty(), late=False) is None


class Logs(kc.Callback):
    def on_test_begin(self, logs=None):
        self.begun = True


class Swaps(kc.Callback):
    def on_test_begin(self, logs=None):
        self.model.set_weights([])


class OwnBoard(kc.TensorBoard):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)


@pytest.mark.parametrize(
    ("build", "sets"),
    [
        (kc.History, False),
        (Logs, False),
        (Swaps, True),
        (type("Declared", (Swaps,), {"overlap_safe": True}), False),
        (lambda: OwnBoard("tb"), False),
    ],
)
def test_who_may_set_the_model_as_a_validation_begins(build, sets):
    assert acts_in(build(), ["on_test_begin"]) is sets


# Of libraries.


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
            assert waits(bars, watched=True) is None
            assert not may_change_training(bars)
            bars.on_epoch_begin(0)
    own = TqdmCallback(tqdm_class=functools.partial(OwnBar, disable=True))
    assert waits(own) == "on_batch_end"


class Tuner:
    def on_batch_end(self, trial, model, batch, logs=None): ...

    on_epoch_begin = on_batch_begin = on_epoch_end = on_batch_end


class Acting(Tuner):
    def on_batch_end(self, trial, model, batch, logs=None):
        model.optimizer.learning_rate = 0.5


def test_a_tuner_s_hooks_may_be_the_user_s(library):
    hooks = dict.fromkeys(("on_epoch_begin", "on_batch_end", "on_epoch_end"), acts)
    callback = library("keras_tuner", "TunerCallback", **hooks)()
    own = {name: member for name, member in vars(Tuner).items() if isinstance(member, types.FunctionType)}
    callback.tuner = library("keras_tuner", "Tuner", object, **own)()
    assert not wants_train_batches(callback)
    assert waits(callback, watched=True) is None
    assert not may_change_training(callback)
    callback.tuner = type("Mine", (type(callback.tuner),), {"on_batch_end": Acting.on_batch_end})()
    assert waits(callback) == "on_batch_end"
    assert may_change_training(callback)


# Without its hooks of batches.


class Busy(kc.Callback):
    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_batch_end(self, batch, logs=None):
        self.model.trainable = True
        self.calls.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append(("end", epoch))


class BusyAtBegins(Busy):
    on_epoch_begin = Begins.on_epoch_begin


def test_the_batches_are_left_out_and_hold_nothing_up():
    assert wants_train_batches(Busy())
    wrapped = EpochOnly(Busy())
    assert not wants_train_batches(wrapped)
    assert waits(Busy(), watched=True) == "on_train_batch_end"
    assert waits(wrapped, watched=True) is None


def test_what_it_does_at_epochs_still_counts():
    assert waits(EpochOnly(BusyAtBegins()), watched=True) == "on_epoch_begin"
    assert may_change_training(EpochOnly(kc.ReduceLROnPlateau()))
    assert not may_change_training(EpochOnly(kc.CSVLogger("log.csv")))
    for declared in (True, False):
        busy = BusyAtBegins()
        busy.overlap_safe = declared
        assert EpochOnly(busy).overlap_safe is declared
