"""The example on several hosts runs, shrunk; the files for Slurm and Kubernetes are well-formed."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from overlap_train import Trainer
from tests import interpreters
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, sequential

EXAMPLES = Path(__file__).parents[2] / "examples"


# The example with the digits of scikit-learn in place of MNIST.
SMALL = """
import runpy, sys
from overlap_train.models import mnist_data
mnist_data.load_mnist = lambda *_: mnist_data._embedded_digits("a test needs no more")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
# It gets a SIGTERM behind its second epoch, as a pod that is drained does.
DRAINED = """
import keras, signal
class Drains(keras.callbacks.Callback):
    def __init__(self, *_, **__):
        super().__init__()
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            signal.raise_signal(signal.SIGTERM)
keras.callbacks.EarlyStopping = Drains
"""
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}


def printed_by(*program: object) -> str:
    """Runs a Python program on no cluster, which has to succeed, and returns what it prints."""
    command = [sys.executable, *map(str, program)]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def bash(script: str, *, check: bool = True, **environment: str) -> subprocess.CompletedProcess:
    """Runs a script that takes its place in the job from these variables."""
    command = ["bash", "-c", script]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=check
    )


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (["--hosts=4"], [f"worker {host}" for host in range(4)]),
        (["--hosts=1", "--evaluator"], ["evaluator 0", "worker 0"]),
    ],
)
def test_the_processes_of_one_command_agree(options, tasks):
    printed = printed_by(EXAMPLES / "multi_worker.py", *options, "--epochs=1", "--rows=300")
    found = dict(re.findall(r"((?:worker|evaluator) \d): val_accuracy ([\d.]+)", printed))
    assert sorted(found) == tasks
    assert len(set(found.values())) == 1


@pytest.mark.timeout(400)
def test_ray_trains_on_two_workers(tmp_path):
    pytest.importorskip("ray.train", reason="needs the extra [ray]")
    options = ["--workers=2", "--epochs=1", "--rows=500", f"--output_dir={tmp_path}"]
    printed = printed_by(EXAMPLES / "ray_train.py", *options)
    assert re.search(r"^val_accuracy 0\.\d+", printed, re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_workers_that_ray_starts_again_go_on_without_a_directory_that_they_share(tmp_path):
    assert restarted_by_ray(tmp_path, 6) == 2


@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_workers_of_ray_that_are_killed_go_on(tmp_path):
    kills, seed = (os.environ.get(f"OVERLAP_TRAIN_{name}") for name in ("RAY_KILLS", "SEED"))
    print("runs under Ray:", restarted_by_ray(tmp_path, 40, kills or "10", seed or "0"))


def restarted_by_ray(directory, epochs, *arguments):
    """Trains on two workers that fail or are killed; returns in how many runs."""
    pytest.importorskip("ray.train", reason="needs the extra [ray]")
    printed = printed_by("-m", "tests.parallel.ray_restart", directory, epochs, *arguments)
    found = json.loads(printed.splitlines()[-1])
    model = sequential("adam")
    validation = arrays(VALIDATION_ROWS, 1)
    expected = Trainer(model).fit(*arrays(), 32, epochs=epochs, validation_data=validation, verbose=0).history
    assert_same_history(found["history"], expected, 1e-5)
    return found["runs"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_training_that_is_stopped_does_not_pass_for_completed(tmp_path):
    """Kubernetes takes exit code 0 for the end of the training."""
    with socket.create_server(("localhost", 0)) as server:
        address = f"localhost:{server.getsockname()[1]}"
    config = {"cluster": {"worker": [address]}, "task": {"type": "worker", "index": 0}}
    command = ["-c", DRAINED + SMALL, EXAMPLES / "multi_worker.py", "--epochs=9", "--rows=300"]
    environment = ENVIRONMENT | {"TF_CONFIG": json.dumps(config)}
    result = interpreters.run([*command, f"--resume={tmp_path}"], env=environment)
    assert result.returncode == 75, result.stderr[-3000:]
    assert "Epoch 2/9" in result.stdout
    assert "Epoch 9/9" not in result.stdout
    assert list(tmp_path.iterdir())


SLURM = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "a,b", "SLURM_SUBMIT_DIR": "."}


@pytest.mark.parametrize("code", [0, 1, 75])
def test_the_slurm_script_queues_a_stopped_training_again(code):
    text = (EXAMPLES / "multi_worker.slurm").read_text()
    stand_ins = 'scontrol() { echo "$@"; }; srun() { return ' + str(code) + "; };\n"
    result = bash(stand_ins + text, check=False, **SLURM)
    assert result.returncode == code
    assert ("requeue 12345" in result.stdout) is (code == 75)


def test_the_slurm_script_gives_each_task_its_place():
    """Run with stand-ins for Slurm's commands and for Python."""
    text = (EXAMPLES / "multi_worker.slurm").read_text()
    text = text.replace("exec .venv/bin/python examples/multi_worker.py", 'echo "$TF_CONFIG" #')
    stand_ins = 'scontrol() { printf "a\\nb\\n"; }; srun() { shift 2; SLURM_PROCID=1 "$@"; };\n'
    config = json.loads(bash(stand_ins + text, **SLURM).stdout)
    assert config["cluster"] == {"worker": ["a:22345", "b:22345"]}
    assert config["task"] == {"type": "worker", "index": 1}


def manifests():
    """Returns those for Kubernetes: what it knows itself, the Job of the JobSet among it, and the JobSet."""
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    plain = list(yaml.safe_load_all((EXAMPLES / "multi_worker_job.yaml").read_text()))
    job_set = yaml.safe_load((EXAMPLES / "multi_worker_jobset.yaml").read_text())
    jobs = [each["template"] for each in job_set["spec"]["replicatedJobs"]]
    return [*plain, *({"apiVersion": "batch/v1", "kind": "Job", **job} for job in jobs)], job_set


@pytest.mark.parametrize("version", ["1.31", None])  # the first with podFailurePolicy for good, the newest
def test_the_manifests_fit_the_published_schemas(version):
    kubernetes = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    import jsonschema  # which comes with it

    plain, job_set = manifests()
    version = version or kubernetes.latest_version()
    assert [each["kind"] for each in plain] == ["Service", "Job", "Job"]
    for each in plain:
        kubernetes.validate(each, version, strict=True)
        with pytest.raises(kubernetes.ValidationError, match="Additional properties"):
            kubernetes.validate({**each, "spec": {**each["spec"], "misspelt": 1}}, version, strict=True)
    schema = json.loads((Path(__file__).parent / "jobset_v1alpha2.json").read_text())
    jsonschema.validate(job_set, schema)
    job_set["spec"]["failurePolicy"]["rules"][0]["action"] = "Restart"
    with pytest.raises(jsonschema.ValidationError, match="'Restart' is not one of"):
        jsonschema.validate(job_set, schema)


def test_the_job_set_restarts_all_hosts_of_a_drained_pod():
    _, found = manifests()
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    worker = found["spec"]["replicatedJobs"][0]
    job = worker["template"]["spec"]
    pod = job["template"]["spec"]
    rule = found["spec"]["failurePolicy"]["rules"][0]
    assert (rule["action"], rule["onJobFailureReasons"]) == (
        "RestartJobSetAndIgnoreMaxRestarts",
        ["PodFailurePolicy"],
    )
    drained = job["podFailurePolicy"]["rules"][0]
    assert drained["action"] == "FailJob"
    assert drained["onExitCodes"]["values"] == [75]
    assert (drained["onExitCodes"]["containerName"], pod["restartPolicy"]) == ("train", "Never")
    hosts = [f"{found['metadata']['name']}-{worker['name']}-0-{index}.overlap-train:2222" for index in (0, 1)]
    script = pod["containers"][0]["args"][0]
    script = script.replace("exec python examples/multi_worker.py", 'echo "$TF_CONFIG" #')
    config = json.loads(bash(script, JOB_COMPLETION_INDEX="1").stdout)
    assert config == {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": 1}}


def test_the_kubernetes_job_is_well_formed():
    (service, job, _), _ = manifests()
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"  # or the Job is refused with a podFailurePolicy
    ignored = spec["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert (ignored["containerName"], ignored["values"]) == (pod["containers"][0]["name"], [75])
    assert pod["subdomain"] == service["metadata"]["name"]
    script = pod["containers"][0]["args"][0]
    script = script.replace("exec python examples/multi_worker.py", 'echo "$TF_CONFIG" #')
    config = json.loads(bash(script, JOB_COMPLETION_INDEX="1").stdout)
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"][1] == "overlap-train-1.overlap-train:2222"
