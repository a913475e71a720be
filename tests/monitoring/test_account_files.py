"""Accounts of epochs as lines of JSON and as scalars of TensorBoard."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from dataclasses import asdict

import numpy as np
import pytest
import tensorflow as tf

from overlap_train.monitoring.account_files import AccountLog, AccountWriter
from overlap_train.records import EpochAccount
from tests.support.values import Unprintable

_ACCOUNT = EpochAccount(2, 469, trained_s=3.5, validated_s=1.0, hidden_s=0.75)


def _records(path) -> list[dict]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_line_holds_the_account_and_the_metrics(tmp_path):
    path = tmp_path / "new" / "accounts.jsonl"
    with AccountLog(path) as log:
        log.write(_ACCOUNT, {"loss": 0.25, "val_loss": np.float32(0.5)})
    (record,) = _records(path)
    assert record == asdict(_ACCOUNT) | {"metrics": {"loss": 0.25, "val_loss": 0.5}}
    assert [record[name] for name in ("epoch", "steps", "trained_s", "slow_host")] == [2, 469, 3.5, None]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_json_lacks_becomes_null(tmp_path, value):
    with AccountLog(tmp_path / "log") as log:
        log.write(EpochAccount(0, 1, trained_s=value), {"loss": value})
    record = _records(tmp_path / "log")[0]
    assert record["trained_s"] is None
    assert record["metrics"] == {"loss": None}


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [[10**400], Unprintable(), nested(3000), np.datetime64("2026"), 10**400])
def test_no_metric_costs_the_line(tmp_path, value):
    with AccountLog(tmp_path / "log") as log:
        log.write(_ACCOUNT, {"odd": value, "loss": 1.0})
    assert _records(tmp_path / "log")[0]["metrics"]["loss"] == 1.0


@pytest.mark.parametrize("name", [np.int64(3), (1, "a"), b"loss", math.nan, None, Unprintable(), "\udcff"])
def test_no_name_of_a_metric_costs_the_line(tmp_path, name):
    with AccountLog(tmp_path / "log") as log:
        log.write(_ACCOUNT, {name: 1.0})
    assert list(_records(tmp_path / "log")[0]["metrics"].values()) == [1.0]


def test_a_pipe_is_written_to_and_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with AccountLog(tmp_path / "pipe") as log, open(tmp_path / "pipe") as reader:
        log.write(_ACCOUNT)
        assert json.loads(reader.readline())["epoch"] == 2


def test_line_can_be_read_before_close(tmp_path):
    with AccountLog(tmp_path / "log") as log:
        log.write(_ACCOUNT)
        assert len(_records(tmp_path / "log")) == 1


def test_reopened_log_goes_on_behind_what_was_there(tmp_path):
    for _ in range(2):
        with AccountLog(tmp_path / "log") as log:
            log.write(_ACCOUNT)
    assert len(_records(tmp_path / "log")) == 2


@pytest.mark.parametrize(
    ("rest", "epochs"), [('{"epoch": 1', [0, 2]), ('{"epoch": 1}', [0, 1, 2]), ("", [0, 2])]
)
def test_half_a_line_left_by_a_crash_does_not_spoil_the_next(tmp_path, rest, epochs):
    path = tmp_path / "log"
    path.write_text('{"epoch": 0}\n' + rest)
    with AccountLog(path) as log:
        log.write(_ACCOUNT)
    assert [record["epoch"] for record in _records(path)] == epochs


def test_half_a_line_that_is_nested_too_deep_is_cut_off(tmp_path):
    (tmp_path / "log").write_text("[" * 100_000)
    with AccountLog(tmp_path / "log") as log:
        log.write(_ACCOUNT)
    assert [record["epoch"] for record in _records(tmp_path / "log")] == [2]


def test_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    path = tmp_path / "log"
    with AccountLog(path) as log:
        log.write(_ACCOUNT)
        before = path.read_bytes()
        write = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:20]))
        with pytest.raises(OSError, match="disk full"):
            log.write(_ACCOUNT)
        assert path.read_bytes() == before


def test_writers_in_two_threads_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "log"
    together = threading.Barrier(2)

    def work(epoch: int) -> None:
        with AccountLog(path) as log:
            together.wait(60)
            for _ in range(200):
                log.write(EpochAccount(epoch, 1, trained_s=1.0), {"m" * 100: 1.0})

    threads = [threading.Thread(target=work, args=(epoch,)) for epoch in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(record["epoch"] for record in _records(path)) == [0] * 200 + [1] * 200


@pytest.mark.parametrize("make", [AccountLog, AccountWriter])
def test_close_twice_is_once_and_a_late_write_is_refused(tmp_path, make):
    made = make(tmp_path / "place")
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="is closed"):
        made.write(_ACCOUNT, **({} if make is AccountLog else {"step": 0}))


def test_forgotten_writer_warns(tmp_path):
    writer = AccountWriter(tmp_path)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del writer


def test_forgotten_log_warns_and_closes_its_file(tmp_path):
    log = AccountLog(tmp_path / "log")
    descriptor = log._descriptor
    with pytest.warns(ResourceWarning, match="was not closed"):
        del log
    with pytest.raises(OSError) as caught:
        os.fstat(descriptor)
    assert caught.value.errno == errno.EBADF


def test_a_folder_in_the_place_of_the_file_is_an_error_and_no_leak(tmp_path):
    with pytest.raises(IsADirectoryError):
        AccountLog(tmp_path)


# Scalars of TensorBoard.


def _scalars(log_dir) -> dict[tuple[str, int], float]:
    """Reads (tag, step) -> value back from the event files, without their header records."""
    values = {}
    for path in sorted(log_dir.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                values[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    return values


def test_seconds_and_metrics_stand_at_the_step_given(tmp_path):
    with AccountWriter(tmp_path) as writer:
        writer.write(_ACCOUNT, {"loss": 0.25}, step=2)
    none = ("waited_s", "snapshot_s", "delivered_s", "rolled_back_s", "slow_host_s")
    seconds = {"trained_s": 3.5, "validated_s": 1.0, "hidden_s": 0.75, **dict.fromkeys(none, 0.0)}
    expected = {(f"account/{name}", 2): value for name, value in seconds.items()}
    assert _scalars(tmp_path) == expected | {("validation/loss", 2): 0.25}


def test_what_is_no_number_is_left_out_whatever_it_raises(tmp_path):
    odd = {"a": 10**400, "b": [10**400], "c": Unprintable(), "d": 1j, "e": "text"}
    with AccountWriter(tmp_path) as writer:
        writer.write(EpochAccount(0, 1, trained_s=10**400), {**odd, "loss": 1.0}, step=1)
    found = _scalars(tmp_path)
    assert [tag for tag, _ in found if tag.startswith("validation/")] == ["validation/loss"]
    assert ("account/trained_s", 1) not in found


def test_no_name_of_a_metric_costs_the_epoch(tmp_path):
    with AccountWriter(tmp_path) as writer:
        writer.write(_ACCOUNT, {"\udcff": 1.0, Unprintable(): 2.0, 3: 4.0}, step=1)
    values = [value for (tag, _), value in _scalars(tmp_path).items() if tag.startswith("validation/")]
    assert values == [1.0, 2.0, 4.0]


def test_values_are_on_disk_before_close(tmp_path):
    with AccountWriter(tmp_path) as writer:
        writer.write(_ACCOUNT, {"loss": math.nan}, step=0)
        assert math.isnan(_scalars(tmp_path)["validation/loss", 0])


def test_default_writer_and_step_of_the_thread_stay_as_they_were(tmp_path):
    own = tf.summary.create_file_writer(str(tmp_path / "own"))
    with own.as_default(step=7), AccountWriter(tmp_path / "ours") as writer:
        writer.write(_ACCOUNT, step=2)
        tf.summary.scalar("mine", 1.0)
        assert tf.summary.experimental.get_step() == 7
    assert not tf.summary.should_record_summaries()
    own.close()
    assert _scalars(tmp_path / "own") == {("mine", 7): 1.0}
    assert {step for _, step in _scalars(tmp_path / "ours")} == {2}


def test_summaries_switched_off_by_the_user_do_not_switch_off_ours(tmp_path):
    with tf.summary.record_if(False), AccountWriter(tmp_path) as writer:
        writer.write(_ACCOUNT, step=0)
    assert ("account/trained_s", 0) in _scalars(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        AccountWriter(tmp_path / "file")
