"""What a fit leaves on the machine: its checkpoints and its caches where they belong, and nothing else."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path

import pytest

from overlap_train import Trainer
from tests import forked, limits_target
from tests.networks import arrays, crossentropy


def watched_fit(tmp_path, **environment):
    """Returns what a process with two fits wrote to, as its audit hook saw it."""
    for name in ("home", "cwd"):
        (tmp_path / name).mkdir()
    variables = {
        "HOME": str(tmp_path / "home"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "OVERLAP_TRAIN_CACHE_DIR": "",
        **environment,
    }
    said = forked.run(limits_target.watched_fits, tmp_path, variables, said=tmp_path / "said")
    return [Path(path) for path in json.loads(said.splitlines()[-1])]


def test_a_fit_writes_nothing_outside_its_cache_and_the_given_directories(tmp_path):
    written = watched_fit(tmp_path)
    allowed = (tmp_path / "cache", tmp_path / "checkpoints", Path("/dev/null"), Path("/proc"))
    assert not [path for path in written if not any(path.is_relative_to(place) for place in allowed)]
    # The hook does see what is written.
    assert any(path.is_relative_to(tmp_path / "checkpoints") for path in written)
    # And of what it cannot see, which is made by native code, nothing is left.
    assert list((tmp_path / "home").iterdir()) == list((tmp_path / "cwd").iterdir()) == []


@pytest.mark.nightly
def test_a_fit_without_a_home_or_a_cache_is_one(tmp_path):
    nowhere = tmp_path / "nowhere"
    nowhere.write_text("a file, in which no folder can be made")
    written = watched_fit(tmp_path, HOME="", XDG_CACHE_HOME="", TMPDIR=str(nowhere))
    outside = [path for path in written if not path.is_relative_to(tmp_path / "checkpoints")]
    assert set(outside) <= {Path("/dev/null")}


def linear():
    import keras

    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", crossentropy())
    return model


def fit(**arguments):
    x, y = arrays(64)
    return Trainer(linear()).fit(x, y, epochs=3, validation_data=arrays(24, 1), verbose=0, **arguments)


def test_a_fit_needs_no_temporary_directory(monkeypatch, tmp_path):
    def refuse():
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", refuse)
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    assert len(fit(resume=tmp_path / "checkpoints").history["val_loss"]) == 3


def test_too_few_threads_for_the_validation_are_named_and_none_is_left(monkeypatch):
    start = threading.Thread.start

    def refuse_the_second(thread):
        if thread.name == "validation-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    x, y = arrays(64)
    with pytest.raises(RuntimeError, match=r"thread 2 of 2 could not be started.*fewer workers"):
        Trainer(linear()).fit(x, y, batch_size=8, validation_data=(x, y), verbose=0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("validation")]
