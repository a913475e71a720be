"""Hazards of comparisons: runs done twice, unfair turns, figures that must not be published."""

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.bench import children, command, compare
from scripts.bench.children import ChildFailedError

FIGURES = {"wall_s": 2.0, "cpu_s": 1.0, "val_loss": 0.1, "val_accuracy": 0.9, "hidden_s": None, "notes": []}


class FakeRuns:
    """Jobs that take no time; the run of a number is cut off, and all of them fail if they are told to."""

    def __init__(self, monkeypatch, cut_off=None):
        self.specs, self.failing = [], False
        self._cut_off = cut_off
        monkeypatch.setattr(children, "run_module", self.run)

    def run(self, _, job, **__):
        spec = compare.json.loads(job)
        if spec.pop("job") != "train":
            return "made up"
        if len(self.specs) == self._cut_off:
            raise KeyboardInterrupt
        self.specs.append(spec)
        if self.failing:
            raise ChildFailedError("no memory")
        return FIGURES


@pytest.fixture
def arguments(tmp_path):
    asked = ["--workloads=mnist,mlp", "--systems=keras-tfdata,overlap", "--threads=1,6", "--epochs=2"]
    return [*asked, "--repeats=2", f"--output_dir={tmp_path / 'out'}"]


@pytest.mark.parametrize("cut_off", [0, pytest.param(1, marks=pytest.mark.nightly), 7, 15])
def test_a_comparison_that_was_cut_off_goes_on_with_the_next_run(monkeypatch, arguments, cut_off, tmp_path):
    first = FakeRuns(monkeypatch, cut_off)
    with pytest.raises(KeyboardInterrupt):
        compare.main(arguments)
    second = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    specs = [*first.specs, *second.specs]
    planned = [(s["workload"], s["system"], s["threads"], s["repeat"]) for s in specs]
    assert len(planned) == len(set(planned)) == 16
    third = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    assert third.specs == []
    assert (tmp_path / "out" / "results.json").exists()


def test_failed_and_quick_runs_are_not_published_and_failed_ones_tried_again(
    monkeypatch, arguments, published, capsys
):
    fakes = FakeRuns(monkeypatch)
    with pytest.raises(SystemExit):
        compare.main([*arguments, "--quick", "--publish"])
    assert "figures are not published" in capsys.readouterr().err
    assert fakes.specs == []
    fakes.failing = True
    assert compare.main([*arguments, "--publish"]) == 1
    assert "16 runs failed and nothing is published; the first: mnist, " in capsys.readouterr().out
    assert not list(published.glob("2*"))
    again = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    assert len(again.specs) == 16


def test_other_arguments_are_refused(monkeypatch, arguments, capsys):
    FakeRuns(monkeypatch)
    assert compare.main(arguments) == 0
    with pytest.raises(SystemExit):
        compare.main([*arguments, "--resume", "--epochs=3"])
    assert "--epochs was 2, is 3" in capsys.readouterr().err


def test_a_finished_comparison_is_published_without_a_run(monkeypatch, arguments, tmp_path, published):
    FakeRuns(monkeypatch)
    assert compare.main(arguments) == 0
    again = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume", "--publish=mine"]) == 0
    assert again.specs == []
    (page,) = published.glob("*-mine.md")
    text = page.read_text()
    assert "scripts/compare.sh --workloads=mnist,mlp" in text
    assert "- `mnist`: made up" in text
    assert "after one that is not timed" in text
    assert all(f"## {title}" in text for title in ("mnist, 6 threads: seconds", "mlp, 1 thread: seconds"))
    assert str(tmp_path) not in text


def test_rounds_take_turns_and_hold_every_run_once():
    systems = ("keras-numpy", "keras-tfdata", "overlap")
    options = {"threads": (1, 6), "epochs": 2, "repeats": 3, "quick": False, "whole": False}
    settings = argparse.Namespace(workloads=("mnist", "text"), systems=systems, **options)
    rounds = [compare.plan_round(settings, repeat, ".") for repeat in range(3)]
    first = [(r[0]["system"], r[0]["threads"]) for r in rounds]
    assert len(set(first)) == 3
    kinds = [Counter((s["workload"], s["system"], s["threads"]) for s in r) for r in rounds]
    assert kinds[0] == kinds[1] == kinds[2]
    assert set(kinds[0].values()) == {1}
    assert ("mnist", "keras-numpy", None) in kinds[0]


@pytest.mark.parametrize(
    ("argument", "complaint"),
    [
        ("--systems=keras-nunpy", "unknown name 'keras-nunpy'"),
        ("--threads=two", "--threads: expected a number of 1 or more, got 'two'"),
        ("--threads=1,0", "--threads: expected a number of 1 or more, got '0'"),
        ("--timeout_s=0", "--timeout_s: expected a number of 1 or more"),
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(capsys, tmp_path, argument, complaint):
    with pytest.raises(SystemExit) as stopped:
        compare.main([argument, f"--output_dir={tmp_path / 'out'}"])
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


ROOT = Path(__file__).parents[2]
COMMANDS = ("compare", "conv", "scheduling", "zero_copy", "start")


def line(*argv):
    parsed = command.Command(argparse.ArgumentParser(), script="scripts/x.sh", series="x", output_dir="out")
    parsed.parser.add_argument("--size")
    return parsed, parsed.parse(list(argv))


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        ((), "scripts/x.sh"),
        (("--size=3", "--resume", "--publish"), "scripts/x.sh --size=3"),
        (("--publish", "name", "--size", "3"), "scripts/x.sh --size 3"),
        (("--publish", "--output_dir", "/home/me/x", "--size=3"), "scripts/x.sh --size=3"),
        (("--publish=name", "--output_dir=/home/me", "--size", "a b"), "scripts/x.sh --size 'a b'"),
    ],
)
def test_the_command_of_a_page_names_no_place(argv, typed):
    assert line(*argv)[0].as_typed == typed


@pytest.mark.parametrize("name", [*COMMANDS, "soak"])
@pytest.mark.by_default("start")
def test_the_help_waits_for_no_tensorflow_and_prints_nothing_else(name):
    program = (
        "import runpy, sys\n"
        "sys.argv = ['x', '--help']\n"
        "try:\n"
        f"    runpy.run_module('scripts.bench.{name}', run_name='__main__')\n"
        "finally:\n"
        "    assert not {'tensorflow', 'keras', 'torch'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: scripts/")
    assert all(option in done.stdout for option in ("--publish", "--output_dir", "--resume"))
