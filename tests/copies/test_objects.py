"""Objects that callbacks keep go through a checkpoint; a file makes none but of the callback's classes."""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime
import enum
import functools
import subprocess
import threading
import types
import typing

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train._callbacks.state import capture, check_all, restore
from overlap_train._copies.kept import KeptState
from overlap_train._copies.packing import pack, unpack
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import through_disk


class Phase(enum.Enum):
    WARM = "warm"
    MAIN = "main"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Point(typing.NamedTuple):
    epoch: int
    loss: float


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass(frozen=True)
class Entry:
    epoch: int
    values: dict


@dataclasses.dataclass(slots=True)
class Slotted:
    count: int = 0


class Meter:
    def __init__(self):
        self.total, self.history, self.inner = 0, [], Slotted()

    @property
    def mean(self):
        return self.total

    def add(self, value):
        self.total += value
        self.history.append(value)
        self.inner.count += 1


@dataclasses.dataclass
class Node:
    number: int
    following: Node | None


class Losses(dict):
    pass


class Text(str):
    pass


class Typed(typing.Generic[typing.TypeVar("T")]):
    def __init__(self):
        self.items = []


class Keeper(keras.callbacks.Callback):
    """Keeps something of every kind; the first is there from the beginning, the rest is made later."""

    first: Node | None = None

    def __init__(self):
        super().__init__()
        self.meter, self.missing = Meter(), collections.defaultdict(list)
        self.own, self.ordered = collections.defaultdict(lambda: 7), collections.OrderedDict()

    def work(self):
        self.meter.add(2.5)
        self.missing["a"].append(1)
        self.own["x"] += 1
        self.ordered["b"], self.ordered["a"] = 1, 2
        self.ordered.move_to_end("b")
        self.counted = collections.Counter({Phase.WARM: 2, Point(1, 0.5): 1})
        self.phase, self.level, self.flags = Phase.MAIN, Level.LOW, Flags.A | Flags.B
        self.points, self.pair = [Point(1, 0.25)], Pair([1], Phase.WARM)
        self.entries = {"first": Entry(3, {"loss": np.arange(2.0)})}
        self.losses, self.text = Losses(a=1), Text("best")
        self.losses.best, self.text.epoch = 3, [4]
        self.typed = [Typed[int]()]
        self.space = types.SimpleNamespace(rate=0.5, seen={1})
        self.chain = collections.ChainMap({"a": 1}, {"b": 2})
        self.list = collections.UserList([1, 2])
        self.raw, self.names = bytearray(b"\x00"), np.array(["a", "bc"])

    def grow(self, count):
        for number in range(count):
            self.first = Node(number, self.first)


def shown(value):
    """Returns a text for all that a value holds."""
    if isinstance(value, (str, int, float, enum.Enum, bytearray)) or value is None:
        return repr(value)
    if isinstance(value, dict):
        inner = {shown(key): shown(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple, set, np.ndarray)):
        inner = [shown(item) for item in value]
    else:
        inner = None
    slots = {name: getattr(value, name) for name in getattr(type(value), "__slots__", ()) if name}
    attributes = {**getattr(value, "__dict__", {}), **slots}
    attributes.pop("__orig_class__", None)
    return f"{type(value).__name__} {inner} { {name: shown(part) for name, part in attributes.items()} }"


def kept(callback):
    own = {name: part for name, part in vars(callback).items() if name not in ("_model", "params")}
    return {name: shown(part) for name, part in own.items()}


@pytest.mark.parametrize("resumed", [True, False])
def test_every_kind_of_object_comes_back(tmp_path, resumed):
    callback = Keeper()
    callback.work()
    before, state = kept(callback), capture(callback)
    assert (state.left_out, state.lost) == ((), ())
    other = Keeper()
    if resumed:
        state = through_disk([state], tmp_path / "f")[0]
    assert restore(other, state) == ()
    assert kept(other) == before
    assert other.meter.mean == 2.5
    assert other.own["new"] == 7
    assert type(other.entries["first"]) is Entry
    assert callback.own["new"] == 7
    other.work()
    callback.work()
    assert kept(other) == kept(callback)


def test_an_object_that_is_there_is_changed_itself(tmp_path):
    callback, shared = Keeper(), Meter()
    callback.meter.add(4)
    state = capture(callback)
    other = Keeper()
    other.meter = shared
    restore(other, *through_disk([state], tmp_path / "f"))
    assert other.meter is shared
    assert (shared.total, shared.history, shared.inner.count) == (4, [4], 1)


def test_two_names_of_one_object_part_where_they_had_parted(tmp_path):
    callback = Keeper()
    callback.best = Meter()
    callback.meter.add(1)
    state = capture(callback)
    other = Keeper()
    other.best = other.meter
    restore(other, *through_disk([state], tmp_path / "f"))
    assert (other.best.total, other.meter.total) == (0, 1)


def test_what_an_object_cannot_give_is_named_and_stays(tmp_path):
    callback = Keeper()
    callback.meter.lock, callback.meter.thread, callback.meter.log = (
        threading.Lock(),
        threading.Thread(),
        print,
    )
    callback.meter.parent = callback.meter
    callback.meter.add(3)
    state = capture(callback)
    assert state.lost == ("meter.thread",)
    (loaded,) = through_disk([state], tmp_path / "f")
    assert loaded.lost == ("meter.thread",)
    other = Keeper()
    lock = other.meter.lock = threading.Lock()
    assert restore(other, loaded) == ()
    assert (other.meter.total, other.meter.lock) == (3, lock)
    other.meter = None  # and cannot be made without its thread
    assert "cannot be made anew" in restore(other, loaded)[0]


@pytest.mark.parametrize(
    "value",
    [subprocess.Popen, threading.Thread(), (i for i in []), iter([1]), functools.partial(print), open],
    ids=lambda value: type(value).__name__,
)
def test_what_may_change_and_is_not_kept_is_lost(value):
    callback = Keeper()
    callback.value = value
    state = capture(callback)
    assert state.left_out == ("value",)
    constant = isinstance(value, (type, functools.partial, types.BuiltinFunctionType))
    assert state.lost == (() if constant else ("value",))


def test_the_variables_of_metrics_and_other_models_are_kept_but_not_the_trained_one_s(tmp_path, model):
    def made():
        callback = Keeper()
        callback.set_model(model)
        callback.seen, callback.seed = keras.metrics.Mean(), keras.random.SeedGenerator(3)
        callback.teacher = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        callback.random = tf.random.Generator.from_seed(1)
        callback.layer, callback.optimizer = model.layers[0], model.optimizer
        return callback

    callback = made()
    callback.seen.update_state([1.0, 2.0])
    callback.teacher.set_weights([np.full((2, 1), 3.0), np.array([4.0])])
    keras.random.normal((2,), seed=callback.seed), callback.random.normal((2,))
    state = capture(callback)
    assert state.left_out == ("layer", "optimizer")
    assert state.lost == ()
    other = made()
    assert restore(other, *through_disk([state], tmp_path / "f")) == ()
    assert float(other.seen.result()) == 1.5
    np.testing.assert_array_equal(other.teacher.get_weights()[0], [[3.0], [3.0]])
    assert float(other.random.normal(())) == float(callback.random.normal(()))
    drawn = [float(keras.random.normal((), seed=each.seed)) for each in (callback, other)]
    assert drawn[0] == drawn[1]
    other.teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    assert restore(other, *through_disk([state], tmp_path / "g")) == (
        "Keeper.teacher (the Sequential has other variables)",
    )


def test_a_callback_inside_another_goes_on(tmp_path, model):
    def made(patience):
        callback = Keeper()
        callback.inner = keras.callbacks.EarlyStopping("loss", patience=patience)
        callback.inner.set_model(model)
        callback.inner.on_train_begin()
        return callback

    callback = made(3)
    for loss in (2.0, 3.0):
        callback.inner.on_epoch_end(0, {"loss": loss})
    other = made(5)
    restore(other, *through_disk([capture(callback)], tmp_path / "f"))
    assert (other.inner.wait, float(other.inner.best), other.inner.patience) == (1, 2.0, 5)


def hostile(kind, items=None, attributes=(), partial=False):
    content = [kind, partial, items, {"dict": [list(pair) for pair in attributes]}]
    state = {"kind": "Keeper", "values": {"x": {"object": content}}, "left_out": []}
    return unpack({}, [state])[0]


@pytest.mark.parametrize("kind", ["subprocess:Popen", "builtins:eval", "os:system", "threading:Thread", "a"])
def test_a_file_makes_no_object_of_a_class_that_the_callback_does_not_use(kind):
    callback = Keeper()
    assert "is not found" in restore(callback, hostile(kind, attributes=[("args", ["true"])]))[0]
    assert not hasattr(callback, "x")


class Meta(type):
    pass


class Abstract(abc.ABC):
    @abc.abstractmethod
    def act(self): ...


class Names(Keeper):
    """Names classes of which no object can be made."""

    kinds = (datetime.datetime, np.ndarray, ValueError, threading.Thread, Meta, Abstract, type)


@pytest.mark.parametrize("kind", Names.kinds)
def test_a_file_makes_no_object_of_a_class_that_is_more_than_its_attributes(kind):
    callback, name = Names(), f"{kind.__module__}:{kind.__qualname__}"
    assert "cannot be made anew" in restore(callback, dataclasses.replace(hostile(name), kind="Names"))[0]
    assert not hasattr(callback, "x")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("Meter", name) for name in ("__class__", "__dict__", "add", "mean", "__init__")),
        *(("Slotted", "more"), ("Point", "more"), ("Phase", "name")),
    ],
)
def test_a_file_sets_no_attribute_that_an_object_cannot_have(kind, name):
    state = hostile(f"{__name__}:{kind}", attributes=[(name, 1)])
    with pytest.raises(CheckpointCorruptError, match=f"is no attribute of a {kind}"):
        check_all([Keeper()], [state])


@pytest.mark.parametrize(
    ("kind", "items"),
    [
        *(("Meter", [1]), ("Losses", [1]), ("Losses", None), ("Text", 5), ("Point", [1, 2])),
        *(("Slotted", {"dict": []}), ("Entry", 3)),
    ],
)
def test_a_file_fills_no_object_with_what_it_cannot_hold(kind, items):
    with pytest.raises(CheckpointCorruptError, match=f"a {kind} is made of a"):
        check_all([Keeper()], [hostile(f"{__name__}:{kind}", items)])


def test_what_hides_a_method_of_an_object_is_lost_and_not_put_back(tmp_path):
    callback, other = Keeper(), Keeper()
    callback.meter.add = 3
    callback.meter.total = 5
    (state,) = through_disk([capture(callback)], tmp_path / "f")
    assert state.lost == ("meter.add",)
    check_all([other], [state])
    restore(other, state)
    assert other.meter.total == 5
    other.meter.add(1)


def test_objects_in_each_other_can_be_read_as_deep_as_they_are_copied(tmp_path):
    callback, other = Keeper(), Keeper()
    callback.grow(58)
    callback.last = callback.first.following.following
    (state,) = through_disk([capture(callback)], tmp_path / "f")
    assert restore(other, state) == ()
    assert other.first.following.following is other.last
    numbers, node = [], other.first
    while node is not None:
        numbers.append(node.number)
        node = node.following
    assert numbers == list(reversed(range(58)))


@pytest.mark.parametrize(
    "content",
    [[1, False, None, {"dict": []}], ["a", 1, None, {"dict": []}], ["a", False, None, []], ["a"]],
    ids=str,
)
def test_an_object_of_other_parts_is_corrupt(content):
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack({}, [{"kind": "a", "values": {"x": {"object": content}}, "left_out": []}])


def test_what_a_file_of_an_earlier_release_left_out_counts_as_lost():
    _, described = pack([KeptState("a", {}, ("rng", "function"))])
    del described[0]["lost"]
    assert unpack({}, described)[0].lost == ("rng", "function")


def test_where_there_is_too_much_to_look_through_no_class_of_the_user_s_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("overlap_train._inspection.reach._MOST_OBJECTS", 10)
    callback, other = Keeper(), Keeper()
    callback.work()
    (state,) = through_disk([capture(callback)], tmp_path / "f")
    check_all([other], [state])
    stay = restore(other, state)
    assert "Keeper.points (its class tests.copies.test_objects.Point is not found)" in stay
    assert other.meter.total == 2.5
