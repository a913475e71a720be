"""Whatever the bytes of a checkpoint, a training goes on from it or from the one before, or says why not."""

from __future__ import annotations

import collections
import itertools
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from overlap_train._checkpoint.resume import StartPoint
from overlap_train.errors import CheckpointMismatchError
from tests.checkpoint.crafting import Fuzzer, replaced
from tests.checkpoint.resuming import LOGS, POSITION, Training


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
    outcomes = fuzz(tmp_path, 120, seed=1)
    assert outcomes["older"] > 30
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


def test_the_sound_file_of_the_fuzzer_is_taken(tmp_path):
    training = Training(tmp_path)
    training.save()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="keras")
        assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)


def test_logs_of_other_kinds_do_not_hinder_a_checkpoint(tmp_path):
    training = Training(tmp_path)
    training.save({**LOGS, "loss": np.float32(0.5), "vector": np.ones(2), "what": object()})
    assert training.resume() == StartPoint(1, 3, False, LOGS, 1, POSITION)
