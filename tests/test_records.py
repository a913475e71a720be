"""What records say of themselves."""

from __future__ import annotations

import pytest

from overlap_train._fit import lag
from overlap_train._inspection import effects
from overlap_train.records import Explanation


def explanation(in_step):
    return Explanation(
        validates=True,
        max_lag=0 if in_step else 1,
        in_step=in_step,
        plan=None,
        steps_per_epoch=None,
        workers=1,
        snapshot_bytes=0,
        data_bytes=0,
        tracing_s=0.0,
    )


@pytest.mark.parametrize(
    ("in_step", "remedy"),
    [
        (None, None),
        ("metrics keep state that reset_state does not set back (total)", None),
        ("the validation prints (PrintV2 in 'print'); print in a callback", "print in a callback"),
        ("f needs the model itself: an effect; more of it; pass clone", "pass clone"),
    ],
)
def test_the_remedy_stands_behind_the_last_semicolon(in_step, remedy):
    assert explanation(in_step).remedy == remedy


@pytest.mark.parametrize("remedy", [lag._REMEDY, *(remedy for _, _, remedy in effects._KINDS)])
def test_a_remedy_is_one_piece(remedy):
    assert "; " not in remedy
    assert explanation(f"something is so; {remedy}").remedy == remedy
