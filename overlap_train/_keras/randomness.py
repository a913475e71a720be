"""The random generators that belong to everybody: their states, taken and put back.

Those of `random`, NumPy, TensorFlow's eager operations (`context()._seed`, `_rng`), Keras
(`global_seed_generator`) and `tf.random.get_global_generator` (`global_generator`). Who draws without a
generator of its own, such as a callback, gets the numbers that follow. On the training thread.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Collection, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from overlap_train._keras.generator_states import require_numpy_state, require_python_state
from overlap_train._keras.names import global_seed_generator, global_state

__all__ = [
    "check_random_states",
    "global_seed",
    "global_variables",
    "numpy_state",
    "random_states",
    "set_numpy_state",
    "set_random_states",
]

_numpy_random: Any = np.random  # whose stubs lack the two functions that ask for its kind and set it
_LONGEST_SEED_BITS = 1 << 12
_NUMBERS = 625  # of the state of a generator of Python's


def random_states(known: Collection[int] = ()) -> dict[str, Any]:
    """Return the states, in plain values; nothing of them is shared.

    Variables whose handles have an `id` in `known` are left out: something else restores them.
    """
    eager = context.context()
    generator = getattr(eager, "_rng", None)
    states: dict[str, Any] = {
        "python": _short(random.getstate()),
        "numpy": numpy_state(),
        "eager": None if generator is None else [eager._seed, _short(generator.getstate())],
    }
    for name, variable in _variables().items():
        if id(variable.handle) not in known:
            states[name] = variable.numpy()
    return states


def set_random_states(states: Mapping[str, Any], known: Collection[int] = ()) -> None:
    """Put states of `random_states` back, but for the variables in `known`.

    What is no state raises ValueError, TypeError, LookupError or OverflowError.
    """
    if "keras" in states:
        global_seed_generator()  # which draws from Python's when it is made
    if "tensorflow" in states:
        stateful_random_ops.get_global_generator()
    for name, variable in _variables().items():
        if name in states and id(variable.handle) not in known:
            variable.assign(_fitting(variable, states[name]))
    if states["eager"] is not None:
        seed, state = states["eager"]
        generator = random.Random()
        generator.setstate(_long(state))
        eager = context.context()
        eager._seed, eager._rng = seed, generator
    set_numpy_state(states["numpy"])
    random.setstate(_long(states["python"]))


def global_seed(seed: int | None) -> contextlib.ExitStack:
    """Set TensorFlow's global seed for what is traced within; eager operations draw on as they did."""
    eager = context.context()
    before, eager._seed = eager._seed, seed
    undo = contextlib.ExitStack()
    undo.callback(setattr, eager, "_seed", before)
    return undo


def check_random_states(states: Mapping[str, Any]) -> None:
    """Raise what `set_random_states` would raise for states, and change nothing."""
    _long(states["python"])
    require_numpy_state(states["numpy"], legacy=True)
    if states["eager"] is not None:
        if type(states["eager"]) is not list:
            raise TypeError(f"a state of type {type(states['eager']).__name__}")
        seed, state = states["eager"]
        _long(state)
        if seed is not None and (type(seed) is not int or seed.bit_length() > _LONGEST_SEED_BITS):
            raise TypeError(f"a seed of type {type(seed).__name__}, or one that is too long")
    for name, size in (("keras", 2), ("tensorflow", 3)):
        value = states.get(name, np.zeros(size, np.int64))
        if type(value) is not np.ndarray:  # of what else, NumPy might make one of any size
            raise TypeError(f"a state of type {type(value).__name__}")
        if value.dtype != np.int64 or value.shape != (size,):
            raise TypeError(f"a state of {value.dtype}{value.shape}")


def numpy_state() -> Any:
    """Return the state of NumPy's global generator; nothing of it is shared."""
    state = np.random.get_state(legacy=False)
    return {**state, "state": {name: np.copy(part)[()] for name, part in state["state"].items()}}


def set_numpy_state(state: Any) -> None:
    """Put a state of NumPy's global generator back, which then draws from what it drew from.

    It is one of `numpy_state`, or a tuple as NumPy returns it for the generator that it begins with.
    """
    generator = getattr(np.random, require_numpy_state(state, legacy=True))(0)
    shared = _numpy_random
    if type(shared.get_bit_generator()) is not type(generator):
        shared.set_bit_generator(generator)
    shared.set_state(state)


def _short(state: Any) -> list[Any]:
    """Return the state of a generator of Python's with its numbers in an array."""
    version, numbers, gauss = state
    return [version, np.array(numbers, np.uint32), gauss]


def _long(state: Any) -> Any:
    """Return the state as Python takes it, or raise TypeError or ValueError."""
    if type(state) is not list:
        raise TypeError(f"a state of type {type(state).__name__}")
    version, numbers, gauss = state
    # By its shape, too: an array without elements may have any number of rows.
    right = isinstance(numbers, np.ndarray) and (numbers.dtype, numbers.shape) == (np.uint32, (_NUMBERS,))
    if not right:
        raise TypeError(f"numbers of type {type(numbers).__name__}")
    long = (version, tuple(numbers.tolist()), gauss)
    require_python_state(long)
    return long


def global_variables() -> list[tf.Variable]:
    """Return the states of Keras's and TensorFlow's global generators, of those that there are."""
    return list(_variables().values())


def _variables() -> dict[str, tf.Variable]:
    """Return the variables of the generators that exist."""
    found = {}
    generator = global_state.get_global_attribute("global_seed_generator")
    if isinstance(generator, keras.random.SeedGenerator):
        found["keras"] = generator.state.value
    shared = getattr(stateful_random_ops, "global_generator", None)
    if isinstance(shared, tf.random.Generator):
        found["tensorflow"] = shared.state
    return found


def _fitting(variable: tf.Variable, value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if array.dtype != variable.dtype.as_numpy_dtype or array.shape != tuple(variable.shape):
        raise ValueError(f"a state of {array.dtype}{array.shape} for one of {variable.dtype.name}")
    return array
