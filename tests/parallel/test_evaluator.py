"""Training hosts with an evaluator beside them give the result of one device; whatever fails, all end."""

from __future__ import annotations

import json
import os
import random
import signal
import threading

import pytest

from tests.networks import assert_same_history
from tests.parallel.test_hosts import assert_same_result, errors, finish, run, start

pytestmark = pytest.mark.timeout(400)

CASES = {
    "early stop": {"optimizer": "adam", "min_delta": 0.1},
    "rollback": {"optimizer": "sgd", "plateau": True, "schedule": True, "job": "chief"},
}


# What is nightly here is also tested within one process: tests/fit/test_evaluator_host.py.
@pytest.mark.parametrize(
    ("name", "hosts"),
    [("rollback", 1), ("early stop", 2), pytest.param("early stop", 1, marks=pytest.mark.nightly)],
)
@pytest.mark.by_default("rollback-1")
def test_an_evaluator_gives_the_result_of_one_device(name, hosts, tmp_path):
    one = run(tmp_path / "one", hosts=1, **CASES[name])
    apart = run(tmp_path / "apart", hosts=hosts, evaluator=True, **CASES[name])
    assert_same_result(apart, one, hosts)
    histories = [json.loads((apart / f"history{host}.json").read_text()) for host in (0, hosts)]
    assert len(histories[0]["val_loss"]) == len(histories[0]["epoch"]), "an epoch was left out"
    assert histories[1].pop("epoch") == histories[0].pop("epoch")
    assert_same_history(histories[1], histories[0], 1e-5)  # and the evaluator has the last weights
    workers = [json.loads((apart / f"validated_by{host}.json").read_text()) for host in range(hosts)]
    assert workers == [["validation-link-0"], []][:hosts], "a training host has validated"


def start_held(directory, **case):
    """Starts a chief and an evaluator, and returns when the chief has delivered an epoch and holds there."""
    processes = start(directory, hosts=1, evaluator=True, hold_at=case.pop("hold_at", 0), **case)
    assert next(line for line in processes[0].stdout if line.startswith("epoch")).strip() == "epoch 0"
    return processes


@pytest.mark.nightly
def test_a_killed_evaluator_ends_the_training_which_can_be_resumed(tmp_path):
    case = {"optimizer": "sgd", "plateau": True}
    one = run(tmp_path / "one", hosts=1, **case)
    chief, evaluator = processes = start_held(tmp_path / "apart", resume=True, return_s=0, **case)
    evaluator.kill()
    evaluator.wait(timeout=60)
    chief.stdin.write("\n")
    chief.stdin.flush()
    codes = finish(tmp_path / "apart", processes, timeout_s=120)
    assert codes[0] not in (0, -signal.SIGKILL)
    said = errors(tmp_path / "apart", 0)
    assert "ValidationWorkerError: validating epoch " in said
    assert "HostLostError: the evaluator has gone" in said
    assert_same_result(run(tmp_path / "apart", hosts=1, evaluator=True, resume=True, **case), one, hosts=1)


@pytest.mark.nightly
def test_a_killed_evaluator_that_is_started_again_is_taken_back(tmp_path):
    case = {"optimizer": "sgd", "plateau": True}
    one = run(tmp_path / "one", hosts=1, **case)
    chief, evaluator = start_held(tmp_path / "apart", **case)
    evaluator.kill()
    evaluator.communicate(timeout=60)
    chief.stdin.write("\n")
    chief.stdin.flush()
    assert finish(tmp_path / "apart", [chief, evaluator.again()], timeout_s=120) == [0, 0]
    assert "the evaluator has gone" in errors(tmp_path / "apart", 0)
    assert_same_result(tmp_path / "apart", one, hosts=1)
    histories = [json.loads((tmp_path / "apart" / f"history{host}.json").read_text()) for host in (0, 1)]
    assert histories[1].pop("epoch") == histories[0].pop("epoch")
    assert_same_history(histories[1], histories[0], 1e-5)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_evaluators_killed_at_random_moments_are_taken_back(tmp_path):
    case = {"optimizer": "sgd", "plateau": True, "evaluator": True, "meet_s": 30}
    one = run(tmp_path / "one", hosts=1, optimizer="sgd", plateau=True)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    for number in range(int(os.environ.get("OVERLAP_TRAIN_EVALUATOR_KILLS", "20"))):
        directory = tmp_path / f"run{number}"
        chief, evaluator = start(directory, hosts=1, **case)
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
        # After the last validation that counts nobody misses it: one that is started again finds no chief.
        said = [errors(directory, host)[-3000:] for host in (0, 1)]
        missed = "the chief has not come to" not in said[1]
        assert not any(codes if missed else codes[:1]), said
        assert_same_result(directory, one, hosts=1)


def test_a_killed_chief_ends_the_evaluator(tmp_path):
    chief, _ = processes = start_held(tmp_path)
    chief.kill()
    codes = finish(tmp_path, processes, timeout_s=120)
    assert codes[1] not in (0, -signal.SIGKILL)
    assert "HostLostError: the chief has gone" in errors(tmp_path, 1)


def test_a_first_signal_to_all_of_them_ends_the_training_in_order(tmp_path):
    processes = start_held(tmp_path)
    for process in processes:
        process.send_signal(signal.SIGTERM)
    processes[0].stdin.write("\n")
    processes[0].stdin.flush()
    assert finish(tmp_path, processes, timeout_s=120) == [0, 0]
    histories = [json.loads((tmp_path / f"history{host}.json").read_text()) for host in (0, 1)]
    assert histories[0]["epoch"] == histories[1]["epoch"]
    assert len(histories[0]["epoch"]) < 8


@pytest.mark.nightly
def test_what_the_chief_raises_ends_the_evaluator_too(tmp_path):
    codes = finish(tmp_path, start(tmp_path, hosts=1, evaluator=True, raise_at=1))
    assert all(codes)
    assert "the chief has failed: RuntimeError: a callback of the user's own" in errors(tmp_path, 1)


@pytest.mark.nightly
def test_an_evaluator_with_other_data_is_refused_on_all_hosts(tmp_path, monkeypatch):
    monkeypatch.setenv("OVERLAP_TRAIN_CLUSTER_KEY", "k" * 32)
    case = {"evaluator": True, "validation_seeds": [1, 1, 2]}
    codes = finish(tmp_path, start(tmp_path, **case))
    assert all(codes)
    for host in range(3):
        assert "the evaluator has another validation data than the chief" in errors(tmp_path, host)
