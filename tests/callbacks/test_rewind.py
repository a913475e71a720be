"""CSV logs: a resumed run writes each row once, and a log of another training stays whole."""

import os
from dataclasses import replace

import keras
import pytest

from overlap_train._callbacks.rewind import FileMark, append_to_files, files_of, mark_files, rewind_files

HEADER = "epoch,loss\r\n"


def rows(*epochs: int) -> str:
    return "".join(f"{epoch},0.{epoch}\r\n" for epoch in epochs)


def logger(path, *, append=False):
    return keras.callbacks.CSVLogger(path, append=append)


def marked(path, text: str):
    """Writes what a training has written when its checkpoint is made, and marks it."""
    path.write_bytes(text.encode())
    return mark_files(files_of([logger(path)]))


def after(path, marks, epoch: int) -> str:
    rewind_files([logger(path)], marks, epoch)
    return path.read_bytes().decode()


SINCE = {
    "none": "",
    "several": rows(2, 3, 4),
    "a digit": rows(2) + "3",
    "a field": rows(2) + "3,",
    "half an end": rows(2) + "3,0.3\r",
    "half a row": "2",
}


@pytest.mark.parametrize("earlier", ["", rows(*range(6))], ids=["alone", "behind an earlier training"])
@pytest.mark.parametrize("since", SINCE.values(), ids=SINCE)
def test_rows_of_epochs_that_run_again_are_cut(tmp_path, since, earlier):
    path, before = tmp_path / "log.csv", HEADER + earlier + rows(0, 1)
    marks = marked(path, before)
    path.write_bytes((before + since).encode())
    assert after(path, marks, 2) == before


@pytest.mark.parametrize("since", ["", rows(2), rows(2, 3), rows(0)])
def test_a_log_that_was_empty_keeps_its_header(tmp_path, since):
    marks = marked(path := tmp_path / "log.csv", "")
    path.write_bytes((HEADER + since).encode())
    assert after(path, marks, 2) == HEADER + (since if since == rows(0) else "")


FOREIGN = {
    "an earlier epoch": rows(0, 1, 2, 3),
    "a header": HEADER + rows(2, 3),
    "a later epoch": rows(9),
    "one whose number begins alike": rows(20),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN)
def test_rows_that_another_training_appended_stay(tmp_path, foreign):
    path, before = tmp_path / "log.csv", HEADER + rows(0, 1)
    marks = marked(path, before)
    path.write_bytes((before + foreign).encode())
    assert after(path, marks, 2) == before + foreign


def test_another_log_is_appended_to(tmp_path):
    marks = marked(tmp_path / "own.csv", HEADER + rows(0, 1))
    other = tmp_path / "other.csv"
    other.write_bytes((HEADER + rows(0, 1, 2, 3)).encode())  # the same bytes, and still another's
    assert after(other, marks, 2) == HEADER + rows(0, 1, 2, 3)


@pytest.mark.parametrize("now", ["", HEADER + rows(0), HEADER + rows(0, 7) + rows(2, 3)])
def test_a_log_that_was_replaced_since_is_appended_to(tmp_path, now):
    path = tmp_path / "log.csv"
    marks = marked(path, HEADER + rows(0, 1))
    path.write_bytes(now.encode())
    assert after(path, marks, 2) == now


def test_each_of_several_logs_is_cut_at_its_own_mark(tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    callbacks = [keras.callbacks.History(), *(logger(path) for path in paths)]
    contents = [HEADER + rows(0), HEADER + rows(0, 1)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content.encode())
    marks = mark_files(files_of(callbacks))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes((content + rows(2)).encode())
    rewind_files(callbacks, marks, 2)
    assert [path.read_bytes().decode() for path in paths] == contents


def test_a_relative_log_is_marked_where_the_training_began(tmp_path, monkeypatch):
    (tmp_path / "log.csv").write_text(HEADER + rows(0))
    monkeypatch.chdir(tmp_path)
    paths = files_of([logger("log.csv")])
    monkeypatch.chdir("/")
    (mark,) = mark_files(paths)
    assert mark.path == str(tmp_path / "log.csv")


def test_what_is_no_file_is_neither_read_nor_cut(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    callbacks = [logger(tmp_path / name) for name in ("pipe", "directory", "none.csv")]
    callbacks.append(logger("gs://bucket/log.csv"))
    assert mark_files(files_of(callbacks)) == ()
    marks = [FileMark(str(tmp_path / name), 0, "") for name in ("pipe", "directory", "none.csv")]
    rewind_files([*callbacks, keras.callbacks.History()], marks, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "pipe"]


def test_loggers_are_made_to_append_and_told_apart_by_who_would_not_have(tmp_path):
    loggers = [logger(tmp_path / "a.csv"), logger(tmp_path / "b.csv", append=True)]
    assert append_to_files([*loggers, keras.callbacks.History()]) == loggers[:1]
    assert all(each.append for each in loggers)
    assert append_to_files(loggers) == []


def test_a_mark_says_no_more_than_the_file_holds(tmp_path):
    path, before = tmp_path / "log.csv", HEADER + rows(0, 1)
    (mark,) = marked(path, before + rows(2, 3))
    path.write_bytes(before.encode())  # what a power cut left
    assert after(path, [mark], 4) == before
    assert after(path, [replace(mark, size_bytes=10**12)], 4) == before
