"""The example on several hosts runs, shrunk; the files for Slurm and Kubernetes are well-formed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        (["--hosts=2"], ["worker 0", "worker 1"]),
        # test_evaluator.py shows in every run that an evaluator works; here it is the example's option.
        pytest.param(["--hosts=1", "--evaluator"], ["evaluator 0", "worker 0"], marks=pytest.mark.nightly),
    ],
)
def test_two_processes_in_one_command_agree(options, tasks):
    command = [sys.executable, str(EXAMPLES / "multi_worker.py"), *options, "--epochs=1", "--rows=500"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    found = re.findall(r"((?:worker|evaluator) \d): val_accuracy ([\d.]+)", result.stdout)
    assert sorted(host for host, _ in found) == tasks
    assert len({accuracy for _, accuracy in found}) == 1


@pytest.mark.timeout(400)
def test_ray_trains_on_two_workers(tmp_path):
    pytest.importorskip("ray.train", reason="needs the extra [ray]")
    command = [sys.executable, str(EXAMPLES / "ray_train.py"), "--workers=2", "--epochs=1", "--rows=500"]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    result = subprocess.run(
        [*command, f"--output_dir={tmp_path}"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(r"^val_accuracy 0\.\d+", result.stdout, re.MULTILINE)


def test_the_slurm_script_is_bash():
    subprocess.run(["bash", "-n", str(EXAMPLES / "multi_worker.slurm")], check=True)


def test_the_slurm_script_gives_each_task_its_place():
    """Run with stand-ins for Slurm's commands and for Python."""
    text = (EXAMPLES / "multi_worker.slurm").read_text()
    text = text.replace("exec .venv/bin/python examples/multi_worker.py", 'echo "$TF_CONFIG" #')
    stand_ins = 'scontrol() { printf "a\\nb\\n"; }; srun() { shift; SLURM_PROCID=1 "$@"; };\n'
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "12345",
        "SLURM_JOB_NODELIST": "a,b",
        "SLURM_SUBMIT_DIR": ".",
    }
    result = subprocess.run(
        ["bash", "-c", stand_ins + text], env=environment, capture_output=True, text=True, check=True
    )
    config = json.loads(result.stdout)
    assert config["cluster"] == {"worker": ["a:22345", "b:22345"]}
    assert config["task"] == {"type": "worker", "index": 1}


def test_the_kubernetes_job_is_well_formed():
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    service, job = yaml.safe_load_all((EXAMPLES / "multi_worker_job.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec = job["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    script = pod["containers"][0]["args"][0]
    script = script.replace("exec python examples/multi_worker.py", 'echo "$TF_CONFIG" #')
    environment = {**os.environ, "JOB_COMPLETION_INDEX": "1"}
    result = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    config = json.loads(result.stdout)
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"][1] == "overlap-train-1.overlap-train:2222"
