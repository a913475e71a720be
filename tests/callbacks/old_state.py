"""Callbacks' state: a callback that is put back goes on as if nothing had happened since."""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
import weakref

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EpochOnly
from overlap_train._callbacks.state import Unstored, capture_all, restore_all
from overlap_train._copies.values import ObjectValue
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import begin, capture, remembered, restore, run, through_disk

# A user's callbacks.


class Recorder(keras.callbacks.Callback):
    """Remembers something of every kind."""

    def __init__(self, shared=None):
        super().__init__()
        self.shared = [] if shared is None else shared
        self.numbers = {"a": [1, 2.5, math.inf], 3: (None, True), (1, "b"): 2**70}
        self.array = np.arange(3.0)
        self.low = np.array([1, 2], ml_dtypes.bfloat16)
        self.scalar = np.float32(0.5)
        self.wide = np.float64(0.25)
        self.tensor = tf.constant([1, 2])
        self.variable = keras.Variable([1.0, 2.0])
        self.plain_variable = tf.Variable(3)
        self.window = collections.deque([1, 2], maxlen=2)
        self.seen = {1, 2}
        self.raw, self.root = b"\x00\xff", 1 + 2j
        self.function = print
        self.others = [object()]


def spoil(callback):
    callback.shared.append(1)
    callback.numbers["a"].append(9)
    callback.numbers["new"] = 0
    callback.array += 1
    callback.low[0] = 7
    callback.scalar, callback.wide, callback.raw, callback.root = None, None, b"", 0
    callback.tensor += 1
    callback.variable.assign([8.0, 8.0])
    callback.plain_variable.assign(8)
    callback.window.append(3)
    callback.seen.add(3)


def test_every_kind_of_value_comes_back(tmp_path):
    callback = Recorder()
    before, variable, array = remembered(callback), callback.variable, callback.array
    state = capture(callback)
    assert state.lost == ("others",)
    for source in (state, through_disk([state], tmp_path / "f")[0], state):
        spoil(callback)
        assert restore(callback, source) == ()
        assert remembered(callback) == before
        assert callback.variable is variable
        assert callback.array is array
        assert type(callback.wide) is np.float64
        assert callback.window.maxlen == 2
        assert callback.low.dtype == ml_dtypes.bfloat16


def test_list_shared_with_the_user_stays_shared(tmp_path):
    shared: list[int] = [1]
    callback = Recorder(shared)
    state = capture(callback)
    for source in (state, *through_disk([state], tmp_path / "f")):
        callback.shared.append(2)
        restore(callback, source)
        assert shared == [1]
        assert callback.shared is shared


def test_attributes_that_came_later_stay(tmp_path):
    callback = Recorder()
    state = capture(callback)
    callback.later = 1
    restore(callback, *through_disk([state], tmp_path / "f"))
    assert callback.later == 1
    assert callback.function is print


class Slotted(keras.callbacks.Callback):
    __slots__ = ("count", "seen")

    def __init__(self):
        super().__init__()
        self.count, self.seen = 0, []


def test_attributes_in_slots_of_a_callback_are_kept(tmp_path):
    callback, other = Slotted(), Slotted()
    callback.count, there = 3, other.seen
    callback.seen.append(1)
    restore(other, *through_disk([capture(callback)], tmp_path / "f"))
    assert (other.count, other.seen) == (3, [1])
    assert other.seen is there


class Positive:
    """Checks an attribute, and keeps it in the object's dict, as validators do."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, owner, kind=None):
        return self if owner is None else vars(owner)[self.name]

    def __set__(self, owner, value):
        vars(owner)[self.name] = value


class Checked(keras.callbacks.Callback):
    level = Positive()
    rates = list

    def __init__(self):
        super().__init__()
        self.level, self.rates = 0, "none"

    def step(self):
        pass


def test_a_checked_attribute_is_kept_and_what_hides_a_method_is_named(tmp_path):
    callback, other = Checked(), Checked()
    callback.level, callback.step, callback.rates = 5, 3, "some"
    (state,) = through_disk([capture(callback)], tmp_path / "f")
    assert state.lost == ("step",)
    restore_all([other], [state])
    assert (other.level, other.rates) == (5, "some")
    assert callable(other.step)


def test_variables_of_the_model_belong_to_the_snapshot(model):
    callback = Recorder()
    callback.set_model(model)
    callback.rate, callback.weights = model.optimizer.learning_rate, model.trainable_variables
    state = capture(callback)
    assert not {"rate", "weights"} & {*state.attributes, *state.lost}
    model.optimizer.learning_rate = 0.125
    restore(callback, state)
    assert float(model.optimizer.learning_rate) == 0.125


def test_subclass_of_a_stock_callback_keeps_both(tmp_path, model):
    class Mine(keras.callbacks.EarlyStopping):
        mine = 0

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            self.mine += 1

    old, new = Mine(patience=5), Mine(patience=5)
    begin(old, model)
    run(old, model, 0, 3)
    begin(new, model)
    restore(new, *through_disk([capture(old)], tmp_path / "f"))
    assert (new.mine, new.wait, new.best) == (3, 1, 5.0)
    assert new.monitor_op is None


class Spoken(keras.callbacks.ReduceLROnPlateau):
    """Says itself what it remembers."""

    def __init__(self, returned=None):
        super().__init__()
        self.secret, self.ignored, self.returned = 0, 0, returned

    def get_state(self):
        return self.returned or {"secret": self.secret, "array": np.ones(2)}

    def set_state(self, state):
        self.secret = float(state["secret"])
        state["array"][:] = 0


def test_get_state_replaces_the_users_attributes_and_not_those_of_keras(tmp_path):
    old, new = Spoken(), Spoken()
    old.secret, old.ignored, old.wait = 3, 4, 5
    state = capture(old)
    for source in (state, state, *through_disk([state], tmp_path / "f")):
        restore(new, source)
        assert (new.secret, new.ignored, new.wait) == (3, 0, 5)
    assert state.attributes["get_state()"]["array"].tolist() == [1, 1]


def test_get_state_may_return_variables_whose_values_come_back(tmp_path):
    callback = Spoken({"secret": tf.Variable(2.5), "array": np.zeros(2)})
    restore(callback, *through_disk([capture(callback)], tmp_path / "f"))
    assert callback.secret == 2.5


@pytest.mark.parametrize(
    ("value", "kind"),
    [(object(), "object"), (keras.metrics.Mean(), "Mean"), ([keras.metrics.Mean()], "Mean")],
)
def test_get_state_of_something_else_is_refused(value, kind):
    with pytest.raises(TypeError, match=rf"Spoken.get_state\(\) returned a {kind}"):
        capture(Spoken({"x": value}))


# Lists of callbacks.


class Holder(keras.callbacks.Callback):
    """Keeps what it is given."""

    def __init__(self, **parts):
        super().__init__()
        vars(self).update(parts)


def resumed(callbacks, others, path):
    assert restore_all(others, through_disk(capture_all(callbacks), path)) == ()
    return others


def test_two_callbacks_go_on_with_one_object_that_came_later(tmp_path):
    board = {"count": 1}
    first, second = resumed(
        [Holder(board=board), Holder(boards=[board])], [Holder(board=None), Holder(boards=[])], tmp_path / "f"
    )
    assert first.board is second.boards[0]
    assert first.board == board


def test_two_callbacks_that_share_a_list_of_the_user_s_share_it_again(tmp_path):
    theirs, ours = [1, 2], []
    first, second = resumed(
        [Holder(seen=theirs), Holder(by_name={"seen": theirs})],
        [Holder(seen=ours), Holder(by_name={"seen": ours})],
        tmp_path / "f",
    )
    assert first.seen is second.by_name["seen"] is ours
    assert ours == [1, 2]


def test_a_callback_inside_another_is_kept_and_one_of_the_fit_is_kept_once(tmp_path):
    def made(wait):
        early, inner = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
        early.wait = inner.wait = wait
        return [early, Holder(other=early, n=wait), EpochOnly(inner)]

    states = capture_all(made(3))
    assert [*states[1].attributes] == ["n"]
    assert [state.lost for state in states] == [(), (), ()]
    early, holder, wrapped = resumed(made(3), made(0), tmp_path / "f")
    assert (early.wait, holder.n, wrapped.callback.wait) == (3, 3, 3)


def test_a_list_of_callbacks_with_attributes_of_its_own_is_kept(model):
    class Listed(keras.callbacks.CallbackList):
        def __init__(self):
            super().__init__([keras.callbacks.History()], model=model)
            self.calls, self.seen = 0, []

    listed, other = Listed(), Listed()
    listed.calls = 2
    listed.seen.append(1)
    states = capture_all([*listed.callbacks, listed])
    assert set(states[1].attributes) == {"calls", "seen"}
    restore_all([*other.callbacks, other], states)
    assert (other.calls, other.seen) == (2, [1])


def test_no_callback_is_changed_where_one_is_invalid():
    early, plateau = keras.callbacks.EarlyStopping(), keras.callbacks.ReduceLROnPlateau()
    early.wait = 3
    states = capture_all([early, keras.callbacks.ProgbarLogger(), plateau])
    assert [state.kind for state in states] == ["EarlyStopping", "ReduceLROnPlateau"]
    early.wait = 7
    invalid = dataclasses.replace(states[1], attributes={"wait": "three"})
    with pytest.raises(CheckpointCorruptError, match=r"ReduceLROnPlateau\.wait"):
        restore_all([early, plateau], [states[0], invalid])
    assert early.wait == 7
    restore_all([early, plateau], states)
    assert early.wait == 3


def test_state_holds_neither_callback_nor_model(model):
    callback = keras.callbacks.EarlyStopping()
    begin(callback, model)
    state, reference = capture(callback), weakref.ref(callback)
    del callback
    assert reference() is None
    assert state.kind == "EarlyStopping"


# What no checkpoint holds.


class Tracker:
    def __init__(self):
        self.n = 0


UNSTORED = {
    "a thread": (threading.Thread, lambda c: None, ["Holder.part"]),
    "a thread that came later": (
        lambda: None,
        lambda c: setattr(c, "part", threading.Thread()),
        ["Holder.part"],
    ),
    "an object that came later": (lambda: None, lambda c: setattr(c, "part", Tracker()), ["Holder.part"]),
    "one more object": (lambda: [Tracker()], lambda c: c.part.append(Tracker()), ["Holder.part"]),
    "an object that has changed": (Tracker, lambda c: setattr(c.part, "n", 5), []),
    "an object anew": (Tracker, lambda c: setattr(c, "part", Tracker()), []),
    "a variable that came later": (
        lambda: None,
        lambda c: setattr(c, "part", tf.Variable(1)),
        ["Holder.part"],
    ),
    "another function": (lambda: print, lambda c: setattr(c, "part", len), ["Holder.part"]),
    "the same function": (lambda: print, lambda c: setattr(c, "part", print), []),
    "a function that came later": (lambda: None, lambda c: setattr(c, "part", print), []),
    "a lock": (threading.Lock, lambda c: setattr(c, "part", threading.Lock()), []),
    "plain values": (list, lambda c: setattr(c, "part", {"a": [1]}), []),
}


@pytest.mark.parametrize("name", UNSTORED)
def test_what_no_checkpoint_holds_is_named_once_if_it_may_have_changed(name):
    make, change, expected = UNSTORED[name]
    callback, unstored = Holder(part=make()), Unstored()
    unstored.begin([callback], capture_all([callback]))
    change(callback)
    states = capture_all([callback])
    assert unstored.names(states, [callback]) == expected
    assert unstored.names(states, [callback]) == []


# States made by hand.


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (keras.callbacks.EarlyStopping, {"wait": "three"}),
        (keras.callbacks.EarlyStopping, {"wait": True}),
        (keras.callbacks.EarlyStopping, {"best": [1.0]}),
        (keras.callbacks.EarlyStopping, {"best_weights": [np.zeros(3)]}),
        (keras.callbacks.EarlyStopping, {"best_weights": np.zeros(3)}),
        (keras.callbacks.EarlyStopping, {"monitor": "loss"}),
        (keras.callbacks.EarlyStopping, {"_model": None}),
        (keras.callbacks.EarlyStopping, {"on_epoch_end": 5}),
        (keras.callbacks.EarlyStopping, {"__class__": 5}),
        (keras.callbacks.EarlyStopping, {"model": 5}),
        (keras.callbacks.History, {"history": 5}),
        (keras.callbacks.History, {"history": {"loss": 5}}),
        (keras.callbacks.History, {"epoch": ["one"]}),
        (lambda: keras.callbacks.CSVLogger("log"), {"append": 1}),
        (lambda: keras.callbacks.CSVLogger("log"), {"keys": [1]}),
    ],
)
def test_a_value_that_no_callback_of_the_class_remembers_is_refused(model, make, values):
    early, callback = keras.callbacks.EarlyStopping(), make()
    early.wait = 1
    callback.set_model(model)
    good = ObjectValue("EarlyStopping", {"wait": 2})
    bad = ObjectValue(type(callback).__name__, values)
    before = dict(vars(callback))
    with pytest.raises(CheckpointCorruptError, match=next(iter(values))):
        restore_all([early, callback], [good, bad])
    assert early.wait == 1
    assert vars(callback) == before
