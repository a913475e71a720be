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


class Fuzzer:
    """Makes files that are near a sound one: what breaks a reader is rarely far from what it expects."""

    def __init__(self, sound: bytes, seed: int) -> None:
        self._sound = sound
        self._chance = random.Random(seed)

    def __iter__(self) -> Iterator[bytes]:
        while True:
            kind = self._chance.random()
            if kind < 0.1:
                yield self._damaged(self._sound)
            elif kind < 0.15:
                yield sealed(self._chance.choice(TEXTS), self._chance.randbytes(self._chance.randrange(9)))
            else:
                with contextlib.suppress(RecursionError):  # nested deeper than JSON can be written
                    yield self._mutated()

    def _damaged(self, content: bytes) -> bytes:
        """Flips, inserts, removes and repeats bytes, in half of the cases under a right checksum."""
        damaged = bytearray(content)
        for _ in range(self._chance.randint(1, 4)):
            at = self._chance.randrange(len(damaged) + 1)
            until = at + self._chance.choice([0, 1, 1, 8, 100])
            new = self._chance.choice([b"", self._chance.randbytes(until - at), bytes(damaged[at:until]) * 2])
            damaged[at:until] = new
        if self._chance.random() < 0.5 and len(damaged) > _PREAMBLE.size:
            size = min(_PREAMBLE.unpack_from(content)[2], len(damaged) - _PREAMBLE.size)
            end = _PREAMBLE.size + size
            return sealed(bytes(damaged[_PREAMBLE.size : end]), bytes(damaged[end:]))
        return bytes(damaged)

    def _mutated(self) -> bytes:
        """Changes values of the manifest, and in most cases makes sizes and checksums right again."""
        manifest, data = opened(self._sound)
        for _ in range(self._chance.choice([1, 1, 1, 2, 3, 5])):
            self._mutate(manifest)
        if self._chance.random() < 0.8:
            data = self._matching(manifest, data)
        text = json.dumps(manifest).encode("ascii")
        size = (
            None if self._chance.random() < 0.98 else self._chance.choice([0, 1, 2**32, 2**63, len(text) - 1])
        )
        return sealed(text, data, size=size)

    def _mutate(self, manifest: dict[str, Any]) -> None:
        places = list(_places(manifest))
        container, key = self._chance.choice(places)
        action = self._chance.random()
        if action < 0.6:
            container[key] = self._value(container[key], places)
        elif action < 0.75:
            del container[key]
        elif isinstance(container, list):
            container.insert(key, self._value(container[key], places))
        else:
            name = self._chance.choice([key + "x", *filter(lambda s: isinstance(s, str), SCALARS), *PACKED])
            container[name] = container.pop(key) if action < 0.9 else self._value(None, places)

    def _value(self, old: Any, places: list[tuple[Any, Any]]) -> Any:
        kind = self._chance.random()
        if kind < 0.4:
            return self._chance.choice(SCALARS)
        small = isinstance(old, (int, float)) and not isinstance(old, bool) and abs(old) < 2**64
        if kind < 0.5 and small:
            return old + self._chance.choice([-1, 1, 0.5, 10**9])
        if kind < 0.55:
            return self._chance.choice(DTYPES)
        if kind < 0.6:
            return copy.deepcopy(self._chance.choice(HOSTILE))  # the next mutation may change what it holds
        if kind < 0.75:
            content = self._chance.choice(SCALARS) if kind < 0.68 else [self._chance.choice(SCALARS), []]
            return {self._chance.choice(PACKED): content}
        if kind < 0.8:
            return [self._chance.choice(SCALARS) for _ in range(self._chance.randrange(4))]
        if kind < 0.83:
            nested: Any = []
            for _ in range(self._chance.choice([5, 100, 400])):
                nested = [nested] if self._chance.random() < 0.5 else {"tuple": [nested]}
            return nested
        container, key = self._chance.choice(places)
        return json.loads(json.dumps(container[key])) if key in _keys(container) else old

    def _matching(self, manifest: dict[str, Any], data: bytes) -> bytes:
        """Returns data of the sizes that the manifest claims, and puts their checksums into it."""
        import numpy as np

        pieces = []
        entries = manifest.get("arrays")
        for entry in entries if isinstance(entries, list) else []:
            try:
                size = (
                    int(np.prod([int(n) for n in entry["shape"]], dtype=object))
                    * np.dtype(entry["dtype"]).itemsize
                )
            except Exception:
                continue
            if 0 <= size < 100_000:
                start = self._chance.randrange(max(1, len(data)))
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
