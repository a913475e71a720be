"""What a state of a random generator of Python's or NumPy's may be.

Both put a state back nearly unseen, and NumPy indexes memory by what it says: a position that is out of range
reads beside the generator, or ends the process. So a state that comes from a file is looked at before it is
handed to them. Free of TensorFlow. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any

import numpy as np

__all__ = ["BIT_GENERATORS", "require_numpy_state", "require_python_state", "require_seeds"]

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
