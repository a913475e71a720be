"""Random generators of Python and NumPy: their states, taken and put back.

A state decides all that comes next. It is put back into the generator that is there, so that whatever shares
that generator goes on with it too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from overlap_train._keras.randomness import BIT_GENERATORS

_BITS = tuple(getattr(np.random, name) for name in BIT_GENERATORS)


@dataclass(frozen=True, eq=False)
class GeneratorValue:
    """The state of a generator, in plain values, and the name of its class."""

    kind: str
    state: Any


def is_generator(value: Any) -> bool:
    """Whether a value is a generator whose state is known: all that it is, and what it has spawned."""
    if isinstance(value, np.random.Generator):
        value = value.bit_generator if type(value) is np.random.Generator else None
    if type(value) in (random.Random, np.random.RandomState):
        return True
    # Which children come next is in the seeds, not in the state.
    seeds = getattr(value, "seed_seq", None)
    return type(value) in _BITS and not getattr(seeds, "n_children_spawned", 0)


def copy_generator(value: Any) -> GeneratorValue:
    """Return the state of a generator; nothing of it is shared."""
    kind = type(value)
    if kind is random.Random:
        return GeneratorValue("Random", value.getstate())
    if kind is np.random.RandomState:
        return GeneratorValue("RandomState", _copy_state(value.get_state(legacy=False)))
    return GeneratorValue(kind.__name__, _copy_state(_bits_of(value).state))


def takes(live: Any, value: GeneratorValue) -> bool:
    """Whether a generator is of the kind that a state is of."""
    present = copy_generator(live) if is_generator(live) else None
    if present is None or present.kind != value.kind or value.kind == "Random":
        return present is not None and present.kind == value.kind
    return bool(present.state["bit_generator"] == value.state["bit_generator"])


def put_generator(live: Any, value: GeneratorValue) -> None:
    """Give a generator that `takes` a state that one."""
    if value.kind == "Random":
        live.setstate(value.state)
    elif value.kind == "RandomState":
        live.set_state(_copy_state(value.state))
    else:
        _bits_of(live).state = _copy_state(value.state)


def _bits_of(value: Any) -> Any:
    return value.bit_generator if isinstance(value, np.random.Generator) else value


def _copy_state(state: Any) -> Any:
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, dict):
        return {name: _copy_state(part) for name, part in state.items()}
    return int(state) if isinstance(state, np.integer) else state
