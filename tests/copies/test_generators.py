"""A random generator that is put back goes on with the numbers that would have come."""

from __future__ import annotations

import itertools
import random

import keras
import numpy as np
import pytest

from overlap_train._callbacks.state import capture, restore
from overlap_train._copies.packing import unpack
from overlap_train.errors import CheckpointCorruptError
from tests.callbacks.hooks import through_disk

MAKERS = {
    "default": lambda: np.random.default_rng(5),
    "seeded by a list": lambda: np.random.default_rng([1, 2**40]),
    **{
        name: lambda name=name: np.random.Generator(getattr(np.random, name)(3))
        for name in ("MT19937", "PCG64DXSM", "Philox", "SFC64")
    },
    "legacy": lambda: np.random.RandomState(3),
    "python": lambda: random.Random(3),
}


def drawn(generator) -> list:
    names = ("random", "standard_normal", "gauss")
    draws = [getattr(generator, name) for name in names if hasattr(generator, name)]
    return [float(draw(*([0, 1] if name == "gauss" else []))) for draw in draws for name in [draw.__name__]]


@pytest.mark.parametrize("made", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("there", [True, False])
def test_the_next_numbers_are_those_that_would_have_come(tmp_path, made, there):
    callback = keras.callbacks.Callback()
    callback.rng = made()
    drawn(callback.rng)
    state = capture(callback)
    assert state.left_out == ()
    expected = [drawn(callback.rng), drawn(callback.rng)]
    other = keras.callbacks.Callback()
    live = other.rng = made() if there else None
    restore(other, *through_disk([state], tmp_path / "f"))
    assert [drawn(other.rng), drawn(other.rng)] == expected
    assert (other.rng is live) == there  # who shares it goes on with it, too


def test_what_has_been_spawned_is_not_spawned_again(tmp_path):
    callback = keras.callbacks.Callback()
    callback.rng, callback.seeds = np.random.default_rng(1), np.random.SeedSequence(2)
    callback.rng.spawn(2), callback.seeds.spawn(3)
    (state,) = through_disk([capture(callback)], tmp_path / "f")
    other = keras.callbacks.Callback()
    other.rng, other.seeds = np.random.default_rng(1), np.random.SeedSequence(2)
    restore(other, state)
    assert other.rng.spawn(1)[0].random() == callback.rng.spawn(1)[0].random()
    assert other.seeds.spawn(1)[0].spawn_key == callback.seeds.spawn(1)[0].spawn_key


def test_a_counter_goes_on(tmp_path):
    callback = keras.callbacks.Callback()
    callback.numbers, callback.steps = itertools.count(), itertools.count(1.5, -0.5)
    next(callback.numbers), next(callback.steps)
    state = capture(callback)
    other = keras.callbacks.Callback()
    restore(other, *through_disk([state], tmp_path / "f"))
    assert (
        (next(other.numbers), next(other.steps)) == (next(callback.numbers), next(callback.steps)) == (1, 1)
    )


SEEDS = [["entropy", 1], ["spawn_key", {"tuple": []}], ["pool_size", 4], ["n_children_spawned", 1]]
BITS = {
    "dict": [
        ["bit_generator", "PCG64"],
        ["state", {"dict": [["state", 1], ["inc", 3]]}],
        ["has_uint32", 0],
        ["uinteger", 0],
    ]
}


def test_a_whole_state_of_a_generator_is_taken():
    """Of which the states below lack a part."""
    for content in (
        ["SeedSequence", {"dict": SEEDS}],
        ["Generator", {"dict": [["bits", BITS], ["seeds", {"dict": SEEDS}]]}],
    ):
        unpack({}, [{"kind": "a", "values": {"x": {"generator": content}}, "left_out": []}])


@pytest.mark.parametrize(
    "content",
    [
        ["Random", {"tuple": [3, {"tuple": []}, None]}],
        ["Popen", []],
        ["Generator", {"dict": [["bits", {"dict": [["bit_generator", "os"]]}], ["seeds", None]]}],
        ["SeedSequence", {"dict": [["entropy", 1], ["spawn_key", []], ["pool_size", 2**40]]}],
        ["count", ["a"]],
        *(["SeedSequence", {"dict": [part for part in SEEDS if part[0] != name]}] for name, _ in SEEDS),
        *(
            [
                "Generator",
                {"dict": [["bits", BITS], ["seeds", {"dict": [part for part in SEEDS if part[0] != name]}]]},
            ]
            for name, _ in SEEDS
        ),
        ["SeedSequence", {"dict": [*SEEDS, ["more", 1]]}],
        ["SeedSequence", []],
    ],
    ids=lambda content: f"{content}"[:80],
)
def test_a_state_of_no_generator_is_corrupt(content):
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack({}, [{"kind": "a", "values": {"x": {"generator": content}}, "left_out": []}])
