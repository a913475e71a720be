"""The share of a validation that is hidden, from a command line."""

from __future__ import annotations

import os

import pytest

from tests import interpreters

SMALL = """
import dataclasses, sys
from scripts.bench import hidden
from scripts.bench.workloads import WORKLOADS
WORKLOADS["mlp"] = dataclasses.replace(WORKLOADS["mlp"], quick_sizes=(3_200, 1_280))
sys.exit(hidden.main(sys.argv[1:]))
"""


def printed(*options, program=("-m", "scripts.bench.hidden")):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return interpreters.run(
        [*program, *options], env=environment, timeout=240, check=True
    ).stdout.splitlines()


# The rounds below are of the same fits.
@pytest.mark.nightly
@pytest.mark.parametrize("workload", ["mlp", "input-bound"])
def test_the_command_prints_each_epoch_and_the_share(workload):
    program = {"program": ("-c", SMALL)} if workload == "mlp" else {}
    lines = printed(f"--workload={workload}", "--quick", "--epochs=3", "--workers=2", **program)
    assert [line.split()[0] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4].startswith("hidden of the 2 validations that an epoch follows: median ")


def test_rounds_compare_the_three_ways_by_the_clock():
    lines = printed("--quick", "--epochs=5", "--workers=2", "--rounds=2", program=("-c", SMALL))
    for number, line in enumerate(lines[1:3], 1):
        index, none_ms, in_step_ms, overlapped_ms, share = line.split()
        assert index == str(number)
        cost_ms = float(in_step_ms) - float(none_ms)
        if cost_ms > 1:
            saved_ms = float(in_step_ms) - float(overlapped_ms)
            # The times are printed to a tenth of a millisecond, which weighs more the less they differ.
            rounding = 10 * (1 + abs(saved_ms / cost_ms)) / cost_ms
            assert float(share.rstrip("%")) == pytest.approx(100 * saved_ms / cost_ms, abs=1 + rounding)
    assert lines[3].startswith("medians: ")
    assert lines[4].startswith("hidden by the clock of its cost in step: ")
