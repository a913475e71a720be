from __future__ import annotations

import math

import pytest
import tensorflow as tf

from overlap_train.monitoring.account_files import AccountWriter
from overlap_train.records import EpochAccount
from tests.support.values import Unprintable

pytest.importorskip("tensorboard", reason="tf.summary needs the package tensorboard")

_ACCOUNT = EpochAccount(2, 469, trained_s=3.5, validated_s=1.0, hidden_s=0.75)


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


def test_close_twice_is_once_and_a_late_write_is_refused(tmp_path):
    writer = AccountWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        writer.write(_ACCOUNT, step=0)


def test_forgotten_writer_warns(tmp_path):
    writer = AccountWriter(tmp_path)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del writer


def test_a_file_in_the_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        AccountWriter(tmp_path / "file")
