"""The random generators that belong to everybody: their states, taken, checked and put back.

Those of `random`, NumPy, TensorFlow's eager operations (`context()._seed`, `_rng`), Keras
(`global_seed_generator`) and `tf.random.get_global_generator` (`global_generator`). What draws without a
generator of its own, such as a callback, gets the numbers that follow. On the training thread.

Python and NumPy put a state back nearly unseen, and NumPy indexes memory by what it says: a position that is
out of range reads beside the generator, or ends the process. So a state that comes from a file is looked at
before it is handed to them.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import stateful_random_ops

from overlap_train._keras.names import global_seed_generator, global_state

__all__ = [
    "BIT_GENERATORS",
    "check_random_states",
    "global_seed",
    "global_variables",
    "numpy_state",
    "random_states",
    "require_numpy_state",
    "require_python_state",
    "require_seeds",
    "set_numpy_state",
    "set_random_states",
]


BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
"""The generators of bits of NumPy's whose states are known."""

_PYTHONS_NUMBERS = 625  # of the state of a generator of Python's: 624, and the position in them
_SEED_PARTS = frozenset(("entropy", "spawn_key", "pool_size", "n_children_spawned"))
_LARGEST_POOL = 64
_MOST_SEED_BITS = 1 << 14  # NumPy takes a time that grows with the square of an integer's length

_Check = Callable[[Any], bool]


def _whole(most: int) -> _Check:
    return lambda value: (
        isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= int(value) <= most
    )


def _words(count: int, dtype: Any) -> _Check:
    return lambda value: (
        type(value) is np.ndarray and value.dtype.newbyteorder("=") == dtype and value.shape == (count,)
    )


_LONG = {"state": _whole(2**128 - 1), "inc": _whole(2**128 - 1)}
# What each keeps under "state", and beside it.
_INNER: Mapping[str, Mapping[str, _Check]] = {
    "MT19937": {"key": _words(624, np.uint32), "pos": _whole(624)},
    "PCG64": _LONG,
    "PCG64DXSM": _LONG,
    "Philox": {"counter": _words(4, np.uint64), "key": _words(2, np.uint64)},
    "SFC64": {"state": _words(4, np.uint64)},
}
_HALF: Mapping[str, _Check] = {"has_uint32": _whole(1), "uinteger": _whole(2**32 - 1)}
_OUTER: Mapping[str, Mapping[str, _Check]] = {
    "MT19937": {},
    "PCG64": _HALF,
    "PCG64DXSM": _HALF,
    "Philox": {"buffer": _words(4, np.uint64), "buffer_pos": _whole(4), **_HALF},
    "SFC64": _HALF,
}
# A RandomState has these besides.
_NORMAL: Mapping[str, _Check] = {
    "has_gauss": _whole(1),
    "gauss": lambda value: isinstance(value, (float, np.floating)),
}


def require_numpy_state(state: Any, *, legacy: bool = False) -> str:
    """Return the name of the bit generator whose state it is, or raise TypeError or ValueError.

    With `legacy` it is the state of a `RandomState`, also as the tuple of five that NumPy returns for
    MT19937.
    """
    if legacy and type(state) is tuple:
        if len(state) != 5:
            raise ValueError(f"a state of {len(state)} parts")
        name, key, pos, has_gauss, gauss = state
        state = {"bit_generator": name, "state": {"key": key, "pos": pos}}
        state |= {"has_gauss": has_gauss, "gauss": gauss}
    if type(state) is not dict or type(state.get("bit_generator")) is not str:
        raise TypeError("a state that names no generator of bits")
    name = state["bit_generator"]
    if name not in BIT_GENERATORS:
        raise ValueError(f"a state of {name:.80}")
    inner = state.get("state")
    if type(inner) is not dict or inner.keys() != _INNER[name].keys():
        raise TypeError(f"a state of {name} without all of its parts")
    outer = {**_OUTER[name], **(_NORMAL if legacy else {})}
    if state.keys() != {"bit_generator", "state", *outer}:
        raise TypeError(f"a state of {name} with other parts than its own")
    _require_parts(name, inner, _INNER[name])
    _require_parts(name, state, outer)
    return name


def require_python_state(state: Any) -> None:
    """Raise TypeError or ValueError unless a state can be that of a generator of Python's."""
    if type(state) is not tuple or len(state) != 3:
        raise TypeError("a state that is no tuple of three")
    version, numbers, gauss = state
    whole, index = _whole(2**32 - 1), _whole(_PYTHONS_NUMBERS - 1)
    right = type(numbers) is tuple and len(numbers) == _PYTHONS_NUMBERS and all(map(whole, numbers))
    if type(version) is not int or version != 3 or not right or not index(numbers[-1]):
        raise ValueError("a state of other numbers than a generator's")
    if not isinstance(gauss, (float, NoneType)):
        raise TypeError(f"a number of type {type(gauss).__name__}")


def require_seeds(parts: Any) -> None:
    """Raise TypeError or ValueError unless parts can be those of a `SeedSequence` that is soon made."""
    if type(parts) is not dict or parts.keys() != _SEED_PARTS:
        raise ValueError("seeds without all of their parts")
    entropy, key = parts["entropy"], parts["spawn_key"]
    numbers = [] if entropy is None else entropy if type(entropy) is list else [entropy]
    if type(key) is not tuple or not all(type(n) is int and n >= 0 for n in (*numbers, *key)):
        raise TypeError("seeds that are no whole numbers")
    bits = sum(max(32, number.bit_length()) for number in (*numbers, *key))
    if bits > _MOST_SEED_BITS:
        raise ValueError(f"seeds of {bits} bits")
    if not _whole(_LARGEST_POOL)(parts["pool_size"]) or parts["pool_size"] < 4:
        raise ValueError("a pool of another size")
    if not _whole(2**32 - 1)(parts["n_children_spawned"]):
        raise ValueError("seeds of another number of children")


def _require_parts(name: str, parts: Mapping[str, Any], checks: Mapping[str, _Check]) -> None:
    for part, fits in checks.items():
        if not fits(parts[part]):
            raise ValueError(f"a state of {name} whose {part} is out of range")


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
