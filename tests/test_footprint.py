"""What a fit leaves on the machine: its checkpoints and its caches where they belong, and nothing else."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from tests import forked, limits_target


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


def test_a_fit_needs_no_temporary_directory(monkeypatch, tmp_path):
    def refuse():
        raise FileNotFoundError("no usable temporary directory found")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", refuse)
    with pytest.raises(FileNotFoundError):
        tempfile.gettempdir()
    assert len(limits_target.fit(resume=tmp_path / "checkpoints")["val_loss"]) == limits_target.EPOCHS
