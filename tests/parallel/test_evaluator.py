"""Training hosts with an evaluator in another process give the result of one device, whatever is killed."""

import json
import os
import random
import threading

import pytest

from tests.networks import assert_same_history
from tests.parallel.test_hosts import PLATEAU, assert_same_result, errors, finish, run, start

pytestmark = pytest.mark.timeout(400)

CASES = {
    "early stop": {"optimizer": "adam", "min_delta": 0.1},
    "rollback": {**PLATEAU, "schedule": True, "job": "chief"},
}


def assert_same_histories(directory, hosts=1):
    """The evaluator, the last of the hosts, has the history of the first."""
    first, last = (json.loads((directory / f"history{host}.json").read_text()) for host in (0, hosts))
    assert len(first["val_loss"]) == len(first["epoch"]), "an epoch was left out"
    assert last.pop("epoch") == first.pop("epoch")
    assert_same_history(last, first, 1e-5)  # and the evaluator has the last weights


# What is nightly here is also tested within one process: tests/fit/test_evaluator.py.
@pytest.mark.parametrize(
    ("name", "hosts"),
    [("rollback", 1), ("early stop", 2), pytest.param("early stop", 1, marks=pytest.mark.nightly)],
)
@pytest.mark.by_default("rollback-1")
def test_an_evaluator_gives_the_result_of_one_device(name, hosts, tmp_path):
    one = run(tmp_path / "one", hosts=1, **CASES[name])
    apart = run(tmp_path / "apart", hosts=hosts, evaluator=True, **CASES[name])
    assert_same_result(apart, one, hosts)
    assert_same_histories(apart, hosts)
    workers = [json.loads((apart / f"validated_by{host}.json").read_text()) for host in range(hosts)]
    assert workers == [["validation-elsewhere"], []][:hosts], "a training host has validated"


def start_held(directory, **case):
    """Starts a chief and an evaluator, and returns when the chief has delivered an epoch and holds there."""
    processes = start(directory, hosts=1, evaluator=True, hold_at=0, **case)
    assert next(line for line in processes[0].stdout if line.startswith("epoch")).strip() == "epoch 0"
    return processes


def release(chief):
    chief.stdin.write("\n")
    chief.stdin.flush()


@pytest.mark.nightly
def test_a_killed_evaluator_that_is_started_again_is_taken_back(tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    chief, evaluator = start_held(tmp_path / "apart", **PLATEAU)
    evaluator.kill()
    evaluator.communicate(timeout=60)
    release(chief)
    assert finish(tmp_path / "apart", [chief, evaluator.again()], timeout_s=120) == [0, 0]
    assert_same_result(tmp_path / "apart", one, hosts=1)
    assert_same_histories(tmp_path / "apart")


@pytest.mark.nightly
def test_a_killed_chief_that_is_started_again_finds_its_evaluator(tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    chief, evaluator = start_held(tmp_path / "apart", resume=True, **PLATEAU)
    chief.kill()
    chief.communicate(timeout=60)
    again = chief.again()
    if any(line.strip() == "epoch 0" for line in again.stdout):  # no checkpoint of it had been written
        release(again)
    assert finish(tmp_path / "apart", [again, evaluator], timeout_s=120) == [0, 0]
    assert_same_result(tmp_path / "apart", one, hosts=1)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_evaluators_killed_at_random_moments_are_taken_back(tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    for number in range(int(os.environ.get("OVERLAP_TRAIN_EVALUATOR_KILLS", "20"))):
        directory = tmp_path / f"run{number}"
        chief, evaluator = start(directory, hosts=1, evaluator=True, **PLATEAU)
        timer = threading.Timer(rng.uniform(0, 0.3), evaluator.kill)
        epoch = rng.randint(0, 5)
        for line in chief.stdout:
            if line.strip() == f"epoch {epoch}":
                timer.start()
                break
        evaluator.communicate(timeout=120)  # killed, or at the end of the training before that
        timer.cancel()
        processes = [chief, evaluator.again()] if evaluator.returncode else [chief]
        codes = finish(directory, processes, timeout_s=120)
        # After the last validation nobody misses it, and one that is started again finds no training.
        assert not any(codes[:1]), [errors(directory, host)[-3000:] for host in (0, 1)]
        assert_same_result(directory, one, hosts=1)
        print(f"{number + 1} runs whose evaluator is killed: all ended as the unbroken one", flush=True)
