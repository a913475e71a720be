"""What a set or a dict of a checkpoint is to hold has hashes that are soon there and tell members apart."""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict, UserString, defaultdict
from types import SimpleNamespace

import keras
import pytest

from overlap_train._callbacks.state import capture, check_all, restore_all
from overlap_train._copies.hashing import spread
from overlap_train._copies.packing import unpack
from overlap_train.errors import CheckpointCorruptError, CheckpointMismatchError
from tests.callbacks.hooks import through_disk

P = 2**61 - 1  # modulo which Python takes numbers as their hashes


@dataclasses.dataclass(frozen=True)
class Place:
    x: int
    y: object = None


class Words(tuple):
    """Has a hash of what it holds."""


class Holder(keras.callbacks.Callback):
    def __init__(self, value=None):
        super().__init__()
        self.value = value
        self.classes = Place, Words, OrderedDict, UserString, defaultdict, SimpleNamespace


def read(parts):
    (state,) = unpack({}, [{"kind": "Holder", "values": {"value": parts}, "left_out": [], "sharing": True}])
    return state


def thing(kind, attributes=(), items=None):
    name = kind if isinstance(kind, str) else f"{kind.__module__}:{kind.__qualname__}"
    return {"object": [name, False, items, {"dict": [list(pair) for pair in attributes]}]}


def held_over_and_over(made, times=40):
    """Returns what holds two of what holds two of ..., in a file that says each but once."""
    value = {"shared": [0, made("a")]}
    for number in range(times):
        value = {"shared": [number + 1, made({"tuple": [value, {"again": number}]})]}
    return value


HOLDERS = {
    "set": lambda *members: {"set": list(members)},
    "frozenset": lambda *members: {"tuple": [{"frozenset": list(members)}]},
    "keys": lambda *members: {"dict": [[member, 1] for member in members]},
    "in a key": lambda *members: {"dict": [[{"tuple": [member]}, 1] for member in members]},
    "in an object": lambda *members: thing(SimpleNamespace, [("a", {"set": list(members)})]),
}


@pytest.mark.parametrize("around", HOLDERS.values(), ids=HOLDERS)
@pytest.mark.parametrize(
    "members",
    [
        [thing(OrderedDict, items={"dict": []})],
        [thing(SimpleNamespace)],
        [thing(UserString)],
        [thing(Place, [("y", 1)])],
        [thing(Place, [("x", 1), ("y", [])])],
        [thing(Words, items={"tuple": [[]]})],
        [held_over_and_over(lambda content: thing(UserString, [("data", content)]))],
        [held_over_and_over(lambda content: thing(Place, [("x", content), ("y", 0)]))],
        [held_over_and_over(lambda content: thing(Words, items={"tuple": [content]}))],
        [held_over_and_over(lambda content: thing("no:Such", items={"tuple": [content]}))],
        [thing(UserString, [("data", i * P)]) for i in range(1, 3000)],
        [thing(Place, [("x", i * P), ("y", None)]) for i in range(1, 3000)],
    ],
    ids=lambda members: f"{len(members)} {str(members[0])[:60]}",
)
@pytest.mark.timeout(60)
def test_members_without_a_hash_are_refused_before_anything_is_put_back(around, members):
    holder = Holder({"a"})
    with pytest.raises(CheckpointCorruptError, match=r"its Holder\.value is invalid"):
        check_all([holder], [read(around(*members))])
    assert holder.value == {"a"}


@pytest.mark.parametrize("around", [*HOLDERS.values()][:4], ids=[*HOLDERS][:4])
@pytest.mark.parametrize(
    "member",
    [
        lambda i: i * P,
        lambda i: {"tuple": [i * P, "a"]},
        lambda i: {"frozenset": [i * P]},
        lambda i: {"fraction": [i * P, 1]},
        lambda i: {"decimal": str(i * P)},
        lambda i: float(2**61) ** 10 * 2 ** (61 * i) if i < 5 else i * P,
    ],
)
@pytest.mark.timeout(60)
def test_numbers_with_one_hash_are_corrupt(around, member):
    with pytest.raises(CheckpointCorruptError, match="members of a set that have one hash"):
        read(around(*map(member, range(1, 50_000))))


@pytest.mark.parametrize(
    "value",
    [
        set(range(-100_000, 100_000)),
        {f"word {i}" for i in range(10_000)},
        {(x, y, x * y): 1 for x in range(-60, 60) for y in range(-60, 60)},
        set(itertools.product((-1, -2), repeat=6)),
        {2.0**k for k in range(-1000, 1000)},
        {Place(x, (x, "a")) for x in range(300)},
        {Words((x, frozenset((x, x + 1)))): x for x in range(300)},
        {UserString(f"{i}") for i in range(300)},
    ],
    ids=["numbers", "words", "grid", "corners", "powers", "places", "tuples", "strings"],
)
def test_what_trainings_hold_is_taken(tmp_path, value):
    (state,) = through_disk([capture(Holder(value))], tmp_path / "f")
    holder = Holder()
    assert restore_all([holder], [state]) == ()
    assert holder.value == value


class Cell:
    """Told from others by itself, however alike they are."""

    def __init__(self, content):
        self.content = content


def test_objects_that_are_told_apart_by_themselves_may_be_alike():
    cells = {Cell(0) for _ in range(500)}
    holder = Holder()
    holder.kind = Cell
    state = capture(Holder(cells))
    restore_all([holder], [state])
    assert len(holder.value) == 500


def test_a_member_that_has_to_be_there_is_looked_for_where_it_is():
    class Keyed:
        def __init__(self, metric):
            self.metric = metric

        def __hash__(self):
            return hash(self.metric.name)

        def __eq__(self, other):
            return self.metric.name == other.metric.name

    def made(total):
        holder = Holder({Keyed(keras.metrics.Mean(name="m")): total})
        next(iter(holder.value)).metric.update_state([total])
        return holder

    live = made(1.0)
    restore_all([live], [capture(made(3.0))])
    ((key, item),) = live.value.items()
    assert (float(key.metric.result()), item) == (3.0, 3.0)


def test_what_a_file_says_that_nobody_is_there_for_is_refused_before_anything_is_put_back():
    """Its class is found only where the value goes, so that it is known behind the first look."""

    class Hidden(UserString):
        pass

    first, second = Holder(1), Holder({Hidden("a"): 1})
    del second.classes
    parts = {"dict": [[thing(Hidden), 2]]}
    with pytest.raises((CheckpointCorruptError, CheckpointMismatchError)):
        restore_all([first, second], [read(3), read(parts)])
    assert (first.value, *second.value.values()) == (1, 1)


def test_what_set_state_is_to_get_is_looked_at_first():
    class Speaks(Holder):
        got = None

        def get_state(self):
            return 1

        def set_state(self, state):
            self.got = state

    first, second = Holder(1), Speaks()
    described = {"kind": "Speaks", "values": {"get_state()": {"set": [thing(UserString)]}}, "left_out": []}
    with pytest.raises((CheckpointCorruptError, CheckpointMismatchError)):
        restore_all([first, second], [read(3), *unpack({}, [described])])
    assert (first.value, second.got) == (1, None)


def test_a_factory_that_is_no_text_is_corrupt():
    parts = thing(defaultdict, [("default_factory", [])], items={"dict": []})
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        check_all([Holder()], [read(parts)])


def test_members_that_tell_themselves_apart_come_back_as_they_are():
    assert spread([1, "a", 2.5]) == [1, "a", 2.5]
    with pytest.raises(TypeError):
        spread([[]])
    with pytest.raises(ValueError, match="one hash"):
        spread(i * P for i in range(100))
