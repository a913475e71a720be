"""What hooks do, by their code: stand-ins for callbacks of loggers and tuners, and their doubles."""

from __future__ import annotations

import collections
import functools
import logging
import random
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from tqdm.keras import TqdmCallback

from overlap_train._callbacks.doings import Doing
from overlap_train._callbacks.hook_doings import read_hooks
from overlap_train._callbacks.hooks import (
    acts_in_test_batches,
    may_change_training,
    ordering_hooks,
    wants_test_batches,
    wants_train_batches,
)
from overlap_train._callbacks.late import late_callbacks
from tests.callbacks.stand_ins import (
    ActingTuner,
    Counts,
    EveryN,
    Guarded,
    Sends,
    Tuner,
    TunerCallback,
    build_base,
    installed,
)

Callback = keras.callbacks.Callback
LOGGER = logging.getLogger(__name__)
MODEL = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
MODELS = [MODEL]
SCALE = tf.Variable(1.0)


def doing_of(callback, hooks, **arguments):
    return read_hooks(callback, hooks, **arguments).doing


def late(callback, *, watched=False):
    return bool(late_callbacks(keras.callbacks.CallbackList([callback]), watched=watched))


def test_who_returns_at_once_is_not_called():
    for callback in (EveryN(), Guarded(), TunerCallback(Tuner(), object())):
        assert not wants_train_batches(callback)
        assert ordering_hooks(callback) == ()
        assert not late(callback)


def test_the_settings_decide():
    assert wants_train_batches(EveryN(10))
    assert "on_batch_end" in ordering_hooks(EveryN(10))
    assert "on_batch_end" in ordering_hooks(Guarded(10))
    assert late(Counts())
    assert not late(Counts(5))


def test_an_empty_hook_of_another_object_is_looked_up_in_its_class():
    assert "on_batch_end" in ordering_hooks(TunerCallback(ActingTuner(), object()))


def test_who_counts_or_logs_is_called_late():
    for callback in (Counts(), Sends()):
        assert wants_train_batches(callback)
        assert late(callback)


def test_tests_of_batches_that_only_log_are_replayed():
    assert wants_test_batches(Sends())
    assert not acts_in_test_batches(Sends())
    assert not wants_test_batches(build_base(Callback)())


def test_the_bars_of_tqdm():
    bars = TqdmCallback(verbose=1, disable=True)
    assert late(bars, watched=True)
    assert not may_change_training(bars)


@pytest.fixture
def library(tmp_path):
    yield installed(tmp_path)
    del sys.modules["stand_ins_library"]


def test_who_looks_at_the_model_at_an_epoch_s_end_does_not_change_it(library):
    for name in ("EveryN", "Guarded", "Sends", "Counts", "Prunes"):
        assert not may_change_training(getattr(library, name)())
    callback = library.TunerCallback(library.Tuner(), object())
    assert not may_change_training(callback)
    callback = library.TunerCallback(library.ActingTuner(), object())
    assert may_change_training(callback)


def test_what_the_user_s_own_code_keeps_may_be_seen_by_a_generator(library):
    for kind in (Counts, Sends):
        assert may_change_training(kind())
        assert not late(kind(), watched=True)
    assert late(library.Counts(), watched=True)
    assert late(library.Sends(), watched=True)


def test_a_library_s_callback_that_calls_the_user_s_code_is_the_user_s(library):
    class Mine(library.Tuner):
        def on_epoch_begin(self, trial, model, epoch, logs=None):
            self.epoch = epoch

    callback = library.TunerCallback(Mine(), object())
    assert late(callback)
    assert not late(callback, watched=True)


def test_a_setting_that_a_method_may_change_is_not_relied_upon():
    class Opens(EveryN):
        def on_train_begin(self, logs=None):
            self.every_n = 10

    class Opened(EveryN):
        def arm(self, name, value):
            setattr(self, name, value)

    assert ordering_hooks(Opens()) != ()
    assert not late(Opens())
    assert not late(Opened())


HOOKS = {
    "sets a variable": lambda self, batch, logs=None: self.model.optimizer.learning_rate.assign(0.1),
    "sets a global variable": lambda self, batch, logs=None: SCALE.assign(2.0),
    "reaches a model in a list": lambda self, batch, logs=None: MODELS[0].set_weights([]),
    "trains": lambda self, batch, logs=None: self.model.fit(logs),
    "draws": lambda self, batch, logs=None: random.random(),
    "seeds": lambda self, batch, logs=None: np.random.seed(batch),
    "calls a function of Keras": lambda self, batch, logs=None: keras.utils.set_random_seed(batch),
    "calls what it is given": lambda self, batch, logs=None: self.model(logs),
    "hands the model on": lambda self, batch, logs=None: LOGGER.info("%s", self.model),
    "hands itself on": lambda self, batch, logs=None: print(self),
    "maps a function": lambda self, batch, logs=None: list(map(self.act, logs)),
    "evaluates text": lambda self, batch, logs=None: eval("1"),
    "finds attributes by name": lambda self, batch, logs=None: getattr(self, str(batch))(),
    "calls a global function": lambda self, batch, logs=None: act(batch),
    "calls a wrapped function": lambda self, batch, logs=None: wrapped(batch),
    "calls a part of a function": lambda self, batch, logs=None: partial(batch),
}


def act(batch):
    MODEL.trainable = False


wrapped = functools.lru_cache(act)
partial = functools.partial(act)


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_what_may_reach_the_training_is_anything(hook):
    callback = type("Mine", (Callback,), {"on_train_batch_end": hook, "act": lambda self, name: name})()
    assert doing_of(callback, ["on_train_batch_end"]) is Doing.ANYTHING
    assert ordering_hooks(callback) == ("on_train_batch_end",)
    assert not late(callback)
    assert may_change_training(callback)


class Acts:
    """Changes the training whenever Python asks it something by itself."""

    def act(self, *_):
        MODEL.trainable = False
        return 1

    def text(self, *_):
        return str(self.act())

    __bool__ = __len__ = __index__ = __eq__ = __iadd__ = __round__ = __abs__ = act
    __enter__ = __iter__ = __getitem__ = __contains__ = __add__ = __hash__ = act
    __format__ = __str__ = __repr__ = text

    def __exit__(self, *_): ...


class Descriptor(Acts):
    def __get__(self, owner, kind=None):
        return self.act() if owner is not None else self

    def __set__(self, owner, value):
        self.act()


def enter(self, batch, logs=None):
    with self.thing:
        self.seen = batch


def loop(self, batch, logs=None):
    while self.thing:
        self.seen = batch


def branch(self, batch, logs=None):
    if self.thing:
        self.seen = batch


def check(self, batch, logs=None):
    assert self.thing


def add(self, batch, logs=None):
    self.thing += 1


def put(self, batch, logs=None):
    self.computed = batch


ASKING = {
    "set by a descriptor": put,
    "set by a descriptor in turns": lambda self, batch, logs=None: [self.seen for self.computed in (1,)],
    "read by a descriptor": lambda self, batch, logs=None: self.kept.append(self.computed),
    "if": branch,
    "while": loop,
    "assert": check,
    "with": enter,
    "+=": add,
    "not": lambda self, batch, logs=None: self.kept.append(not self.thing),
    "and": lambda self, batch, logs=None: self.thing and self.kept.append(1),
    "or": lambda self, batch, logs=None: self.kept.append(batch or self.thing or 1),
    "conditional": lambda self, batch, logs=None: self.kept.append(1 if self.thing else 2),
    "filter": lambda self, batch, logs=None: [n for n in (1, 2) if self.thing],
    "==": lambda self, batch, logs=None: self.kept.append(self.thing == batch),
    "in": lambda self, batch, logs=None: self.kept.append(batch in self.thing),
    "+": lambda self, batch, logs=None: self.kept.append(self.thing + batch),
    "item": lambda self, batch, logs=None: self.kept.append(self.thing[batch]),
    "for": lambda self, batch, logs=None: [self.kept.append(n) for n in self.thing],
    "text": lambda self, batch, logs=None: self.kept.append(f"{self.thing}"),
    "len": lambda self, batch, logs=None: self.kept.append(len(self.thing)),
    "bool": lambda self, batch, logs=None: self.kept.append(bool(self.thing)),
    "int": lambda self, batch, logs=None: self.kept.append(int(self.thing)),
    "str": lambda self, batch, logs=None: self.kept.append(str(self.thing)),
    "round": lambda self, batch, logs=None: self.kept.append(round(self.thing)),
    "print": lambda self, batch, logs=None: print(self.thing),
    "missing key": lambda self, batch, logs=None: self.kept.append(self.made[batch]),
}


class ActingArray(np.ndarray):
    """Changes the training whenever NumPy makes another one of it, or computes with it."""

    def __array_finalize__(self, source):
        MODEL.trainable = True


def in_place(self, batch, logs=None):
    self.thing += batch


def put_item(self, batch, logs=None):
    self.thing[0] = batch


OF_ARRAYS = {
    "+": lambda self, batch, logs=None: self.kept.append(self.thing + batch),
    "minus": lambda self, batch, logs=None: self.kept.append(-self.thing),
    "<": lambda self, batch, logs=None: self.kept.append(self.thing < batch),
    "item": lambda self, batch, logs=None: self.kept.append(self.thing[:1]),
    "for": lambda self, batch, logs=None: [self.kept.append(row) for row in self.thing],
    "function": lambda self, batch, logs=None: self.kept.append(np.mean(self.thing)),
    "method": lambda self, batch, logs=None: self.kept.append(self.thing.copy()),
    "transposed": lambda self, batch, logs=None: self.kept.append(self.thing.T),
    "text": lambda self, batch, logs=None: self.kept.append(f"{self.thing}"),
    "in a list": lambda self, batch, logs=None: self.kept.append(self.things[0] + batch),
    "+=": in_place,
    "put": put_item,
}


@pytest.mark.parametrize("hook", OF_ARRAYS.values(), ids=OF_ARRAYS)
def test_an_array_of_a_class_of_the_user_s_is_no_data(hook):
    found = []
    for kind in (ActingArray, np.ndarray, np.memmap):
        callback = type("Mine", (Callback,), {"on_train_batch_end": hook})()
        callback.thing, callback.kept = np.zeros((2, 2)).view(kind), []
        callback.things = [callback.thing]
        found.append(doing_of(callback, ["on_train_batch_end"]) is Doing.ANYTHING)
    assert found == [True, False, False]


@pytest.mark.parametrize("hook", ASKING.values(), ids=ASKING)
def test_what_python_asks_of_an_object_by_itself_is_anything(hook):
    attributes = {"on_train_batch_end": hook, "computed": Descriptor()}
    callback = type("Mine", (Callback,), attributes)()
    callback.thing, callback.kept = Acts(), []
    callback.made = collections.defaultdict(lambda: MODEL.reset_states())
    assert doing_of(callback, ["on_train_batch_end"]) is Doing.ANYTHING
    assert not late(callback)


def test_a_property_is_what_its_functions_do():
    class Sets(Callback):
        def acts(self, value):
            self.model.optimizer.learning_rate = value

        def keeps(self, value):
            self.kept = value

        acting, keeping = property(fset=acts), property(fset=keeps)

    class Acting(Sets):
        def on_train_batch_end(self, batch, logs=None):
            self.acting = batch

    class Keeping(Sets):
        def on_train_batch_end(self, batch, logs=None):
            self.keeping = batch

    class Overridden(Callback):
        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)

        def on_train_batch_end(self, batch, logs=None):
            self.kept = batch

    class Read(Callback):
        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

        def on_train_batch_end(self, batch, logs=None):
            print(self.kept)

    expected = {
        Acting: Doing.ANYTHING,
        Keeping: Doing.APART,
        Overridden: Doing.ANYTHING,
        Read: Doing.ANYTHING,
    }
    assert {kind: doing_of(kind(), ["on_train_batch_end"]) for kind in expected} == expected


def test_who_looks_at_the_clock_is_called_in_time():
    class Times(Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

    assert ordering_hooks(Times()) == ("on_train_batch_begin",)
    assert not late(Times())


def test_a_loop_that_carries_the_model_to_its_next_turn_is_seen():
    class Carries(Callback):
        def on_train_batch_end(self, batch, logs=None):
            held = logs
            for _ in range(2):
                if held is not logs:
                    held.trainable = False
                held = self.model

    assert not late(Carries())


def test_a_way_out_of_a_loop_is_not_lost():
    class Leaves(Callback):
        def on_train_batch_end(self, batch, logs=None):
            held = None
            for _ in range(2):
                held = self.model
                break
            held.trainable = False

    assert not late(Leaves())


def test_ending_inside_an_epoch_is_not_late():
    class Ends(Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch > 3

    class Raises(Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch > 3:
                raise ValueError

    for callback in (Ends(), Raises()):
        assert doing_of(callback, ["on_train_batch_end"]) is Doing.ENDS
        assert not late(callback)


def test_a_lambda_is_told_from_its_neighbours():
    lambdas = keras.callbacks.LambdaCallback
    quiet = lambdas(on_train_batch_end=lambda batch, logs: None, on_epoch_end=lambda epoch, logs: act(epoch))
    assert not wants_train_batches(quiet)
    assert may_change_training(quiet)


def test_code_without_a_source_may_do_anything():
    scope = {"Callback": Callback}
    exec("class Mine(Callback):\n    def on_train_batch_end(self, batch, logs=None):\n        pass\n", scope)
    assert wants_train_batches(scope["Mine"]())


def test_an_edited_source_is_not_believed(tmp_path):
    source = "def on_train_batch_end(batch, logs=None):\n    return {}\n"
    path = tmp_path / "edited.py"
    path.write_text(source.format("logs"))
    scope = {}
    exec(compile(source.format("batch.act()"), str(path), "exec"), scope)
    callback = Callback()
    callback.on_train_batch_end = scope["on_train_batch_end"]
    assert wants_train_batches(callback)


def test_a_callback_of_keras_that_saves_at_epochs_ends_is_quiet_in_a_subclass():
    class Uploads(keras.callbacks.ModelCheckpoint):
        def on_train_batch_end(self, batch, logs=None):
            if self._should_save_on_batch(batch):
                self._save_model(epoch=self._current_epoch, batch=batch, logs=logs)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            print(self.filepath)

    assert ordering_hooks(Uploads("m.keras")) == ()
    assert (
        doing_of(Uploads("m.keras"), ["on_epoch_end"], watching=(keras.callbacks.ModelCheckpoint,))
        is Doing.ENDS
    )
    assert "on_train_batch_end" in ordering_hooks(Uploads("m.keras", save_freq=3))


def test_attributes_that_are_made_up_are_not_believed():
    class Told(Callback):
        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

        def on_train_batch_end(self, batch, logs=None):
            pass

    assert wants_train_batches(Told())
    assert not late(Told())
