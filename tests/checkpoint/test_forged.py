"""Checkpoints of right checksums and wrong content: none breaks the reading of those before it."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import random
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlap_train._checkpoint import container
from overlap_train._checkpoint.content import StartPoint
from overlap_train.errors import CheckpointMismatchError
from tests.checkpoint.resuming import LOGS, POSITION, Directory, Training
from tests.checkpoint.states import opened, sealed


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp("saved")
    training = Training(directory)
    training.save()
    return training, Directory(directory)


@pytest.fixture
def training(saved):
    """Returns a training with two checkpoints of which no test has changed anything."""
    training, directory = saved
    directory.restore()
    return training


@pytest.fixture
def newest(training):
    return Path(training.policy.directory) / "ckpt-000002.otck"


def assert_passed_over(training, why: str = "000001.*000002") -> None:
    with pytest.warns(RuntimeWarning, match=why):
        assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)


def rewritten(path: Path, **changes) -> None:
    state = dataclasses.replace(container.read(path), **changes)
    path.write_bytes(b"".join(container.encode(state)))


CURSOR = {"drawn": 1, "seen": 3, "open": False, "epochs": 0, "within": False, "steps": 0}


@pytest.mark.parametrize(
    "meta",
    [
        *({name: None} for name in ("callbacks", "settings", "logs", "stopped", "plan", "in_turn")),
        *({"cursor": {}}, {"cursor": {**CURSOR, "more": 1}}, {"random": {"dict": []}}, {"data": {}}),
        *({"files": [{}]}, {"undelivered": [1]}, {"callbacks": [{"object": ["a", {}]}]}, {"max_lag": 1.5}),
        {"undelivered": [{"epoch": 0, "step": 3, "cursor": CURSOR, "parts": {"dict": []}}]},
    ],
    ids=repr,
)
def test_a_meta_that_no_training_writes_is_passed_over(training, newest, meta):
    rewritten(newest, meta={**container.read(newest).meta, **meta})
    assert_passed_over(training)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda array: None, "its variable 0 is missing"),
        (lambda array: array[:1], r"variable 0 is of shape \(1, 1\) and type float32"),
        (lambda array: array.astype("float64"), "variable 0 is .* and type float64"),
        (lambda array: array.astype("U4"), "variable 0 is"),
    ],
    ids=["missing", "of another shape", "of another dtype", "of text"],
)
def test_variables_that_are_not_those_of_the_model_are_passed_over(training, newest, change, why):
    stored = dict(container.read(newest).arrays)
    changed = change(stored.pop("variables/0"))
    rewritten(newest, arrays=stored if changed is None else {**stored, "variables/0": changed})
    assert_passed_over(training, why)


def test_values_of_callbacks_that_are_not_theirs_are_passed_over(training, newest):
    meta = dict(container.read(newest).meta)
    for callback in meta["callbacks"]:
        if callback["object"][0] == "EarlyStopping":
            callback["object"][1]["monitor"] = "three"
    rewritten(newest, meta=meta)
    assert_passed_over(training, r"000002.*EarlyStopping.monitor is no state of it")


TEXTS = (b"", b"{nope", b"[" * 100_000, b"null", b"[]", b"3", b"\xff\xfe", b"1" * 5000, b'{"epoch": 1}')


@pytest.mark.parametrize("text", [*TEXTS, {"model": 3}, []], ids=lambda text: f"{text!r:.30}")
def test_a_manifest_or_a_fingerprint_that_is_none_is_passed_over(training, newest, text):
    if not isinstance(text, bytes):
        manifest, data = opened(newest.read_bytes())
        newest.write_bytes(sealed(json.dumps({**manifest, "fingerprint": text}).encode(), data))
    else:
        newest.write_bytes(sealed(text))
    assert_passed_over(training, "000002.*is invalid")


def test_a_log_is_durable_before_the_checkpoint_that_counts_on_it(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def noted(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    Training(tmp_path).save()
    (first, *_) = (place for place, name in enumerate(synced) if name.startswith(".ckpt-000001-"))
    assert synced.index("log.csv") < first


# Any bytes.

SCALARS = [
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, 10**400, 0.5, float("nan"), float("inf"), "", "x"),
    *(625, 400_000_000, "\ud800", "a" * 5000, "variables/0", "wait", "__class__"),
]
DTYPES = (
    "O",
    "V8",
    "<f4,<f4",
    "S0",
    "<U1000000000",
    "<M8[ns]",
    "float8_e4m3fn",
    "finfo",
    ">i8",
    "|S4",
    "<c16",
)
PACKED = (
    *("array", "scalar", "tensor", "variable", "tuple", "set", "frozenset", "dict", "deque", "bytes"),
    *("complex", "object", "generator", "again", "same", "int", "floats", "ints", "datetime", "timedelta"),
)


def places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each place of a tree of lists and dicts, as what holds it and the index or key there."""
    left = [tree]
    while left:
        container = left.pop()
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            yield container, key
            if isinstance(container[key], (list, dict)):
                left.append(container[key])


def replaced(sound: bytes) -> Iterator[bytes]:
    """Yields a sound file with each of the values in each place of its manifest, one place at a time."""
    manifest, data = opened(sound)
    for holder, key in list(places(manifest)):
        old = holder[key]
        for value in SCALARS:
            holder[key] = value
            yield sealed(json.dumps(manifest).encode("ascii"), data)
        holder[key] = old


def near(sound: bytes, seed: int) -> Iterator[bytes]:
    """Yields files near a sound one: what breaks a reader is rarely far from what it expects."""
    chance = random.Random(seed)
    while True:
        if chance.random() < 0.15:
            damaged = bytearray(sound)
            at, size = chance.randrange(len(sound)), chance.choice([0, 1, 8, 100])
            damaged[at : at + size] = chance.randbytes(chance.choice([0, size]))
            yield bytes(damaged)
            continue
        manifest, data = opened(sound)
        for _ in range(chance.choice([1, 1, 1, 2, 3, 5])):
            holder, key = chance.choice(list(places(manifest)))
            scalar = chance.choice(SCALARS)
            values = [scalar, chance.choice(DTYPES), [scalar, []], {chance.choice(PACKED): scalar}, []]
            values.append({chance.choice(PACKED): [scalar, holder[key]]})
            if chance.random() < 0.2:
                del holder[key]
            else:
                holder[key] = json.loads(json.dumps(chance.choice(values)))
        yield sealed(json.dumps(manifest).encode("ascii"), data)


def read_all(training: Training, contents: Iterable[bytes]) -> collections.Counter:
    """Reads each of the contents in the place of the newest checkpoint, beside a sound older one."""
    newest = max(Path(training.policy.directory).glob("ckpt-*"))
    outcomes: collections.Counter = collections.Counter()
    for content in contents:
        newest.write_bytes(content)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            try:
                training.resumer().close()
            except CheckpointMismatchError:
                outcomes["refused"] += 1
                continue
        outcomes["older" if any(newest.name in str(each.message) for each in seen) else "taken"] += 1
    return outcomes


def test_no_content_of_a_checkpoint_breaks_its_reading(tmp_path):
    training = Training(tmp_path)
    outcomes = read_all(training, itertools.islice(near(training.save(), seed=1), 100))
    assert outcomes["older"] > 30
    assert outcomes["taken"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_no_value_in_any_place_of_a_checkpoint_breaks_its_reading(tmp_path):
    training = Training(tmp_path)
    sound = training.save()
    for contents in (replaced(sound), itertools.islice(near(sound, seed=2), 50_000)):
        print(dict(read_all(training, contents)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:keras")
@pytest.mark.parametrize(
    "logs",
    [LOGS, {**LOGS, "loss": np.float32(0.5), "vector": np.ones(2), "what": object()}],
    ids=["plain logs", "logs of other kinds"],
)
def test_a_sound_file_is_taken(tmp_path, logs):
    training = Training(tmp_path)
    training.save(logs)
    assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)
