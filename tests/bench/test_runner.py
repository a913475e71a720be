"""Hazards of child processes: crashes, hangs, results that never come, and children left behind."""

import json
import os
import signal
import sys
import time
from collections import Counter

import psutil
import pytest

from scripts.bench import compare, runner
from scripts.bench.records import RunSpec


@pytest.fixture
def child(tmp_path, monkeypatch):
    """Makes the runner start the given script in place of the real child."""
    interpreter = tmp_path / "python"

    def use(script):
        (tmp_path / "child.py").write_text("import json, os, sys, threading\n" + script)
        interpreter.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/child.py "$3"\n')
        interpreter.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(interpreter))

    return use


SAY = f"say = lambda m: print({runner.MARK!r} + json.dumps(m), flush=True)\n"


def test_result_comes_back_among_other_output(child):
    child(SAY + "print('noise'); say(json.loads(sys.argv[1])); print('more')")
    assert runner.run_job({"job": "x"}, timeout_s=60) == {"job": "x"}


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise ValueError('the model is missing')", r"ValueError: the model is missing \(exit status 1\)"),
        ("os.kill(os.getpid(), 11)", "signal 11"),
        ("pass", "exit status 0"),
    ],
)
def test_child_without_a_result_says_why(child, script, reason):
    child(script)
    with pytest.raises(runner.ChildFailedError, match=reason):
        runner.run_job({"job": "x"}, timeout_s=60)


def test_hanging_child_and_its_own_children_are_ended(child, tmp_path):
    pids = tmp_path / "pids"
    child(
        "import subprocess\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{other.pid}}')\n"
        "threading.Event().wait()"
    )
    with pytest.raises(runner.ChildFailedError, match="longer than 2 s"):
        runner.run_job({"job": "x"}, timeout_s=2)
    processes = [psutil.Process(int(p)) for p in pids.read_text().split() if psutil.pid_exists(int(p))]
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []


def test_interrupt_in_the_caller_ends_the_child(child, monkeypatch):
    child(SAY + "say('begun'); threading.Event().wait()")
    seen, others = [], set(psutil.Process().children())

    def interrupt(stream):
        next(iter(stream))
        seen.extend(set(psutil.Process().children()) - others)
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "_messages", interrupt)
    with pytest.raises(KeyboardInterrupt):
        runner.run_job({"job": "x"}, timeout_s=60)
    assert seen
    assert not any(process.is_running() for process in seen)


def test_load_is_cut_to_the_timed_epochs(child):
    child(
        SAY + "import time\nbegin = time.monotonic()\n"
        "while time.monotonic() < begin + 1.5: pass\n"
        "record = dict(workload='mnist', system='overlap', threads=6, repeat=0, epochs=1, wall_s=1.0)\n"
        "say({'record': record, 'begin_s': begin + 0.5, 'end_s': begin + 1.5})"
    )
    record = runner.run(RunSpec("mnist", "overlap", 6, 0, 1, True, "."), timeout_s=60)
    assert record.load
    assert all(0.0 <= sample.time_s <= 1.0 for sample in record.load)


def test_failed_run_becomes_a_record(child):
    child("sys.exit(7)")
    record = runner.run(RunSpec("mnist", "overlap", 6, 2, 3, True, "."), timeout_s=60)
    assert (record.system, record.repeat, record.error) == ("overlap", 2, "exit status 7")


def test_sampler_sees_another_process_and_stops():
    with runner.LoadSampler(os.getpid(), interval_s=0.001) as sampler:
        while len(sampler.samples) < 3:
            sum(range(10_000))
    count = len(sampler.samples)
    assert all(s.cpu_percent >= 0 for s in sampler.samples)
    sampler.close()
    assert len(sampler.samples) == count


def test_rounds_take_turns_and_hold_every_run_once():
    systems = ("keras-numpy", "keras-tfdata", "overlap-accelerated")
    settings = compare.Settings(("mnist", "text"), systems, (1, 6), 2, 3, False, 1.0, False)
    rounds = [compare.plan_round(settings, repeat, ".") for repeat in range(3)]
    first = [(r[0].system, r[0].threads) for r in rounds]
    assert len(set(first)) == 3
    kinds = [Counter((s.workload, s.system, s.threads) for s in r) for r in rounds]
    assert kinds[0] == kinds[1] == kinds[2]
    assert set(kinds[0].values()) == {1}
    assert ("mnist", "keras-numpy", None) in kinds[0]
    assert ("text", "overlap-accelerated", 6) not in kinds[0]


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        compare.main(list(arguments))
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--systems=keras-nunpy", "unknown name 'keras-nunpy'"),
        ("--workloads=imagenet", "unknown name 'imagenet'"),
        ("--threads=two", "--threads takes numbers"),
        ("--threads=0", "positive"),
        ("--epochs=0", "--epochs must be 1 or more, got 0"),
        ("--repeats=-1", "--repeats must be 1 or more, got -1"),
        ("--timeout_s=0", "positive"),
        ("--report=nowhere.json", "nowhere.json"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(capsys, tmp_path, argument, complaint):
    assert complaint in refused(capsys, argument, f"--output_dir={tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()


def test_earlier_results_are_shown_again(found, tmp_path, capsys):
    found.save(tmp_path / "results.json")
    status = compare.main([f"--output_dir={tmp_path / 'out'}", "--report", str(tmp_path / "results.json")])
    assert status == 0
    assert {"report.html", "results.json", "table.txt", "plots"} == {
        p.name for p in (tmp_path / "out").iterdir()
    }
    assert json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert "overlap" in capsys.readouterr().out


def begun_comparison(tmp_path):
    """Returns a comparison whose child has begun to work, and all that it has started."""
    options = [
        "--workloads=mlp",
        "--systems=train-only",
        "--quick",
        "--no-copies",
        f"--output_dir={tmp_path}",
    ]
    process = psutil.Popen([sys.executable, "-m", "scripts.bench.compare", *options])
    children: list[psutil.Process] = []
    while process.is_running() and not any(map(_has_worked, children)):
        time.sleep(0.02)  # a look at the children takes longer than that
        children = process.children(recursive=True)
    return process, children


def assert_ended(children):
    _, alive = psutil.wait_procs(children, timeout=60)
    assert children
    assert not alive


def test_a_comparison_that_is_terminated_ends_its_child(tmp_path):
    process, children = begun_comparison(tmp_path)
    process.terminate()
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    assert_ended(children)


def _has_worked(process):
    try:
        return process.cpu_times().user > 0.1
    except psutil.NoSuchProcess:
        return False


def test_a_child_ends_when_its_parent_is_killed(tmp_path):
    process, children = begun_comparison(tmp_path)
    process.kill()
    process.wait(timeout=60)
    assert_ended(children)
