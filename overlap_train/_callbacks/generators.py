"""Random generators of Python and NumPy: their states, taken and put back.

A state decides all that comes next. It is put back into the generator that is there, so that whatever shares
that generator goes on with it too.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from overlap_train._keras.randomness import BIT_GENERATORS, require_numpy_state

_BITS = tuple(getattr(np.random, name) for name in BIT_GENERATORS)


def state_of(value: Any) -> tuple[str, Any] | None:
    """Return the name of a generator's class and its state, in plain values; None for all else.

    A generator that has spawned others is not known: which come next is in its seeds, not in its state.
    """
    if type(value) is random.Random:
        return "Random", value.getstate()
    if type(value) is np.random.RandomState:
        return "RandomState", value.get_state(legacy=False)
    bits: Any = value.bit_generator if type(value) is np.random.Generator else None
    is_known = type(bits) in _BITS and not getattr(bits.seed_seq, "n_children_spawned", 0)
    return ("Generator", bits.state) if is_known else None


def put_state(live: Any, kind: str, state: Any) -> bool:
    """Put a state into a generator of its class and kind; return whether that is what is there."""
    present = state_of(live)
    if present is None or present[0] != kind:
        return False
    if kind == "Random":
        live.setstate(state)
        return True
    name = require_numpy_state(state, legacy=kind == "RandomState")  # NumPy would read past its numbers
    if present[1]["bit_generator"] != name:
        return False
    if kind == "RandomState":
        live.set_state(state)
    else:
        live.bit_generator.state = state
    return True
