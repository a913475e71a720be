"""Random generators of Python and NumPy: their states, taken and put back.

A state says all that comes next. It is put back into the generator that is there, so that whoever shares it
goes on with it, too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train._keras.randomness import (
    BIT_GENERATORS,
    require_numpy_state,
    require_python_state,
    require_seeds,
)

__all__ = [
    *("GeneratorValue", "copied_generator", "is_generator", "made_generator", "require_state"),
    *("set_generator", "takes_state"),
]

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


def copied_generator(value: Any) -> GeneratorValue:
    """Return the state of a generator; nothing of it is shared."""
    kind = type(value)
    if kind is random.Random:
        return GeneratorValue("Random", value.getstate())
    if kind is np.random.RandomState:
        return GeneratorValue("RandomState", _copied_state(value.get_state(legacy=False)))
    bits = value.bit_generator if kind is np.random.Generator else value
    seeds = getattr(bits, "seed_seq", None)
    known = type(seeds) is np.random.SeedSequence and _is_short(seeds)
    state = {"bits": _copied_state(bits.state), "seeds": _sequence(seeds) if known else None}
    return GeneratorValue(kind.__name__, state)


def made_generator(value: GeneratorValue) -> Any:
    """Return a generator with a state; raise what `require_state` raises."""
    kind, state = value.kind, value.state
    require_state(value)
    if kind == "Random":
        made = random.Random()
        made.setstate(state)
        return made
    if kind == "RandomState":
        legacy = np.random.RandomState(_BITS[state["bit_generator"]]())
        legacy.set_state(_copied_state(state))
        return legacy
    made_of, seeds = _BITS[state["bits"]["bit_generator"]], state["seeds"]
    bits = made_of() if seeds is None else made_of(np.random.SeedSequence(**seeds))
    bits.state = _copied_state(state["bits"])
    return np.random.Generator(bits) if kind == "Generator" else bits


def require_state(value: GeneratorValue) -> None:
    """Raise TypeError, ValueError or KeyError unless a state can be handed to a generator of its kind."""
    kind, state = value.kind, value.state
    if kind == "Random":
        require_python_state(state)
    elif kind == "RandomState":
        require_numpy_state(state, legacy=True)
    elif type(state) is not dict or state.keys() != {"bits", "seeds"}:
        raise TypeError("a generator without all of its parts")
    else:
        name = require_numpy_state(state["bits"])
        if kind not in ("Generator", name):
            raise ValueError(f"another generator with the state of a {name}")
        if state["seeds"] is not None:
            require_seeds(state["seeds"])


def _is_short(seeds: np.random.SeedSequence) -> bool:
    """Whether a sequence of seeds is one that a file may hold."""
    try:
        require_seeds(_sequence(seeds))
    except (TypeError, ValueError):
        return False
    return True


def takes_state(live: Any, value: GeneratorValue) -> bool:
    """Whether a generator can be given a state: it is of the same kind, and spawns what that one would."""
    if not is_generator(live):
        return False
    now = copied_generator(live)
    if now.kind != value.kind:
        return False
    if value.kind == "Random":
        return True
    if value.kind == "RandomState":
        return bool(now.state["bit_generator"] == value.state["bit_generator"])
    alike = now.state["bits"]["bit_generator"] == value.state["bits"]["bit_generator"]
    return bool(alike and _spawn_alike(now, value))


def set_generator(live: Any, value: GeneratorValue) -> None:
    """Give a generator a state that it takes; raise what `require_state` raises."""
    require_state(value)
    if value.kind == "Random":
        live.setstate(value.state)
    elif value.kind == "RandomState":
        live.set_state(_copied_state(value.state))
    else:
        bits = live.bit_generator if value.kind == "Generator" else live
        bits.state = _copied_state(value.state["bits"])


def _spawn_alike(now: GeneratorValue, value: GeneratorValue) -> bool:
    """Whether what a generator spawns next is what it spawned next then."""
    ours, theirs = now.state["seeds"], value.state["seeds"]
    return theirs is None or not theirs["n_children_spawned"] or _same(ours, theirs)


def _same(first: Any, second: Any) -> bool:
    return first is not None and dict(first) == dict(second)


def _sequence(seeds: Any) -> dict[str, Any]:
    entropy = seeds.entropy
    return {
        "entropy": None if entropy is None else np.asarray(entropy, object).tolist(),
        "spawn_key": tuple(int(key) for key in seeds.spawn_key),
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _copied_state(state: Any) -> Any:
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, dict):
        return {name: _copied_state(part) for name, part in state.items()}
    return int(state) if isinstance(state, np.integer) else state
