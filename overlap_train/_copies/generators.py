"""Random generators of Python and NumPy: their states, taken and put back.

A state decides all that comes next. It is put back into the generator that is there, so that whatever shares
that generator goes on with it too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train._keras.randomness import BIT_GENERATORS, require_numpy_state

_BITS: Mapping[str, Any] = {name: getattr(np.random, name) for name in BIT_GENERATORS}


@dataclass(frozen=True, eq=False)
class GeneratorValue:
    """The state of a generator, in plain values, and the name of its class."""

    kind: str
    state: Any


def is_generator(value: Any) -> bool:
    """Whether a value is a generator whose state is known, and not of a subclass that may hold more."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState)
    return type(value) in kinds or type(value) in _BITS.values()


def copy_generator(value: Any) -> GeneratorValue:
    """Return the state of a generator; nothing of it is shared."""
    kind = type(value)
    if kind is random.Random:
        return GeneratorValue("Random", value.getstate())
    if kind is np.random.RandomState:
        return GeneratorValue("RandomState", _copy_state(value.get_state(legacy=False)))
    bits = value.bit_generator if kind is np.random.Generator else value
    return GeneratorValue(kind.__name__, {"bits": _copy_state(bits.state), "seeds": _seeds_of(bits)})


def require_state(value: GeneratorValue) -> None:
    """Raise TypeError, ValueError or KeyError unless a state can be handed to a generator of its kind."""
    kind, state = value.kind, value.state
    if kind == "Random":
        random.Random().setstate(state)
    elif kind == "RandomState":
        require_numpy_state(state, legacy=True)
    elif type(state) is not dict or state.keys() != {"bits", "seeds"}:
        raise TypeError("a generator without all of its parts")
    else:
        name = require_numpy_state(state["bits"])
        if kind not in ("Generator", name):
            raise ValueError(f"another generator with the state of a {name}")


def put_generator(live: Any, value: GeneratorValue) -> Any:
    """Return a generator with a state, the live one if it takes that; raise what `require_state` raises."""
    require_state(value)
    kind, state = value.kind, value.state
    generator = live if _takes(live, value) else _made(kind, state)
    if kind == "Random":
        generator.setstate(state)
    elif kind == "RandomState":
        generator.set_state(_copy_state(state))
    else:
        bits = generator.bit_generator if kind == "Generator" else generator
        bits.state = _copy_state(state["bits"])
    return generator


def _takes(live: Any, value: GeneratorValue) -> bool:
    """Whether a generator is of the kind of a state, and would spawn the same children."""
    present = copy_generator(live) if is_generator(live) else None
    if present is None or present.kind != value.kind or value.kind == "Random":
        return present is not None and present.kind == value.kind
    before, now = (state.get("bits", state)["bit_generator"] for state in (value.state, present.state))
    seeds = value.state.get("seeds")
    spawns_alike = not seeds or not seeds["n_children_spawned"] or bool(present.state["seeds"] == seeds)
    return before == now and spawns_alike


def _made(kind: str, state: Any) -> Any:
    if kind == "Random":
        return random.Random()
    if kind == "RandomState":
        return np.random.RandomState(_BITS[state["bit_generator"]]())
    seeds = None if state["seeds"] is None else np.random.SeedSequence(**state["seeds"])
    bits = _BITS[state["bits"]["bit_generator"]](seeds)
    return np.random.Generator(bits) if kind == "Generator" else bits


def _seeds_of(bits: Any) -> dict[str, Any] | None:
    """Return what decides the children that a generator spawns, if that is known."""
    seeds = getattr(bits, "seed_seq", None)
    if type(seeds) is not np.random.SeedSequence:
        return None
    entropy = seeds.entropy
    return {
        "entropy": None if entropy is None else np.asarray(entropy, object).tolist(),
        "spawn_key": tuple(int(key) for key in seeds.spawn_key),
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _copy_state(state: Any) -> Any:
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, dict):
        return {name: _copy_state(part) for name, part in state.items()}
    return int(state) if isinstance(state, np.integer) else state
