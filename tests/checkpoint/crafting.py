"""Checkpoints made by hand: files whose checksums are right and whose content may be anything."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

_PREAMBLE = struct.Struct("<6sHQ32s")

DTYPES = [
    *("O", "V8", "<f4,<f4", "(2,)f4", "S0", "<U1000000000", "<M8[ns]", "<M8[nonsense]", "float8_e4m3fn"),
    *("finfo", "bfloat16", ">i8", "<i3", "|b1", "<f4", "<f8", "<i4", "|S4", "<U2", "<c16", "object", "a4"),
]
SCALARS = [
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**62, 2**63, 2**64, 10**30, 10**400, 0.5, -0.0, 1e308),
    *(625, 400_000_000, -400_000_000, -(10**12)),
    *(float("nan"), float("inf"), "", "x", "\0", "\ud800", "a" * 5000, "variables/0", "wait", "__class__"),
]
PACKED = (
    "array",
    "scalar",
    "tensor",
    "variable",
    "tuple",
    "set",
    "frozenset",
    "dict",
    "deque",
    "bytes",
    "complex",
    *("object", "generator", "again", "int", "floats", "ints", "datetime", "timedelta", "path"),
)


def _thing(kind: str, items: Any = None, **attributes: Any) -> dict[str, Any]:
    return {"object": [kind, attributes, items, []]}


_LONG = {"int": "f" * 5000}
# Each has the form of what is written, and would not end, or would break what takes it in good faith.
HOSTILE: list[Any] = [
    *(_thing(kind) for kind in ("Mark", "Phase", "OrderedDict", "Nowhere")),
    _thing("Mark", {"dict": []}, count=3, seen={"again": 0}, __class__=1),
    {"set": [_thing("Mark")]},
    {"dict": [[_thing("Phase", "MAIN"), 1]]},
    {"tuple": [{"again": number} for number in range(40)]},
    {"set": [i * (2**61 - 1) for i in range(1, 2000)]},
    {"dict": [[{"tuple": [i * (2**61 - 1)]}, 1] for i in range(1, 2000)]},
    *(_LONG, [_LONG], {"dict": [[_LONG, 1]]}, {"dict": [[1, 2]]}, {"timedelta": [_LONG]}),
    {"generator": ["Random", {"tuple": [_LONG]}]},
]

TEXTS = [
    *(b"", b"{nope", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"[]", b"3", b'"text"', b"NaN", b"\xff\xfe"),
    *(b'{"epoch": 1}', b'{"epoch": 1, "step": 1, "meta": {}, "fingerprint": {}, "arrays": []}', b"1" * 5000),
    b"\x00" * 64,
]


def sealed(text: bytes, data: bytes = b"", *, size: int | None = None, version: int = 3) -> bytes:
    """Returns a file around a manifest, with the checksum that belongs to it."""
    size = len(text) if size is None else size
    return _PREAMBLE.pack(b"OTCKPT", version, size, hashlib.sha256(text).digest()) + text + data


def opened(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the manifest and the data of a sound file."""
    size = _PREAMBLE.unpack_from(content)[2]
    end = _PREAMBLE.size + size
    return json.loads(content[_PREAMBLE.size : end]), content[end:]


def replaced(sound: bytes) -> Iterator[bytes]:
    """Yields a sound file with each of the values in each place of its manifest, one place at a time."""
    manifest, data = opened(sound)
    for container, key in list(_places(manifest)):
        old = container[key]
        for value in [*SCALARS, *HOSTILE]:
            container[key] = value
            yield sealed(json.dumps(manifest).encode("ascii"), data)
        container[key] = old


def fuzzed(sound: bytes, seed: int) -> Iterator[bytes]:
    """Yields files near a sound one, without end: what breaks a reader is rarely far from what it expects."""
    chance = random.Random(seed)
    while True:
        manifest, data = opened(sound)
        kind = chance.random()
        if kind < 0.05:
            yield _damaged(sound, chance)
        elif kind < 0.1:
            yield sealed(_damaged(json.dumps(manifest).encode("ascii"), chance), data)
        elif kind < 0.15:
            yield sealed(chance.choice(TEXTS), chance.randbytes(chance.randrange(9)))
        else:
            for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
                _mutate(manifest, chance)
            if chance.random() < 0.8:
                data = _matching(manifest, data, chance)
            with contextlib.suppress(RecursionError):  # nested deeper than JSON can be written
                text = json.dumps(manifest).encode("ascii")
                claimed = chance.choice([0, 1, 2**32, 2**63, len(text) - 1])
                yield sealed(text, data, size=claimed if chance.random() < 0.02 else None)


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """Flips, inserts, removes and repeats bytes."""
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(damaged) + 1)
        until = at + chance.choice([0, 1, 1, 8, 100])
        damaged[at:until] = chance.choice([b"", chance.randbytes(until - at), bytes(damaged[at:until]) * 2])
    return bytes(damaged)


def _mutate(manifest: dict[str, Any], chance: random.Random) -> None:
    places = list(_places(manifest))
    container, key = chance.choice(places)
    action = chance.random()
    if action < 0.6:
        container[key] = _value(container[key], places, chance)
    elif action < 0.75:
        del container[key]
    elif isinstance(container, list):
        container.insert(key, _value(container[key], places, chance))
    else:
        texts = [scalar for scalar in SCALARS if isinstance(scalar, str)]
        name = chance.choice([key + "x", *texts, *PACKED])
        container[name] = container.pop(key) if action < 0.9 else _value(None, places, chance)


def _value(old: Any, places: list[tuple[Any, Any]], chance: random.Random) -> Any:
    """Returns something to stand in a place of the manifest, where `old` stands."""
    scalar, (container, key) = chance.choice(SCALARS), chance.choice(places)
    nested: Any = []
    for _ in range(chance.choice([5, 100, 400])):
        nested = [nested] if chance.random() < 0.5 else {"tuple": [nested]}
    values = [*[scalar] * 6, chance.choice(DTYPES), nested, [scalar] * chance.randrange(4)]
    values += [{chance.choice(PACKED): content} for content in (scalar, [scalar, []])]
    values.append(copy.deepcopy(chance.choice(HOSTILE)))  # the next mutation may change what it holds
    if key in _keys(container):
        values += [copy.deepcopy(container[key])] * 2
    if isinstance(old, (int, float)) and not isinstance(old, bool) and abs(old) < 2**64:
        values += [old + chance.choice([-1, 1, 0.5, 10**9])] * 2
    return chance.choice(values)


def _matching(manifest: dict[str, Any], data: bytes, chance: random.Random) -> bytes:
    """Returns data of the sizes that the manifest claims, and puts their checksums into it."""
    pieces = []
    entries = manifest.get("arrays")
    for entry in entries if isinstance(entries, list) else []:
        try:
            rows = int(np.prod([int(n) for n in entry["shape"]], dtype=object))
            size = rows * np.dtype(entry["dtype"]).itemsize
        except Exception:
            continue
        if 0 <= size < 100_000:
            start = chance.randrange(max(1, len(data)))
            pieces.append((data[start:] + bytes(size))[:size])
            entry["sha256"] = hashlib.sha256(pieces[-1]).hexdigest()
    return b"".join(pieces)


def _keys(container: Any) -> Any:
    return container if isinstance(container, dict) else range(len(container))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each place of a tree of lists and dicts, as what holds it and the index or key there."""
    left = [tree]
    while left:
        container = left.pop()
        for key in list(_keys(container)):
            yield container, key
            if isinstance(container[key], (list, dict)):
                left.append(container[key])
