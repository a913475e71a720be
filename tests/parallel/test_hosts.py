"""Two processes under MultiWorkerMirroredStrategy give the result of one; whatever differs is refused.

`scripts/nightly.sh` runs the long forms.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import interpreters
from tests.differential import read_files
from tests.networks import assert_alike, assert_same_history

pytestmark = pytest.mark.timeout(400)


def free_addresses(count: int) -> list[str]:
    """Returns addresses that nobody listens at; they are let go of before they are used."""
    with contextlib.ExitStack() as open_ones:
        servers = [open_ones.enter_context(socket.create_server(("localhost", 0))) for _ in range(count)]
        return [f"localhost:{server.getsockname()[1]}" for server in servers]


class Host(interpreters.Interpreter):
    """A process of a training, which can be started again as it was."""

    def __init__(self, arguments: list[str], environment: dict[str, str], errors: Path) -> None:
        self._started_with = (arguments, environment, errors)
        pipe = subprocess.PIPE
        with errors.open("a") as file:
            super().__init__(arguments, env=environment, stdin=pipe, stdout=pipe, stderr=file)

    def again(self) -> Host:
        return Host(*self._started_with)


def start_tasks(
    arguments: list[str],
    cluster: dict[str, list[str]],
    directory: Path,
    seen_by: Callable[[int, list[str]], list[str]] | None = None,
) -> list[Host]:
    """Starts a program as each task of a cluster; one that is alone is not told of it.

    `seen_by` returns at which addresses a host reaches all of its kind, if not at their own.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tasks = [(kind, number) for kind, addresses in cluster.items() for number in range(len(addresses))]
    processes = []
    for index, (kind, number) in enumerate(tasks):
        seen = cluster if seen_by is None else {**cluster, kind: seen_by(number, cluster[kind])}
        config = {"cluster": seen, "task": {"type": kind, "index": number}}
        more = {"TF_CONFIG": json.dumps(config)} if len(tasks) > 1 else {}
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **more}  # hosts do not share a card
        (directory / f"errors{index}.txt").unlink(missing_ok=True)
        processes.append(Host(arguments, environment, directory / f"errors{index}.txt"))
    return processes


def start(directory: Path, hosts: int = 2, seen_by=None, **case) -> list[Host]:
    """Starts the hosts of a training, the chief first and the evaluator, if the case has one, last."""
    addresses = free_addresses(hosts + bool(case.get("evaluator")))
    cluster = {case.get("job", "worker"): addresses[:hosts]}
    if addresses[hosts:]:
        cluster["evaluator"] = addresses[hosts:]
    arguments = ["-m", "tests.parallel.hosts_target", json.dumps({"hosts": hosts, **case}), str(directory)]
    return start_tasks(arguments, cluster, directory, seen_by)


def finish(directory: Path, processes: list[Host], timeout_s: float = 300) -> list[int]:
    """Waits for all hosts and returns their exit codes; ends those that hang."""
    try:
        for process in processes:
            process.communicate(timeout=timeout_s)
    finally:
        for process in processes:
            process.kill()
            process.wait(timeout=60)
            process.stdout.close()
    return [process.returncode for process in processes]


def errors(directory: Path, host: int) -> str:
    return (directory / f"errors{host}.txt").read_text()


def run(directory: Path, **case) -> Path:
    codes = finish(directory, start(directory, **case))
    assert not any(codes), "\n".join(errors(directory, host)[-3000:] for host in range(len(codes)))
    return directory


def assert_same_result(actual: Path, expected: Path, hosts: int = 2, rtol: float = 1e-5) -> None:
    wanted = json.loads((expected / "history0.json").read_text())
    with np.load(expected / "final0.npz") as weights:
        for host in range(hosts):
            history = json.loads((actual / f"history{host}.json").read_text())
            assert history.pop("epoch") == wanted["epoch"]
            assert_same_history(history, {k: v for k, v in wanted.items() if k != "epoch"}, rtol)
            with np.load(actual / f"final{host}.npz") as own:
                assert own.files == weights.files
                for name in weights.files:
                    np.testing.assert_allclose(own[name], weights[name], rtol=rtol, atol=1e-6)
    ours, theirs = read_files(actual), read_files(expected)
    assert sorted(ours) == sorted(theirs)
    for name, content in theirs.items():
        assert_alike(ours[name], content, rtol, where=name)


PLATEAU = {"optimizer": "sgd", "plateau": True}
# More of what may be trained, also on four hosts, is in test_several.py.
CASES = {
    "adam, early stop": {"optimizer": "adam", "min_delta": 0.1},
    "sparse gradients": {"optimizer": "adam", "model": "looking_up", "epochs": 3},
}


# The restarted job below gives the result of one host, too.
@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_two_hosts_give_the_result_of_one(name, tmp_path):
    case = CASES[name]
    one = run(tmp_path / "one", hosts=1, **case)
    assert_same_result(run(tmp_path / "two", **case), one)
    for host in (0, 1):
        assert "in step" not in (tmp_path / "two" / f"messages{host}.json").read_text()
    calls = [(tmp_path / "two" / f"everywhere{host}.txt").read_text() for host in (0, 1)]
    assert calls[0] == calls[1]
    epochs = json.loads((one / "history0.json").read_text())["epoch"]
    assert [line.split()[0] for line in calls[0].splitlines()] == ["begin", *map(str, epochs)]


@pytest.mark.nightly
@pytest.mark.parametrize("evaluator", [False, True])
def test_validations_inside_epochs_are_those_of_one_host(evaluator, tmp_path):
    case = {**PLATEAU, "validated_every": 3}
    one = run(tmp_path / "one", hosts=1, **case)
    two = run(tmp_path / "two", evaluator=evaluator, **case)
    assert_same_result(two, one)
    expected = json.loads((one / "inside0.json").read_text())
    assert len(expected) > 8
    for host in (0, 1):
        inside = json.loads((two / f"inside{host}.json").read_text())
        assert [step for step, _ in inside] == [step for step, _ in expected]
        for (_, own), (_, theirs) in zip(inside, expected, strict=True):
            assert own == pytest.approx(theirs, rel=1e-5)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_killed_inside_an_epoch_they_go_on_from_a_checkpoint_there(tmp_path):
    case = {**PLATEAU, "written_every": 3, "max_lag": 0}
    one = run(tmp_path / "one", hosts=1, **case)
    for victim, delay_s in enumerate((0.15, 0.2)):
        directory = tmp_path / f"two{victim}"
        kill_one(directory, victim, 2, delay_s, **case)
        assert_same_result(run(directory, resume=True, **case), one)


OWN_ROWS = {
    "uneven": {"own_rows": [150, 53], "own_batch": [20, 12], "optimizer": "sgd", "plateau": True},
    "no rows in the end": {"hosts": 4, "own_rows": [100, 60, 40, 3], "own_batch": [16, 8, 12, 5]},
    "sparse gradients": {"own_rows": [130, 73], "own_batch": [20, 12], "model": "looking_up"},
    "arrays": {"own_rows": [120, 53], "own_batch": [16, 12], "source": "arrays"},
    "passes longer than epochs": {
        "own_rows": [150, 53],
        "own_batch": [20, 12],
        "optimizer": "sgd",
        "plateau": True,
        "epochs": 8,
        "fit": {"steps_per_epoch": 3},
    },
    "batches of unknown size": {"own_rows": [120, 83], "own_batch": [16, 16], "source": "pydataset"},
}


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OWN_ROWS)
def test_hosts_that_bring_rows_of_their_own_train_as_one_that_has_them_all(name, tmp_path):
    """Weighted rows of different numbers in batches of different sizes; epochs end together."""
    case = {"hosts": 2, "epochs": 4, "optimizer": "adam", **OWN_ROWS[name]}
    one = run(tmp_path / "one", **case | {"hosts": 1})
    assert_same_result(run(tmp_path / "many", **case), one, hosts=case["hosts"])


OWN = {"own_rows": [96, 60], "own_batch": [16, 16], "epochs": 2}
REFUSED = {
    "other rows": ({"seeds": [0, 1]}, "host 1 has another training data content than the chief"),
    "other batches": (
        {"batch_sizes": [32, 16]},
        "host 1 has another batch size than the chief: '16' instead of '32'",
    ),
    "other validation rows": (
        {"validation_rows": 80, "validation_shards": 2},
        "host 1 has other validation data than the chief",
    ),
    "draws without a seed": (
        {"model": "unseeded", "source": "random dataset"},
        "the training data draws without a seed (RandomUniform)",
    ),
    "a step without rows": (
        {"model": "own step", **OWN},
        "a train_step of your own would be run without rows",
    ),
    "own rows by Python, resumed": (
        {"source": "pydataset", "resume": True, **OWN},
        "position can be found again: arrays or a tf.data.Dataset",
    ),
    "resumed on one alone": (
        {"resume": True, "resume_on": [0]},
        "host 1 has another use of resume than the chief: 'False'",
    ),
    "begins to listen": (
        {"arm_at": 0},
        "callbacks have other methods, functions or settings than before, while the training on several",
    ),
}


# Host 1 has five batches of its own, and the training stands behind the seventh or the sixth step of a pass.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "killed_at", "resumed"),
    [
        ({"written_every": 3}, [1, 7, 1], "resumed inside epoch 2, after 7 of its steps"),
        ({"fit": {"steps_per_epoch": 3}}, [1, 1, 2], "resumed after epoch 2"),
    ],
)
def test_such_a_host_goes_on_where_its_own_rows_had_ended(case, killed_at, resumed, tmp_path):
    case = {**OWN_ROWS["uneven"], "own_order": True, "epochs": 5, "max_lag": 0, "resume": True, **case}
    unbroken = run(tmp_path / "unbroken", **case)
    killed = start(tmp_path / "two", acts="is killed", acts_at=killed_at, **case)
    assert finish(tmp_path, killed)[1] == -signal.SIGKILL
    assert_same_result(run(tmp_path / "two", **case), unbroken)
    assert resumed in (tmp_path / "two" / "messages0.json").read_text()


@pytest.mark.nightly
def test_other_rows_of_another_host_are_not_resumed_with(tmp_path):
    case = {**OWN_ROWS["uneven"], "resume": True}
    run(tmp_path, epochs=2, **case)
    assert all(finish(tmp_path, start(tmp_path, epochs=4, seeds=[0, 1], **case)))
    for host in (0, 1):
        assert "training data of host 1.content is another" in errors(tmp_path, host)


@pytest.mark.by_default("other batches", "draws without a seed", "begins to listen")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_the_same_on_all_hosts_is_refused_on_each(name, tmp_path):
    case, message = REFUSED[name]
    assert all(finish(tmp_path, start(tmp_path, **case)))
    for host in (0, 1):
        assert message in errors(tmp_path, host)
    assert not list(tmp_path.glob("final*"))


@pytest.mark.parametrize("source", ["arrays", pytest.param("unseeded dataset", marks=pytest.mark.nightly)])
def test_without_a_seed_all_hosts_train_in_the_chiefs_order(source, tmp_path):
    run(tmp_path, model="unseeded", source=source, epochs=3)
    histories = [json.loads((tmp_path / f"history{host}.json").read_text()) for host in (0, 1)]
    assert histories[0] == histories[1]
    assert len(histories[0]["loss"]) == 3


@pytest.mark.nightly
@pytest.mark.parametrize("slow", [1, pytest.param(0, marks=pytest.mark.nightly)])
def test_the_host_that_the_others_wait_for_is_named_in_the_accounts(slow, tmp_path):
    takes = [0.0, 0.0]
    takes[slow] = 0.3  # for each of seven batches: nothing else in this training comes near
    run(tmp_path, source="dataset", epochs=1, batch_takes_s=takes)
    for host in (0, 1):
        assert json.loads((tmp_path / f"slow{host}.json").read_text()) == [slow]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("case", "where", "said"),
    [
        ({"raise_at": 1}, 0, "RuntimeError: a callback of the user's own"),
        ({"acts_at": [0, 2, 1]}, 0, "RuntimeError: on this host alone"),
        ({"acts_at": [1, 2, 1]}, 1, "RuntimeError: on this host alone"),
    ],
)
def test_where_a_callback_fails_the_others_do_not_wait_for_it(case, where, said, tmp_path):
    codes = finish(tmp_path, start(tmp_path, **case), timeout_s=120)
    assert all(code == 1 for code in codes)
    assert said in errors(tmp_path, where)
    name = f"host {where}" if where else "the chief"
    assert f"HostMismatchError: {name} has failed: {said}" in errors(tmp_path, 1 - where)


def kill_one(
    directory: Path, victim: int, after_epochs: int, delay_s: float = 0.0, how=signal.SIGKILL, **case
) -> list[int]:
    """Kills a host so long after the chief has delivered this epoch or a later one, unless it ends before."""
    processes = start(directory, resume=True, **case)
    timer = threading.Timer(delay_s, processes[victim].send_signal, [how])
    for line in processes[0].stdout:
        if line.startswith("epoch") and int(line.split()[1]) >= after_epochs:
            timer.start()
            break
    codes = finish(directory, processes, timeout_s=120)
    timer.cancel()
    return codes


KILLED = {
    "arrays": PLATEAU,
    "drawing pydataset": {**PLATEAU, "source": "drawing pydataset"},
    "drawing generator": {**PLATEAU, "source": "drawing generator"},
    "own rows": {"epochs": 8, **OWN_ROWS["uneven"]},
}


@pytest.mark.nightly
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_host_ends_the_other_and_the_restarted_job_gives_the_same_result(name, victim, tmp_path):
    """Also in data that Python makes, or that is each host's own."""
    case = KILLED[name]
    one = run(tmp_path / "one", hosts=1, **case)
    codes = kill_one(tmp_path / "two", victim, 2, **case)
    assert codes[victim] == -signal.SIGKILL
    assert codes[1 - victim] not in (0, -signal.SIGKILL)
    assert f"HostLostError: host {1 - victim} cannot go on" in errors(tmp_path / "two", 1 - victim)
    assert_same_result(run(tmp_path / "two", resume=True, **case), one)


HIDING = {"rows": 4000, "validation_rows": 6000, "epochs": 6, "patience": 9, "optimizer": "sgd"}


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("hosts", "evaluator"), [(2, False), (4, False), (2, True)])
def test_as_many_validations_are_hidden_as_on_one_host(hosts, evaluator, tmp_path):
    """Which epochs, not for how long: the hosts share this machine. What part it was is printed."""
    case = HIDING | {"evaluator": evaluator}
    directories = {1: tmp_path / "one", hosts: tmp_path / "many"}
    counts = []
    for count, directory in directories.items():
        run(directory, hosts=count, **case)
        hidden, validated = zip(*json.loads((directory / "hidden0.json").read_text()), strict=True)
        print(f"{count} hosts: {sum(hidden):.2f} of {sum(validated):.2f} s of validation hidden {hidden}")
        counts.append(sum(seconds > 0 for seconds in hidden))
    assert counts[0] >= 4
    assert counts[1] >= 0.8 * counts[0]


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_ended_at_random_moments_the_result_is_that_of_the_unbroken_run(tmp_path):
    """A SIGTERM on one host, as where its pod is drained, ends all of them in order."""
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    for number in range(int(os.environ.get("OVERLAP_TRAIN_HOST_STOPS", "20"))):
        directory = tmp_path / f"run{number}"
        at = rng.randint(0, 1), rng.randint(0, 4), rng.uniform(0, 0.3)
        codes = kill_one(directory, *at, how=signal.SIGTERM, **PLATEAU)
        # At its end, or before fit.
        assert set(codes) <= {0, -signal.SIGTERM}, errors(directory, at[0])[-3000:]
        assert_same_result(run(directory, resume=True, **PLATEAU), one)
        print(f"{number + 1} stops of a host: all ended as the unbroken one", flush=True)


@pytest.mark.kill
@pytest.mark.timeout(7200)
def test_killed_at_random_moments_the_result_is_that_of_the_unbroken_run(tmp_path):
    one = run(tmp_path / "one", hosts=1, **PLATEAU)
    rng = random.Random(int(os.environ.get("OVERLAP_TRAIN_SEED", "0")))
    kills, killed, runs = int(os.environ.get("OVERLAP_TRAIN_HOST_KILLS", "20")), 0, 0
    while killed < kills:
        runs += 1
        directory = tmp_path / f"run{runs}"
        for _ in range(min(rng.randint(1, 4), kills - killed)):  # in a row: resumed runs are killed too
            at = rng.randint(0, 1), rng.randint(0, 4), rng.uniform(0, 0.3)
            if kill_one(directory, *at, **PLATEAU)[at[0]] != -signal.SIGKILL:
                break  # it had ended before
            killed += 1
        assert_same_result(run(directory, resume=True, **PLATEAU), one)
        print(f"{killed} kills of a host in {runs} runs: all ended as the unbroken one", flush=True)
