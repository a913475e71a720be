"""A: what data that Python makes depends on, taken so that another process makes the same batches again.

That is the state of Python's and NumPy's global generators, and of a `PyDataset` the attributes that have
changed since the training began, or what its own `get_state` or `state_dict` returns. Belongs to the training
thread; taken while nobody draws.
"""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SourceState", "begun_at", "rows_that_tell", "state_at"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (list, tuple, set, frozenset, dict)
_DIGEST_BYTES = 1 << 26
_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class SourceState:
    """Takes the state of a source of batches, and puts it back.

    Attributes:
        left_out: the names of attributes that cannot be taken, and stay as they are.
    """

    def __init__(self, source: Any) -> None:
        """Notes how the source stands as the training begins.

        Args:
            source: an object of the user's, or None for what has no state but that of global generators.
        """
        self._source = source
        self._methods = _speaking_methods(source)
        attributes = {} if self._methods or source is None else vars(source)
        self._digests = {name: _digest(value) for name, value in attributes.items()}
        self.left_out = [name for name, digest in self._digests.items() if digest is None]

    def take(self) -> dict[str, Any]:
        """Returns the present state, in values that a checkpoint can hold; nothing of it is shared.

        Raises:
            TypeError: the source's own method returned something else.
        """
        state: dict[str, Any] = {"python": random.getstate(), "numpy": np.random.get_state()}
        if self._methods:
            own = getattr(self._source, self._methods[0])()
            if _digest(own) is None:
                raise TypeError(
                    f"{type(self._source).__name__}.{self._methods[0]} must return numbers, text, arrays and "
                    f"lists, tuples and dicts of these; got {type(own).__name__}"
                )
            state["spoken"] = _copied(own)
        elif self._source is not None:
            digests = {name: _digest(value) for name, value in vars(self._source).items()}
            known = {name: digest for name, digest in digests.items() if digest is not None}
            changed = [name for name, digest in known.items() if digest != self._digests.get(name)]
            state["attributes"] = {name: _copied(vars(self._source)[name]) for name in changed}
            state["unchanged"] = {name: digest for name, digest in known.items() if name not in changed}
        return state

    def put_back(self, state: dict[str, Any]) -> list[str]:
        """Puts a state of another process back.

        Returns:
            The names of attributes that had not changed there and are others here; they stay as they are.
        """
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        if "spoken" in state and self._methods:
            getattr(self._source, self._methods[1])(_copied(state["spoken"]))
        for name, value in state.get("attributes", {}).items():
            vars(self._source)[name] = _live(vars(self._source).get(name), value)
        return [
            name for name, digest in state.get("unchanged", {}).items() if digest != self._digests.get(name)
        ]


def state_at(iterator: Any, count: int) -> dict[str, Any] | None:
    """Returns the state of a source as its iterator stands, for `begun_at`.

    Args:
        iterator: has `count` and `get_state`; None if there is none.
        count: elements that have been used.

    Returns:
        None if the iterator has drawn others ahead, or has a state that no checkpoint can hold.
    """
    if iterator is None or iterator.count != count:
        return None
    try:
        return SourceState(iterator).take()
    except TypeError:
        return None


def begun_at(source: Any, count: int, state: dict[str, Any]) -> Any:
    """Makes a source begin its next pass where another process stood.

    Args:
        source: has `begin_at`.
        count: elements that had been used.
        state: of `state_at`.

    Returns:
        The iterator of that pass, or None if the source does not take the state: its elements have to be
        drawn.
    """
    try:
        begun = source.begin_at(count, _copied(state["spoken"]))
    except (AttributeError, LookupError, TypeError, ValueError):
        return None
    SourceState(None).put_back(state)
    return begun


def rows_that_tell(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the rows of an array by which it is told from others: all, or of a large one 64 MiB of them.

    These lie evenly over the whole, the first and the last among them.
    """
    if not array.ndim or array.nbytes <= _DIGEST_BYTES:
        return array
    count = max(2, _DIGEST_BYTES // max(1, array.nbytes // len(array)))
    return array[np.unique(np.linspace(0, len(array) - 1, count).astype(np.int64))]


def _speaking_methods(source: Any) -> tuple[str, str] | None:
    """Returns the names of the methods by which a source tells and takes its state, if it has both."""
    for pair in _METHODS:
        if all(callable(getattr(source, name, None)) for name in pair):
            return pair
    return None


def _copied(value: Any) -> Any:
    """Returns a copy in plain values; a random generator becomes its state."""
    if isinstance(value, np.random.Generator):
        return _copied(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _copied(value.get_state(legacy=False))
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.ndarray):
        return np.array(value)
    if type(value) is dict:
        return {key: _copied(part) for key, part in value.items()}
    if type(value) in _CONTAINERS:
        return type(value)(map(_copied, value))
    return value


def _live(present: Any, state: Any) -> Any:
    """Returns what takes the place of an attribute: of a random generator, itself with another state."""
    if isinstance(present, np.random.Generator):
        present.bit_generator.state = state
    elif isinstance(present, np.random.RandomState):
        present.set_state(state)
    elif isinstance(present, random.Random):
        present.setstate(state)
    else:
        return _copied(state)
    return present


def _digest(value: Any) -> bytes | None:
    """Returns what tells a value from another one, or None if it holds what cannot be taken."""
    digest = hashlib.blake2b(digest_size=16)
    return digest.digest() if _add(digest, value, ()) else None


def _add(digest: Any, value: Any, above: tuple[int, ...]) -> bool:
    """Adds a value to a digest; returns whether it can be taken."""
    if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)):
        digest.update(pickle.dumps(_copied(value)))
        return True
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.fields is not None:
            return False
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(rows_that_tell(value)).tobytes())
        return True
    # A list of a million file names is told in one piece.
    flat = type(value) in (list, tuple) and set(map(type, value)).issubset(_PLAIN)
    if flat or type(value) in _PLAIN or isinstance(value, np.generic):
        digest.update(repr(value).encode("utf-8", "surrogateescape"))
        return True
    if type(value) not in _CONTAINERS or id(value) in above:
        return False
    digest.update(f"{type(value).__name__} {len(value)}".encode())
    parts = value.items() if type(value) is dict else value
    return all(_add(digest, part, (*above, id(value))) for part in parts)
