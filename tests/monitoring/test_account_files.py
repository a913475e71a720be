"""Accounts of epochs as lines of JSON, as scalars of TensorBoard and as a table."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
from dataclasses import asdict

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing import event_accumulator

from overlap_train.monitoring.account_files import AccountLog, AccountWriter
from overlap_train.monitoring.recorder import EpochAccounts
from overlap_train.monitoring.table import format_epoch_table, format_metric
from overlap_train.monitoring.timeline import save_timeline
from overlap_train.records import EpochAccount, FitAccount, Span
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
        (record,) = _records(path)  # before it is closed
    assert record == asdict(_ACCOUNT) | {"metrics": {"loss": 0.25, "val_loss": 0.5}}
    assert [record[name] for name in ("epoch", "steps", "trained_s", "slow_host")] == [2, 469, 3.5, None]


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


@pytest.mark.parametrize("rest", ['{"epoch": 1', ""])
def test_half_a_line_left_by_a_crash_does_not_spoil_the_next(tmp_path, rest):
    path = tmp_path / "log"
    path.write_text('{"epoch": 0}\n' + rest)
    with AccountLog(path) as log:
        log.write(_ACCOUNT)
    lines = path.read_text().splitlines()
    assert lines[:-1] == ['{"epoch": 0}', rest][: 1 + bool(rest)]
    assert json.loads(lines[-1])["epoch"] == 2


def test_full_disk_leaves_no_half_line(tmp_path):
    class Full(io.FileIO):
        def write(self, line):
            return super().write(line[:20])

    path = tmp_path / "log"
    with AccountLog(path) as log:
        log.write(_ACCOUNT)
        before = path.read_bytes()
        log._file.close()
        log._file = Full(path, "a+")
        with pytest.raises(OSError, match="disk full"):
            log.write(_ACCOUNT)
        assert path.read_bytes() == before


@pytest.mark.parametrize("make", [AccountLog, AccountWriter])
def test_close_twice_is_once_and_a_late_write_is_refused(tmp_path, make):
    made = make(tmp_path / "place")
    made.close()
    made.close()
    with pytest.raises(RuntimeError, match="is closed"):
        made.write(_ACCOUNT, **({} if make is AccountLog else {"step": 0}))


def test_what_is_forgotten_warns_and_closes_its_file(tmp_path):
    log, writer = AccountLog(tmp_path / "log"), AccountWriter(tmp_path / "scalars")
    descriptor = log._file.fileno()
    with pytest.warns(ResourceWarning, match="unclosed file .*log"):
        del log
    with pytest.warns(ResourceWarning, match="was not closed"):
        writer.__del__()
    with pytest.raises(OSError) as caught:
        os.fstat(descriptor)
    assert caught.value.errno == errno.EBADF
    with pytest.raises(IsADirectoryError):
        AccountLog(tmp_path)
    with pytest.raises(FileExistsError):
        AccountWriter(tmp_path / "log")


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
        writer.write(_ACCOUNT, {"loss": 0.25, "acc": math.nan}, step=2)
        before_close = _scalars(tmp_path)
    none = ("waited_s", "snapshot_s", "delivered_s", "rolled_back_s", "other_s", "slow_host_s")
    seconds = {"trained_s": 3.5, "validated_s": 1.0, "hidden_s": 0.75, **dict.fromkeys(none, 0.0)}
    expected = {(f"account/{name}", 2): value for name, value in seconds.items()}
    assert math.isnan(before_close.pop(("validation/acc", 2)))
    assert before_close == expected | {("validation/loss", 2): 0.25}


def test_tensorboard_reads_the_accounts_and_the_timeline(tmp_path):
    picture = save_timeline(tmp_path / "timeline.png", [Span("train", "main", 0.0, 1.0, epoch=0)])
    with AccountWriter(tmp_path / "logs") as writer:
        writer.write(_ACCOUNT, step=2)
        writer.write_picture(picture, step=3)
    reader = event_accumulator.EventAccumulator(str(tmp_path / "logs"), {"tensors": 0, "images": 0})
    data = reader.Reload()
    assert "account/trained_s" in data.Tags()["tensors"]
    (event,) = data.Tensors("timeline")
    width, height, png = event.tensor_proto.string_val
    assert event.step == 3
    assert png.startswith(b"\x89PNG")
    assert int(width) > int(height) > 0


def test_what_is_no_picture_is_refused_by_its_name(tmp_path):
    (tmp_path / "timeline.svg").write_text("<svg/>")
    with AccountWriter(tmp_path / "logs") as writer:
        with pytest.raises(ValueError, match=r"timeline\.svg is no PNG; pass one"):
            writer.write_picture(tmp_path / "timeline.svg", step=0)
        with pytest.raises(FileNotFoundError):
            writer.write_picture(tmp_path / "absent.png", step=0)
        with pytest.raises(ValueError, match="step must be at least 0"):
            writer.write_picture(tmp_path / "timeline.svg", step=-1)


def test_what_is_no_number_is_left_out_whatever_it_raises(tmp_path):
    odd = {"a": 10**400, "b": [10**400], "c": Unprintable(), "d": 1j, "e": "text"}
    with AccountWriter(tmp_path) as writer:
        writer.write(EpochAccount(0, 1, trained_s=10**400), {**odd, "loss": 1.0}, step=1)
    found = _scalars(tmp_path)
    assert [tag for tag, _ in found if tag.startswith("validation/")] == ["validation/loss"]
    assert ("account/trained_s", 1) not in found


def test_default_writer_and_step_of_the_thread_stay_as_they_were(tmp_path):
    own = tf.summary.create_file_writer(str(tmp_path / "own"))
    with own.as_default(step=7), AccountWriter(tmp_path / "ours") as writer:
        with tf.summary.record_if(False):  # which switches off the user's
            writer.write(_ACCOUNT, step=2)
        tf.summary.scalar("mine", 1.0)
        assert tf.summary.experimental.get_step() == 7
    assert not tf.summary.should_record_summaries()
    own.close()
    assert _scalars(tmp_path / "own") == {("mine", 7): 1.0}
    assert {step for _, step in _scalars(tmp_path / "ours")} == {2}


_FIRST = (
    EpochAccount(0, 469, trained_s=3.251, validated_s=1.04, hidden_s=1.0, waited_s=0.04),
    {"accuracy": 0.91234, "loss": 0.3, "val_accuracy": 0.97, "val_loss": 0.1},
)
_SECOND = (
    EpochAccount(1, 469, trained_s=3.0, validated_s=1.0, hidden_s=0.5, waited_s=0.0),
    {"accuracy": 0.95, "loss": 0.2},
)


_FIT = FitAccount(fit_s=9.0, prepared_s=2.71, validated_s=2.04, hidden_s=1.5, waited_s=0.04, saved_s=1.2)


def test_table_of_an_ordinary_fit():
    assert format_epoch_table([_FIRST, _SECOND], _FIT).splitlines() == [
        "   epoch  accuracy    loss  val_accuracy  val_loss   all  trained  waited  rest  validated  hidden",
        "                                                       s        s       s     s          s       s",
        "--------  --------  ------  ------------  --------  ----  -------  ------  ----  ---------  ------",
        "prepared                                            2.71",
        "       1    0.9123  0.3000        0.9700    0.1000  3.29     3.25    0.04  0.00       1.04    1.00",
        "       2    0.9500  0.2000             -         -  3.00     3.00    0.00  0.00       1.00    0.50",
        "--------  --------  ------  ------------  --------  ----  -------  ------  ----  ---------  ------",
        "   total                                            9.00     6.25    0.04  0.00       2.04    1.50",
        "validation 74% hidden; about 1.2 s saved; nothing waited",
    ]


def test_an_interrupted_fit_has_a_row_for_what_was_not_delivered_and_one_without_validation_no_sentence():
    lines = format_epoch_table([_FIRST], FitAccount(8.0, 1.0, undelivered_s=3.71)).splitlines()
    assert lines[-3].split() == ["partial", "3.71"]
    assert lines[-1].split()[:2] == ["total", "8.00"]


def test_the_accounts_of_a_fit_show_themselves():
    accounts = EpochAccounts([_FIRST[0], _SECOND[0]], {0: _FIRST[1], 1: {"a<b": 1.0}}, _FIT)
    assert accounts == [_FIRST[0], _SECOND[0]]
    assert repr(accounts) == format_epoch_table([_FIRST, (_SECOND[0], {"a<b": 1.0})], _FIT)
    html = accounts._repr_html_()
    assert html.count("<tr>") == 1 + 4
    assert "a&lt;b" in html
    assert str(_FIT) in html
    assert (repr(EpochAccounts()), EpochAccounts()._repr_html_()) == ("No epoch was trained.",) * 2


def test_time_rolled_back_and_a_slow_host_are_shown_only_where_there_were_some():
    assert format_epoch_table([]) == "No epoch was trained."
    assert not {"rolled", "slow"} & set(format_epoch_table([_FIRST]).split())
    rolled_back = EpochAccount(2, 469, trained_s=1.0, rolled_back_s=2.5)
    lines = format_epoch_table([_FIRST, (rolled_back, {})]).splitlines()
    (heading,) = (line for line in lines if "rolled back" in line)
    assert heading[: lines[-1].index("2.50") + 4].endswith("rolled back")
    slow = EpochAccount(2, 469, trained_s=9.0, slow_host=3, slow_host_s=2.5)
    lines = format_epoch_table([_SECOND, (slow, {"m" * 120: 1.0})]).splitlines()
    assert any("m" * 120 in line for line in lines), "a name wider than the table is not cut"
    lines = format_epoch_table([_SECOND, (slow, {})]).splitlines()
    assert lines[0].endswith("slow host")
    assert lines[3].endswith("0.50")
    assert lines[4].endswith("3: 2.50")


def test_wide_table_goes_on_below_and_loses_nothing():
    names = [f"val_metric_{i:02}" for i in range(23)]
    table = format_epoch_table([(_FIRST[0], {name: float(i) for i, name in enumerate(names)})])
    assert max(map(len, table.splitlines())) <= 100
    assert re.findall(r"val_metric_\d\d", table) == names
    assert re.findall(r"\d+\.\d{4}", table) == [f"{i:.4f}" for i in range(23)]
    assert table.splitlines()[-1].split() == ["total", "3.29", "3.25", "0.04", "0.00", "1.04", "1.00"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.2500"),
        (0.00012, "1.2000e-04"),
        (-1.5e7, "-1.5000e+07"),
        (99999, "99999.0000"),
        (math.nan, "nan"),
        (None, "-"),
    ],
)
def test_metric_values_stay_readable(value, text):
    assert format_metric(value) == text
