from __future__ import annotations

import os

import pytest

from overlap_train.monitoring.files import replacing


def test_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "new" / "file.txt"
    path.parent.mkdir()
    path.write_text("old")
    with replacing(path) as unfinished:
        assert unfinished.suffix == ".txt"
        unfinished.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(path.parent) == ["file.txt"]


def _write_half(path) -> None:
    with replacing(path) as unfinished:
        unfinished.write_text("half")
        raise RuntimeError("boom")


def test_error_leaves_the_old_file_and_nothing_half(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="boom"):
        _write_half(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_file_is_as_readable_as_any_other_of_the_user(tmp_path):
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "replaced") as unfinished:
        unfinished.write_text("")
    assert (tmp_path / "replaced").stat().st_mode == (tmp_path / "plain").stat().st_mode
