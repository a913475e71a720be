"""The global random generators: their states are read, checked and set.

These are the generators of `random`, NumPy, TensorFlow's eager operations (`context()._seed`, `_rng`), Keras
(`global_seed_generator`) and `tf.random.get_global_generator` (`global_generator`), from which whatever has
no generator of its own draws, such as a callback. On the training thread.

NumPy indexes memory by a state: a position that is out of range reads other memory, or ends the process. So a
state that comes from a file is checked here first.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from overlap_train._keras.models import set_until
from overlap_train._keras.names import global_seed_generator, global_state

BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""The names of NumPy's bit generators."""

# Numbers by which NumPy indexes memory without looking at them, and the largest that they may be.
_POSITIONS = {"pos": 624, "buffer_pos": 4, "has_uint32": 1, "has_gauss": 1}


def require_numpy_state(state: Any, *, legacy: bool = False) -> str:
    """Return the name of the bit generator whose state it is, or raise TypeError or ValueError.

    With `legacy` it is the state of a `RandomState`.
    """
    try:
        name, numbers = state["bit_generator"], state["state"]
        bits = getattr(np.random, BIT_GENERATORS[BIT_GENERATORS.index(name)])(0)
        for part, largest in _POSITIONS.items():
            if not 0 <= operator.index(numbers.get(part, state.get(part, 0))) <= largest:
                raise ValueError(f"a state of {name} whose {part} is out of range")
        if legacy:  # NumPy looks at the rest
            np.random.RandomState(bits).set_state(state)
        else:
            bits.state = state
    except (AttributeError, LookupError, OverflowError) as error:
        raise ValueError("a state that NumPy does not take") from error
    return str(name)


def random_states(handle_ids: Collection[int] = ()) -> dict[str, Any]:
    """Return copies of the states, in plain values, without variables that are restored elsewhere."""
    eager = context.context()
    generator = getattr(eager, "_rng", None)
    states: dict[str, Any] = {
        "python": _packed(random.getstate()),
        "numpy": numpy_state(),
        "eager": None if generator is None else [eager._seed, _packed(generator.getstate())],
    }
    for name, variable in global_variables().items():
        if id(variable.handle) not in handle_ids:
            states[name] = variable.numpy()
    return states


def set_random_states(states: Mapping[str, Any], handle_ids: Collection[int] = ()) -> None:
    """Set states of `random_states`; what is none raises Value-, Type-, Lookup- or OverflowError."""
    if "keras" in states:
        global_seed_generator()  # its construction draws from Python's generator
    if "tensorflow" in states:
        stateful_random_ops.get_global_generator()
    for name, variable in global_variables().items():
        if name in states and id(variable.handle) not in handle_ids:
            array = np.asarray(states[name])
            if array.dtype != variable.dtype.as_numpy_dtype or array.shape != tuple(variable.shape):
                raise ValueError(f"a state of {array.dtype}{array.shape} for one of {variable.dtype.name}")
            variable.assign(array)
    eager = context.context()
    if states["eager"] is None:
        eager._seed = None  # no seed had been set
    else:
        eager._seed, state = states["eager"]
        eager._rng = random.Random()
        eager._rng.setstate(_unpacked(state))
    set_numpy_state(states["numpy"])
    random.setstate(_unpacked(states["python"]))


def global_seed(seed: int | None) -> contextlib.ExitStack:
    """Set TensorFlow's global seed for traces in the block; eager operations go on drawing as before."""
    undo = contextlib.ExitStack()
    set_until(undo, context.context(), "_seed", seed)
    return undo


def numpy_state() -> Any:
    """Return a copy of the state of NumPy's global generator."""
    state = np.random.get_state(legacy=False)
    return {**state, "state": {name: np.copy(part)[()] for name, part in state["state"].items()}}


def set_numpy_state(state: Any) -> None:
    """Set the state of NumPy's global generator; ValueError if it is that of another kind of generator."""
    require_numpy_state(state, legacy=True)
    np.random.set_state(state)


def _packed(state: Any) -> list[Any]:
    """Return the state of a `random.Random` with its numbers in an array."""
    version, numbers, gauss = state
    return [version, np.array(numbers, np.uint32), gauss]


def _unpacked(state: Any) -> Any:
    """Return a packed state as Python takes it, or raise TypeError or ValueError."""
    version, numbers, gauss = state
    if not isinstance(numbers, np.ndarray) or numbers.ndim != 1:  # one of no elements may have any shape
        raise TypeError(f"numbers of type {type(numbers).__name__}")
    unpacked = (version, tuple(numbers.tolist()), gauss)
    random.Random().setstate(unpacked)
    return unpacked


def global_variables() -> dict[str, tf.Variable]:
    """Return the state variables of the global generators that exist, by library."""
    variables = {}
    generator = global_state.get_global_attribute("global_seed_generator")
    if isinstance(generator, keras.random.SeedGenerator):
        variables["keras"] = generator.state.value
    shared = getattr(stateful_random_ops, "global_generator", None)
    if isinstance(shared, tf.random.Generator):
        variables["tensorflow"] = shared.state
    return variables
