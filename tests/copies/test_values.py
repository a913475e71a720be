"""What is plain is copied and put back; what is not says so, and whether anything is lost by that."""

import collections
import copy
import datetime
import enum
import fractions
import functools
import random
import threading
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from overlap_train._callbacks.restoring import NotPutBackError, Restorer
from overlap_train._callbacks.values import Copier, NotPlainError, model_variables
from tests.copies.strategies import VALUES, moved, packed_and_unpacked


def copied(value, **options):
    return Copier(**options).copy(value)


class Box:
    """Says itself what it holds."""

    def __init__(self, content=None):
        self.content = content

    def get_state(self):
        return self.content

    def set_state(self, state):
        self.content = state


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


def test_an_object_is_what_it_says_itself():
    node = copied(Box({"n": [1]}))
    assert node == {"object": ["Box", [["get_state()", {"dict": [["n", {"list": [1]}]]}]], []]}


CONSTANT = [
    *(print, [print, len], {"function": print}, threading.Lock(), keras.losses.MeanSquaredError()),
    *(tf.data.Dataset.range(3), range(3), np),
]
LOST = [
    *([print, 3], object(), (i for i in range(3)), threading.Thread(), fractions.Fraction(1, 2)),
    *({Phase.WARM: 1}, Phase.WARM, Box(object()), np.array([None]), np.ma.masked_array([1])),
    *(np.zeros(2, "V3"), tf.constant("text"), tf.ragged.constant([[1], []])),
]


@pytest.mark.parametrize(
    ("value", "constant"),
    [*((value, True) for value in CONSTANT), *((value, False) for value in LOST)],
    ids=lambda value: f"{type(value).__name__}",
)
def test_what_is_not_plain_says_whether_anything_is_lost(value, constant):
    with pytest.raises(NotPlainError) as caught:
        copied(value)
    assert caught.value.constant is constant


def test_what_two_hold_has_one_copy_in_all_that_is_copied_together():
    shared, copier = [np.zeros(1)], Copier()
    restorer, live = Restorer(), [None, None]
    nodes = copier.copy({"a": shared, "b": (shared, [shared])}), copier.copy(shared)
    first, second = map(restorer.put, live, nodes)
    assert first["a"] is first["b"][0] is first["b"][1][0] is second
    assert second[0] is not shared[0]


def test_what_is_nested_too_deep_is_not_plain_but_may_be_held_twice():
    inner = functools.reduce(lambda value, _: [value], range(50), [])
    for value in ([inner, inner], [inner, [[inner]] * 20]):
        assert packed_and_unpacked(value) == value
    loop = []
    loop.append(loop)
    for value in (functools.reduce(lambda v, _: [v], range(400), []), loop):
        with pytest.raises(NotPlainError, match="in more than 60 others") as caught:
            copied(value)
        assert not caught.value.constant


class Lazy:
    """Stands for an object that is not there yet, as the proxies of web frameworks do."""

    def __getattribute__(self, name):
        raise RuntimeError("outside of its context")


@pytest.mark.parametrize("make", [Lazy, lambda: weakref.proxy(Box())])
def test_what_raises_when_it_is_looked_at_is_not_plain(make):
    with pytest.raises(NotPlainError, match="that raises") as caught:
        copied(make())
    assert not caught.value.constant


@pytest.mark.parametrize(
    "make",
    [keras.metrics.Mean, lambda: keras.random.SeedGenerator(1), lambda: tf.random.Generator.from_seed(1)],
)
def test_of_keras_and_tensorflow_the_variables_are_taken_but_not_the_model_s(make):
    value = make()
    variables = list(getattr(value, "variables", ())) or [value.state]
    assert len(copied(value)["object"][1]) == len(variables)
    with pytest.raises(NotPlainError, match="a part of the model") as caught:
        copied(value, foreign=lambda: {id(variable) for variable in variables})
    assert caught.value.constant


def test_a_model_s_variables_are_known_by_keras_s_object_and_by_tensorflow_s(model):
    model.optimizer.build(model.trainable_variables)
    known = model_variables(model)
    for variable in (model.layers[0].kernel, model.optimizer.iterations, model.metrics[0].variables[0]):
        assert id(variable) in known
        assert id(variable.value) in known
    assert id(tf.Variable(0.0)) not in known
    assert not model_variables(None)


def test_paths_and_dates_are_plain():
    zone = datetime.timezone(datetime.timedelta(hours=1))
    for value in (Path("a"), datetime.datetime(2026, 1, 2, tzinfo=zone), datetime.timedelta(1)):
        assert packed_and_unpacked(value) == value


@given(value=VALUES, live=VALUES)
@settings(max_examples=30, deadline=None)
def test_any_plain_value_comes_back_whatever_is_there(value, live):
    there = copy.deepcopy(live)
    found = moved(value, there)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("live", "value"),
    [
        ([0], [1, [2]]),
        ({"a": 0}, {"b": 1}),
        ({0}, {1, 2}),
        (collections.deque([0], 3), collections.deque([1, 2], 3)),
        (collections.OrderedDict(b=1), collections.OrderedDict(a=1)),
        (collections.Counter("ab"), collections.Counter("aab")),
        (collections.defaultdict(list, a=[0]), collections.defaultdict(list, a=[1], b=[2])),
        (np.zeros(2), np.ones(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_there_is_changed_itself(live, value):
    found = moved(value, live)
    assert found is live
    assert np.array_equal(found, value) if isinstance(found, np.ndarray) else found == value


@pytest.mark.parametrize(
    ("live", "value"),
    [
        (np.zeros(3), np.ones(2)),
        (np.zeros(2, "float32"), np.ones(2)),
        (np.zeros(2), np.ones(2)),  # which cannot be written to
        (collections.deque([0], 3), collections.deque([1])),
        (None, {"a": [1]}),
        ({"a": 1}, collections.Counter("ab")),
        ([], collections.OrderedDict(b=1, a=2)),
    ],
)
def test_what_does_not_fit_is_made_anew(live, value):
    before = copy.deepcopy(live)
    if isinstance(live, np.ndarray) and live.shape == np.shape(value):
        live.flags.writeable = live.dtype != value.dtype
    found = moved(value, live)
    np.testing.assert_equal(found, value)
    np.testing.assert_equal(live, before)
    assert type(found) is type(value)


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_a_variable_is_assigned(make):
    live = make([0.0, 0.0])
    assert moved({"v": make([1.0, 2.0])}, {"v": live})["v"] is live
    assert live.numpy().tolist() == [1, 2]


def test_a_metric_and_a_generator_of_seeds_go_on():
    mean, seeds = keras.metrics.Mean(), keras.random.SeedGenerator(3)
    mean.update_state([1.0, 3.0])
    live = [keras.metrics.Mean(), keras.random.SeedGenerator(4)]
    seeds.next()
    moved([mean, seeds], live)
    assert float(live[0].result()) == 2.0
    np.testing.assert_array_equal(live[1].next(), seeds.next())


@pytest.mark.parametrize(
    ("value", "live", "reason"),
    [
        (tf.Variable([1.0]), None, "there is no variable in its place"),
        (
            tf.Variable([1.0]),
            tf.Variable([1.0, 2.0]),
            r"it was a variable of \(1,\) float32, and now it is one of \(2,\) float32",
        ),
        (Box(), None, "there is no Box in its place"),
        (Box(), object(), "there is no Box in its place"),
        (collections.defaultdict(list), {}, "there is no defaultdict in its place"),
        (random.Random(1), None, "there is no Random in its place"),
        (np.random.default_rng(1), np.random.RandomState(1), "there is no Generator in its place"),
    ],
)
def test_what_the_file_does_not_say_how_to_make_stays(value, live, reason):
    with pytest.raises(NotPutBackError, match=reason):
        moved(value, live)


class Meter:
    def __init__(self, name="a"):
        self.name, self.losses, self.phase = name, [], Phase.WARM

    def turn(self):
        self.losses.append(len(self.losses))


def state_of(value):
    return packed_and_unpacked(Copier().object(value, vars(value)))


def put_into(target, attributes):
    restorer = Restorer(parts=vars)
    restorer.attributes(target, attributes, "Meter")
    return restorer.stay


def test_attributes_that_cannot_be_put_back_are_named_and_the_others_are_put_back():
    source, target = Meter("b"), Meter("a")
    source.inner, source.later, target.inner = [3], 5, object()
    target.losses.append(9)
    state = state_of(source)
    assert state.lost == ("phase",)
    assert put_into(target, {**state.attributes, "turn": 3, "__class__": 4}) == [
        "Meter.inner (its place holds a value of type object)",
        "Meter.turn (it is no attribute)",
        "Meter.__class__ (it is no attribute)",
    ]
    assert (target.name, target.losses, target.later, target.phase) == ("b", [], 5, Phase.WARM)
    assert callable(target.turn)
    source, target = Meter(), Meter()
    source.file, target.file = None, (there := iter([1]))  # opened since
    assert put_into(target, state_of(source).attributes) == []
    assert target.file is there


def test_what_is_held_in_common_is_again_and_what_had_parted_is_parted():
    board = {"turns": [1], "seen": []}
    found = moved([board["turns"], board], [(live := {"turns": [], "seen": [0]})["turns"], live])
    assert found[0] is found[1]["turns"]
    assert found[1] is live
    common = [0]
    assert moved([[1], [2]], [common, common]) == [[1], [2]]
    later = [1]
    first, second = moved([later, {"a": later}], [None, {}])
    assert first is second["a"]


def test_a_copy_can_be_put_back_again_and_stays_as_it_was():
    state = Copier().copy({"a": [np.zeros(1)]})
    for _ in range(2):
        found = Restorer().put(None, state)
        assert [array.tolist() for array in found["a"]] == [[0]]
        found["a"][0] += 1
        found["a"].append(2)


def test_what_an_object_says_itself_goes_to_its_own_method():
    live = Box(1)
    assert moved([Box({"n": np.arange(2)})], [live])[0] is live
    assert live.content["n"].tolist() == [0, 1]
