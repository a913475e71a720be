"""Checkpoints of right checksums and wrong content: each is passed over for the one before."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from overlap_train._checkpoint import container
from overlap_train._checkpoint.content import StartPoint
from overlap_train._checkpoint.meta import Extent
from overlap_train.errors import CheckpointMismatchError
from tests.checkpoint.crafting import TEXTS, Fuzzer, opened, replaced, sealed
from tests.checkpoint.resuming import LOGS, POSITION, Directory, Training


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


def rewritten(path: Path, **changes) -> None:
    state = dataclasses.replace(container.read(path), **changes)
    path.write_bytes(b"".join(container.encode(state)))


def assert_passed_over(training, why: str) -> None:
    with pytest.warns(RuntimeWarning, match=why):
        assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)


CURSOR = {"drawn": 1, "seen": 3, "open": False, "epochs": 0, "within": False, "steps": 0}


@pytest.mark.parametrize(
    "meta",
    [
        *({"cursor": {**CURSOR, "drawn": value}} for value in (7, 10**9)),
        *({"cursor": {**CURSOR, "seen": value}} for value in (4, -1)),
        *(
            {"cursor": {**CURSOR, name: value}}
            for name, value in dict(open=1, epochs=2, within=1, steps=1).items()
        ),
        {"cursor": {**CURSOR, "within": True, "steps": 1}},
        {"cursor": {**CURSOR, "open": True, "within": True, "steps": 4}},
        *({"cursor": {}}, {"stopped": "no"}, {"settings": {"a": 1}}, {"random": {"dict": []}}),
        *({"logs": value} for value in ({"loss": {}}, [1], {"loss": 10**400})),
        *({"max_lag": value} for value in (-1, True, 1.5)),
        *({"callbacks": {}}, {"callbacks": None}, {"files": {}}, {"files": [{}]}, {"data": {}}, {"data": []}),
        *({"undelivered": {}}, {"undelivered": [1]}),
        {"undelivered": [{"epoch": 1, "step": 3, "cursor": CURSOR, "parts": {"dict": []}}]},
        {"undelivered": [{"epoch": 0, "step": 4, "cursor": CURSOR, "parts": {"dict": []}}]},
        {"undelivered": [{"epoch": 0, "step": 3, "cursor": CURSOR, "parts": {"dict": []}}]},
    ],
    ids=repr,
)
def test_a_meta_that_no_training_writes_is_passed_over(training, newest, meta):
    rewritten(newest, meta={**container.read(newest).meta, **meta})
    assert_passed_over(training, r"Resuming from .*000001.*000002")


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


def test_attributes_of_callbacks_that_are_not_theirs_are_passed_over(training, newest):
    meta = dict(container.read(newest).meta)
    for callback in meta["callbacks"]:
        if callback["object"][0] == "EarlyStopping":
            callback["object"][1]["monitor"] = "three"
    rewritten(newest, meta=meta)
    assert_passed_over(training, r"000002.*EarlyStopping.monitor is no state of it")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"step": 4}, "its step is 4, where at most 3 steps of 1 epochs"),
        ({"epoch": 0}, "its epoch is 0"),
    ],
    ids=str,
)
def test_a_position_that_no_training_reaches_is_passed_over(training, newest, changes, why):
    rewritten(newest, **changes)
    assert_passed_over(training, why)


def test_an_epoch_may_be_as_large_as_there_are_numbers(training, newest):
    rewritten(newest, epoch=2**63 - 1)
    assert training.resume().epoch == 2**63 - 1


@pytest.mark.parametrize(
    "text",
    [*(text for text in TEXTS if b"arrays" not in text), {"model": 3}, []],
    ids=lambda text: f"{text!r:.30}",
)
def test_a_manifest_or_a_fingerprint_that_is_none_is_passed_over(training, newest, text):
    if isinstance(text, bytes):
        newest.write_bytes(sealed(text))
    else:
        manifest, data = opened(newest.read_bytes())
        newest.write_bytes(sealed(json.dumps({**manifest, "fingerprint": text}).encode(), data))
    assert_passed_over(training, r"000002.*(is invalid|fingerprint)")


TOLD = {"fit.steps_per_epoch": "4", "compile.steps_per_execution": "1"}


@pytest.mark.parametrize(
    ("extent", "configuration", "most"),
    [
        (Extent(), TOLD, None),
        (Extent(num_batches=3), TOLD, 30),
        (Extent(num_batches=3, steps_per_epoch=4), None, 30),
        (Extent(None, 4, 1, TOLD), TOLD, 40),
        (Extent(None, 4, 3, TOLD), TOLD, 60),
        (Extent(None, 4, 1, TOLD), {**TOLD, "fit.steps_per_epoch": "9"}, 40 * 1024),
        (Extent(None, 4, 1, TOLD), [1], 40 * 1024),
        (Extent(None, 4, 1, TOLD), {}, 40 * 1024),
    ],
    ids=str,
)
def test_as_many_steps_as_a_training_of_such_epochs_has(extent, configuration, most):
    """Of which a file may say that they were longer, as the user may give another length."""
    assert extent.most_steps(10, configuration) == most


def test_a_log_is_durable_before_the_checkpoint_that_counts_on_it(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def noted(descriptor):
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    Training(tmp_path).save()
    assert synced.index("log.csv") < synced.index(".ckpt-000001.otck.tmp")


# Any bytes.


def fuzz(directory: Path, count: int, seed: int) -> collections.Counter:
    """Resumes from so many files near a sound one; returns what came of them."""
    training = Training(directory)
    sound = training.save()
    return _resumed(directory, training, itertools.islice(Fuzzer(sound, seed), count), f" of seed {seed}")


def _resumed(
    directory: Path, training: Training, contents: Iterable[bytes], source: str = ""
) -> collections.Counter:
    """Resumes from each of the contents in the place of the newest checkpoint, beside a sound older one."""
    older, newest = sorted(Path(training.policy.directory).glob("ckpt-*"))
    log = training.log.read_bytes()
    outcomes: collections.Counter = collections.Counter()
    for number, content in enumerate(contents):
        newest.write_bytes(content)
        try:
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                warnings.filterwarnings("ignore", category=DeprecationWarning, module="keras")
                point = training.resume()
            assert isinstance(point.epoch, int)
            assert isinstance(point.step, int)
            assert isinstance(point.max_lag, int)
            assert point.epoch >= (not point.position.within)
            passed_over = [w for w in seen if newest.name in str(w.message)]
            others = [w for w in seen if w not in passed_over]
            assert not others, str(others[0])
            if passed_over:
                assert point == StartPoint(1, 3, False, LOGS, 1, POSITION)
            outcomes["older" if passed_over else "taken"] += 1
        except CheckpointMismatchError:
            outcomes["refused"] += 1
        except BaseException:
            (directory / "found.otck").write_bytes(content)
            print(f"input {number}{source} is kept as {directory / 'found.otck'}")
            raise
        assert older.exists()
        assert training.log.read_bytes() == log
    return outcomes


def test_no_content_of_a_checkpoint_breaks_a_resume(tmp_path):
    outcomes = fuzz(tmp_path, 60, seed=1)
    assert outcomes["older"] > 15
    assert outcomes["taken"] > 0


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_no_content_of_100000_checkpoints_breaks_a_resume(tmp_path):
    print(dict(fuzz(tmp_path, 100_000, seed=2)))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_no_value_in_any_place_of_a_checkpoint_breaks_a_resume(tmp_path):
    training = Training(tmp_path)
    outcomes = _resumed(tmp_path, training, replaced(training.save()))
    print(dict(outcomes))
    assert outcomes["taken"] > 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning:keras")
@pytest.mark.parametrize(
    "logs",
    [LOGS, {**LOGS, "loss": np.float32(0.5), "vector": np.ones(2), "what": object()}],
    ids=["that of the fuzzer", "logs of other kinds"],
)
def test_a_sound_file_is_taken(tmp_path, logs):
    training = Training(tmp_path)
    training.save(logs)
    assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)
