"""Random generators of Python and NumPy: their states, taken and put back.

A state says all that comes next. It is put back into the generator that is there, so that whoever shares it
goes on with it, too.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

import numpy as np

__all__ = [
    *("GeneratorValue", "copied_generator", "is_generator", "made_generator", "set_generator", "takes_state"),
]

_BITS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64),
    )
}
_NUMBER = r"(-?[\d.e+-]+)"
_COUNT = re.compile(r"count\(" + _NUMBER + "(?:, " + _NUMBER + r")?\)")
# All of a seed sequence; NumPy would take fewer, and what is compared with it later needs each.
_PARTS = frozenset(("entropy", "spawn_key", "pool_size", "n_children_spawned"))
_LARGEST_POOL = 64


@dataclass(frozen=True, eq=False)
class GeneratorValue:
    """The state of a generator.

    Attributes:
        kind: the name of its class.
        state: in plain values.
    """

    kind: str
    state: Any


def is_generator(value: Any) -> bool:
    """Whether a value is a generator whose state is known, and not of a subclass that may hold more."""
    kinds = (random.Random, np.random.Generator, np.random.RandomState, np.random.SeedSequence)
    if type(value) is itertools.count:
        return _COUNT.fullmatch(repr(value)) is not None
    return type(value) in kinds or type(value) in _BITS.values()


def copied_generator(value: Any) -> GeneratorValue:
    """Returns the state of a generator; nothing of it is shared."""
    kind = type(value)
    if kind is random.Random:
        return GeneratorValue("Random", value.getstate())
    if kind is np.random.RandomState:
        return GeneratorValue("RandomState", _copied_state(value.get_state(legacy=False)))
    if kind is np.random.SeedSequence:
        return GeneratorValue("SeedSequence", _sequence(value))
    if kind is itertools.count:
        found = _COUNT.fullmatch(repr(value))
        numbers = () if found is None else found.groups()
        return GeneratorValue("count", tuple(_number(text) for text in numbers if text))
    bits = value.bit_generator if kind is np.random.Generator else value
    seeds = getattr(bits, "seed_seq", None)
    known = type(seeds) is np.random.SeedSequence
    state = {"bits": _copied_state(bits.state), "seeds": _sequence(seeds) if known else None}
    return GeneratorValue(kind.__name__, state)


def made_generator(value: GeneratorValue) -> Any:
    """Returns a generator with a state.

    Raises:
        KeyError: there is no such kind or bit generator.
        TypeError: the state is none, as for `ValueError`, `AttributeError` and `OverflowError`.
    """
    kind, state = value.kind, value.state
    _require_plain(state)
    if kind == "Random":
        made = random.Random()
        made.setstate(state)
        return made
    if kind == "count":
        return itertools.count(*state)
    if kind == "SeedSequence":
        return _made_sequence(state)
    if kind == "RandomState":
        legacy = np.random.RandomState(_BITS[state["bit_generator"]]())
        legacy.set_state(_copied_state(state))
        return legacy
    name = state["bits"]["bit_generator"]
    if kind not in ("Generator", name):
        raise ValueError(f"a {kind} with the state of a {name}")
    seeds = state["seeds"]
    bits = _BITS[name]() if seeds is None else _BITS[name](_made_sequence(seeds))
    bits.state = _copied_state(state["bits"])
    return np.random.Generator(bits) if kind == "Generator" else bits


def _require_plain(state: Any) -> None:
    """Raises `TypeError` for what no state holds: NumPy would read a range to its end, if it has one."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, (list, tuple)):
        for part in state:
            _require_plain(part)
    elif not isinstance(state, (np.ndarray, np.generic, int, float, str, NoneType)):
        raise TypeError(f"a state with a {type(state).__name__}")


def takes_state(live: Any, value: GeneratorValue) -> bool:
    """Whether a generator can be given a state: it is of the same kind, and spawns what that one would."""
    if not is_generator(live):
        return False
    now = copied_generator(live)
    if now.kind != value.kind or value.kind in ("count", "SeedSequence"):
        return False
    if value.kind == "Random":
        return True
    if value.kind == "RandomState":
        return bool(now.state["bit_generator"] == value.state["bit_generator"])
    alike = now.state["bits"]["bit_generator"] == value.state["bits"]["bit_generator"]
    return bool(alike and _spawn_alike(now, value))


def set_generator(live: Any, value: GeneratorValue) -> None:
    """Gives a generator a state that it takes."""
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
    return first is not None and repr(sorted(first.items())) == repr(sorted(second.items()))


def _sequence(seeds: Any) -> dict[str, Any]:
    entropy = seeds.entropy
    return {
        "entropy": None if entropy is None else np.asarray(entropy, object).tolist(),
        "spawn_key": tuple(int(key) for key in seeds.spawn_key),
        "pool_size": seeds.pool_size,
        "n_children_spawned": seeds.n_children_spawned,
    }


def _made_sequence(parts: Any) -> np.random.SeedSequence:
    if parts.keys() != _PARTS:
        raise ValueError(f"seeds of {sorted(parts)!r:.80}")
    if not 4 <= parts["pool_size"] <= _LARGEST_POOL:
        raise ValueError(f"a pool of {parts['pool_size']!r:.80}")
    return np.random.SeedSequence(**parts)


def _copied_state(state: Any) -> Any:
    if isinstance(state, np.ndarray):
        return state.copy()
    if isinstance(state, dict):
        return {name: _copied_state(part) for name, part in state.items()}
    return int(state) if isinstance(state, np.integer) else state


def _number(text: str) -> int | float:
    return float(text) if re.search(r"[.e]", text) else int(text)
