"""Whatever a callback puts into the logs reaches the other hosts as JSON."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from overlap_train._support.encoding import encoded
from tests.support.values import Unprintable


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (tf.constant([1.5]), [1.5]),
        (np.array([[1, 2]]), [[1.0, 2.0]]),
        (np.bool_(True), 1.0),
        (2**70, 2**70),
        ("größer \udcff", "größer \udcff"),
        (Path("a"), "PosixPath('a')"),
        ({1, 2}, "{1, 2}"),
        (None, None),
    ],
    ids=str,
)
def test_whatever_stands_in_logs_can_be_sent(value, expected):
    sent = json.loads(encoded([{"loss": 1.0, "odd": value}, True]))
    assert sent == [{"loss": 1.0, "odd": expected}, True]


def test_what_can_be_sent_in_no_way_keeps_nobody_waiting():
    sent = json.loads(encoded({"odd": Unprintable(), (1, 2): 3.0, "loss": 1.0}))
    assert sent.keys() == {"odd", "loss"}
