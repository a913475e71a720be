from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_train.monitoring.table import format_epoch_table, format_metric
from overlap_train.records import EpochAccount

_FIRST = (
    EpochAccount(0, 469, trained_s=3.251, validated_s=1.04, hidden_s=1.0, waited_s=0.04),
    {"accuracy": 0.91234, "loss": 0.3, "val_accuracy": 0.97, "val_loss": 0.1},
)
_SECOND = (
    EpochAccount(1, 469, trained_s=3.0, validated_s=1.0, hidden_s=0.5, waited_s=0.0),
    {"accuracy": 0.95, "loss": 0.2},
)


def test_table_of_an_ordinary_fit():
    assert format_epoch_table([_FIRST, _SECOND]).splitlines() == [
        "epoch  accuracy    loss  val_accuracy  val_loss  trained  validated  hidden  waited",
        "                                                       s          s       s       s",
        "-----  --------  ------  ------------  --------  -------  ---------  ------  ------",
        "    1    0.9123  0.3000        0.9700    0.1000     3.25       1.04    1.00    0.04",
        "    2    0.9500  0.2000             -         -     3.00       1.00    0.50    0.00",
        "-----  --------  ------  ------------  --------  -------  ---------  ------  ------",
        "total                                               6.25       2.04    1.50    0.04",
    ]


def test_time_rolled_back_is_shown_only_where_there_was_some():
    assert "rolled back" not in format_epoch_table([_FIRST])
    rolled_back = EpochAccount(2, 469, trained_s=1.0, rolled_back_s=2.5)
    table = format_epoch_table([_FIRST, (rolled_back, {})])
    assert table.splitlines()[-1].endswith("2.50")


def test_a_slow_host_is_shown_only_where_there_was_one():
    assert "slow host" not in format_epoch_table([_FIRST])
    slow = EpochAccount(2, 469, trained_s=9.0, slow_host=3, slow_host_s=2.5)
    lines = format_epoch_table([_SECOND, (slow, {})]).splitlines()
    assert lines[0].endswith("slow host")
    assert lines[3].endswith("0.00")
    assert lines[4].endswith("3: 2.50")


def test_validation_metrics_stand_after_training_metrics_that_come_later():
    table = format_epoch_table([_FIRST, (_SECOND[0], {"learning_rate": 1e-4})])
    heading = table.splitlines()[0].split()
    assert heading.index("learning_rate") < heading.index("val_accuracy")
    assert "1.000e-04" in table


def test_wide_table_goes_on_below_and_loses_nothing():
    names = [f"val_metric_{i:02}" for i in range(23)]
    table = format_epoch_table([(_FIRST[0], {name: float(i) for i, name in enumerate(names)})])
    assert max(map(len, table.splitlines())) <= 100
    assert re.findall(r"val_metric_\d\d", table) == names
    assert re.findall(r"\d+\.\d{4}", table) == [f"{i:.4f}" for i in range(23)]
    assert table.splitlines()[-1].split() == ["total", "3.25", "1.04", "1.00", "0.04"]


def test_a_name_wider_than_the_table_is_not_cut():
    name = "m" * 120
    assert name in format_epoch_table([(_FIRST[0], {name: 1.0})])


def test_no_epoch_is_said():
    assert format_epoch_table([]) == "No epoch was trained."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.2500"),
        (0, "0.0000"),
        (-0.5, "-0.5000"),
        (0.00012, "1.200e-04"),
        (-1.5e7, "-1.500e+07"),
        (99999, "99999.0000"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "-"),
    ],
)
def test_metric_values_stay_readable(value, text):
    assert format_metric(value) == text


@given(
    st.lists(
        st.tuples(
            st.builds(
                EpochAccount,
                st.integers(0, 10_000),
                st.integers(0, 100),
                trained_s=st.floats(0, 1e6),
                rolled_back_s=st.floats(0, 10),
            ),
            st.dictionaries(st.sampled_from(["loss", "val_loss", "a_long_metric_name"]), st.floats(width=32)),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 120),
)
def test_columns_are_aligned_in_every_block(rows, width):
    for block in format_epoch_table(rows, width=width).split("\n\n"):
        lines = block.splitlines()
        ends = {
            match.end()
            for match in re.finditer("-+", next(line for line in lines if set(line) == {"-", " "}))
        }
        for line in lines:
            assert {m.end() for m in re.finditer(r"\S+(?: back)?", line)} <= ends
