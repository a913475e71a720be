"""A random generator that is put back goes on with the numbers that would have come."""

from __future__ import annotations

import random

import numpy as np
import pytest

from overlap_train._copies.packing import unpack
from overlap_train._copies.restoring import Restorer
from overlap_train._copies.values import Copier
from overlap_train.errors import CheckpointCorruptError
from tests.copies.strategies import packed_and_unpacked

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
def test_the_next_numbers_are_those_that_would_have_come(made, there):
    generator, live = made(), made() if there else None
    drawn(generator)
    copy = packed_and_unpacked(Copier().copy(generator))
    expected = [drawn(generator), drawn(generator)]
    other = Restorer().put(live, copy)
    assert [drawn(other), drawn(other)] == expected
    assert (other is live) == there  # who shares it goes on with it, too


def test_what_has_been_spawned_is_not_spawned_again():
    generator = np.random.default_rng(1)
    generator.spawn(2)
    copy = packed_and_unpacked(Copier().copy(generator))
    other = Restorer().put(np.random.default_rng(1), copy)
    assert other.spawn(1)[0].random() == generator.spawn(1)[0].random()


SEEDS = [["entropy", 1], ["spawn_key", {"tuple": []}], ["pool_size", 4], ["n_children_spawned", 1]]
BITS = {
    "dict": [
        ["bit_generator", "PCG64"],
        ["state", {"dict": [["state", 1], ["inc", 3]]}],
        ["has_uint32", 0],
        ["uinteger", 0],
    ]
}


def generator(seeds):
    return {"generator": ["Generator", {"dict": [["bits", BITS], ["seeds", seeds]]}]}


def test_a_whole_state_of_a_generator_is_taken():
    """Of which the states below lack a part."""
    assert unpack({}, generator({"dict": SEEDS})).kind == "Generator"


@pytest.mark.parametrize(
    "content",
    [
        {"generator": ["Random", {"tuple": [3, {"tuple": []}, None]}]},
        {"generator": ["Popen", []]},
        {
            "generator": [
                "Generator",
                {"dict": [["bits", {"dict": [["bit_generator", "os"]]}], ["seeds", None]]},
            ]
        },
        *(generator({"dict": [part for part in SEEDS if part[0] != name]}) for name, _ in SEEDS),
        generator({"dict": [*SEEDS, ["more", 1]]}),
        generator({"dict": [["entropy", {"int": "f" * 500_000}], *SEEDS[1:]]}),
        generator([]),
    ],
    ids=lambda content: f"{content}"[:80],
)
def test_a_state_of_no_generator_is_corrupt(content):
    with pytest.raises(CheckpointCorruptError, match="is invalid"):
        unpack({}, content)
