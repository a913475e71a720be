"""Which operations run alone: the sums, and the command."""

from __future__ import annotations

import os

import pytest

from scripts.bench.step_profile import Interval, occupation
from tests import interpreters


def test_overlaps_are_counted_by_threads_and_the_inner_operation_is_alone():
    found = occupation(
        [
            Interval("Outer", 1, 0.0, 4.0),
            Interval("Inner", 1, 1.0, 2.0),  # within the first, on its thread
            Interval("Other", 2, 3.0, 6.0),
            Interval("Late", 1, 7.0, 8.0),
            Interval("Short", 1, 7.5, 7.5),
        ]
    )
    assert found.span_s == pytest.approx(8.0)
    assert found.at_once_s == pytest.approx({0: 1.0, 1: 6.0, 2: 1.0})
    assert found.alone_s == pytest.approx({"Outer": 2.0, "Inner": 1.0, "Other": 2.0, "Late": 1.0})
    assert found.total_s == pytest.approx({"Outer": 4.0, "Inner": 1.0, "Other": 3.0, "Late": 1.0})


def test_a_profile_without_operations_is_refused():
    with pytest.raises(ValueError, match="no operations"):
        occupation([])


def test_the_command_names_the_operations():
    command = ["-m", "scripts.bench.step_profile", "--workload=mlp", "--quick"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = interpreters.run(command, env=environment, timeout=240, check=True)
    assert "share of the time with so many operations at once: 0: " in done.stdout
    assert len(done.stdout.splitlines()) > 2
