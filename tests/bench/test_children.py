"""Child processes and load: crashes, hangs, results that never come, children left behind."""

from __future__ import annotations

import signal
import sys
import time

import psutil
import pytest

from scripts.bench.children import ChildFailedError, run_module


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Runs a module with the given lines, and returns what it printed last."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(script, *arguments, **options):
        (tmp_path / "made_up_child.py").write_text("import json, os, sys, threading\n" + script)
        return run_module("made_up_child", *arguments, log=tmp_path / "log", **options)

    return run


def test_the_result_is_the_last_line_and_the_rest_is_in_the_log(child, tmp_path):
    script = (
        "print('noise'); print('note', file=sys.stderr); print(json.dumps(sys.argv[1:] + [os.environ['X']]))"
    )
    assert child(script, "a", "b", timeout_s=60, environment={"X": "y"}) == ["a", "b", "y"]
    assert (tmp_path / "log").read_text() == "note\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ValueError('the model is missing')", r"ValueError: the model is missing \(exit status 1\)"),
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("pass", "exit status 0"),
        ("print(1); sys.exit(7)", "exit status 7"),
    ],
)
def test_child_without_a_result_says_why(child, script, reason):
    with pytest.raises(ChildFailedError, match=reason):
        child(script, timeout_s=60)


@pytest.mark.nightly
def test_hanging_child_and_its_own_children_are_ended(child, tmp_path):
    pids = tmp_path / "pids"
    script = (
        "import subprocess\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "threading.Event().wait()"
    )
    with pytest.raises(ChildFailedError, match="longer than 2 s"):
        child(script, timeout_s=2)
    processes = [psutil.Process(int(p)) for p in pids.read_text().split() if psutil.pid_exists(int(p))]
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def begun_comparison(tmp_path):
    """Returns a comparison whose child has begun to work, and all that it has started."""
    options = ["--workloads=mlp", "--systems=overlap", "--quick", f"--output_dir={tmp_path}"]
    process = psutil.Popen([sys.executable, "-m", "scripts.bench.compare", *options])
    begun: list[psutil.Process] = []
    while process.is_running() and not any(map(_has_worked, begun)):
        time.sleep(0.02)  # a look at the children takes longer than that
        begun = process.children(recursive=True)
    return process, begun


def _has_worked(process):
    try:
        return process.cpu_times().user > 0.1
    except psutil.NoSuchProcess:
        return False


@pytest.mark.by_default("15")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's signal of a parent's death")
def test_a_child_ends_with_a_comparison_that_is_ended(tmp_path, number):
    process, begun = begun_comparison(tmp_path)
    process.send_signal(number)
    assert process.wait(timeout=60) == (128 + number if number == signal.SIGTERM else -number)
    _, alive = psutil.wait_procs(begun, timeout=60)
    assert begun
    assert not alive
