"""The report of what was timed, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overlap_train.conv import format_report, report, selection
from overlap_train.conv.shapes import MATMUL, STOCK, ConvKey, Timing

KEY = ConvKey("forward", "float32", (8, 9, 7, 3), (3, 3, 3, 4), (1, 1), "SAME")


@pytest.fixture(autouse=True)
def _forget_timings():
    selection.clear_timings()
    yield
    selection.clear_timings()


def test_nothing_timed_is_a_head_alone():
    assert report() == ()
    (head,) = format_report().splitlines()
    assert head.split()[:3] == ["convolution", "direction", "tf.nn"]


def test_a_row_shows_all_times_and_what_was_chosen():
    row = Timing(KEY, {STOCK: 4.0, "winograd": 2.0, "direct": 8.0}, "winograd")
    head, line = format_report([row]).splitlines()
    assert line.split() == [
        *("8×9×7×3", "→", "4,", "3×3/1", "SAME", "forward", "4.000", "2.000", "8.000", "winograd", "2.00")
    ]
    assert len(line) == len(head)
    assert line[head.index("matmul") : head.index("matmul") + 6].strip() == ""


def test_an_assumed_batch_and_an_epilogue_are_marked():
    key = replace(KEY, batch_assumed=True, bias=True, relu=True)
    _, line = format_report([Timing(key, {STOCK: 1.0, MATMUL: 2.0}, STOCK)]).splitlines()
    assert line.startswith("8?×9×7×3 → 4, 3×3/1 SAME +bias +relu")
    assert line.endswith("0.50")


@pytest.mark.parametrize("rows", ["all", [3], 7])
def test_what_is_no_row_is_refused(rows):
    with pytest.raises(TypeError, match=r"rows.* must be|rows must be"):
        format_report(rows)
