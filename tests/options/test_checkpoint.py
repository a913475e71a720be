"""Where, when and how many checkpoints are kept: what cannot be meant is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from overlap_train import CheckpointPolicy
from overlap_train.errors import CheckpointError
from overlap_train.options.checkpoint import checkpoint_policy


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (dict(directory=3), TypeError, "directory must be a path"),
        (dict(directory="d", every_epochs=0), ValueError, "every_epochs must be at least 1"),
        (dict(directory="d", every_steps=0), ValueError, "every_steps must be at least 1"),
        (dict(directory="d", every_steps="5"), TypeError, "every_steps must be an integer or"),
        (dict(directory="d", keep=1.0), TypeError, "keep must be an int"),
        (dict(directory="d", every_s=-1), ValueError, "every_s must be at least 0"),
    ],
)
def test_bad_values_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        CheckpointPolicy(**arguments)


def test_numbers_of_numpy_are_taken(tmp_path):
    policy = CheckpointPolicy(
        directory=tmp_path, every_epochs=np.int64(2), keep=np.int8(1), every_s=np.float32(0)
    )
    assert (policy.every_epochs, policy.keep) == (2, 1)
    assert type(policy.keep) is int


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="resume='run' is relative, and the working directory is gone"):
        checkpoint_policy("run")


@pytest.mark.parametrize(
    ("resume", "error"),
    [("a\0b", ValueError), ("\ud800", ValueError), ("", ValueError), (b"run", TypeError), (3, TypeError)],
    ids=repr,
)
def test_what_is_no_path_is_refused_by_the_name_of_the_argument(resume, error):
    with pytest.raises(error, match="resume must be"):
        checkpoint_policy(resume)


def test_a_directory_is_a_policy_of_its_own_and_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checkpoint_policy(None) is None
    assert checkpoint_policy("run") == CheckpointPolicy(directory=str(tmp_path / "run"))
    assert checkpoint_policy(Path("run")).directory == str(tmp_path / "run")
    kept = checkpoint_policy(CheckpointPolicy(directory="run", keep=7, every_s=1.5))
    assert (kept.directory, kept.keep, kept.every_s) == (str(tmp_path / "run"), 7, 1.5)


def test_the_directory_needs_no_name_and_a_misspelt_argument_is_answered():
    assert CheckpointPolicy("runs") == CheckpointPolicy(directory="runs")
    with pytest.raises(TypeError, match=r"has no argument 'every_epoch'; did you mean 'every_epochs'"):
        CheckpointPolicy("runs", every_epoch=2)
    with pytest.raises(TypeError, match="by name; got 1 without one"):
        CheckpointPolicy("runs", 2)
