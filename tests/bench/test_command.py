"""Hazards of the command line: a comparison that repeats itself, and one that publishes what it must not."""

import argparse
import importlib
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from scripts.bench import command, compare, publish, runner
from tests.bench.conftest import record

pytestmark = pytest.mark.usefixtures("undrawn")

ROOT = Path(__file__).parents[2]
COMMANDS = ("compare", "conv", "scheduling", "zero_copy", "start")


def line(*argv, also=()):
    parsed = command.Command(
        argparse.ArgumentParser(), script="scripts/x.sh", series="x", output_dir="out", also=also
    )
    parsed.parser.add_argument("--size")
    parsed.parser.add_argument("--data_dir")
    return parsed, parsed.parse(list(argv))


@pytest.mark.parametrize(
    ("argv", "typed"),
    [
        ((), "scripts/x.sh"),
        (("--size=3", "--resume", "--publish"), "scripts/x.sh --size=3"),
        (("--publish", "name", "--size", "3"), "scripts/x.sh --size 3"),
        (("--publish", "--output_dir", "/home/me/x", "--size=3"), "scripts/x.sh --size=3"),
        (("--publish=name", "--data_dir=/home/me", "--size", "a b"), "scripts/x.sh --size 'a b'"),
        (("--out", "/home/me/x", "--resume"), "scripts/x.sh"),
    ],
)
def test_the_command_of_a_page_names_no_place(argv, typed):
    assert line(*argv, also=("--out",))[0].as_typed == typed


@pytest.mark.parametrize("series", ["Name", "a b", "../x", "a-1", ""])
def test_a_series_that_is_no_name_is_refused(series, capsys):
    with pytest.raises(SystemExit):
        line(f"--publish={series}")
    assert "--publish takes a name such as x" in capsys.readouterr().err


def test_an_abbreviated_option_is_refused(capsys):
    with pytest.raises(SystemExit):
        line("--data=/home/me")
    assert "unrecognized arguments" in capsys.readouterr().err


def test_an_interrupted_comparison_says_how_to_go_on(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.run(interrupted) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "--resume goes on from here" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_comparison_can_go_on_and_publish(name, capsys):
    main = importlib.import_module(f"scripts.bench.{name}").main
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert all(option in said for option in ("--resume", "--publish", "--output_dir"))


@pytest.mark.parametrize("name", [*COMMANDS, "soak", "growth"])
@pytest.mark.by_default("scheduling", "start")
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


class FakeRuns:
    """Runs that take no time; the one of a number is cut off."""

    def __init__(self, monkeypatch, cut_off=None):
        self.specs, self.source = [], "made up"
        self._cut_off = cut_off
        monkeypatch.setattr(runner, "run", self.run)
        monkeypatch.setattr(runner, "run_job", self.job)

    def job(self, job, *, timeout_s, **_):
        if job["job"] == "copies":
            return [{"workers": count, "copy_s": 0.01, "snapshot_s": 0.001} for count in job["workers"]]
        if job["job"] == "kernels":
            return {"note": "compiled already"}
        return {"source": self.source, "train": 10, "validation": 5}

    def run(self, spec, *, timeout_s):
        if len(self.specs) == self._cut_off:
            raise KeyboardInterrupt
        self.specs.append(spec)
        values = {
            name: value for name, value in asdict(spec).items() if name in ("workload", "threads", "epochs")
        }
        return record(spec.system, spec.repeat, 1.0 + len(self.specs) % 3, **values)


@pytest.fixture
def arguments(tmp_path):
    return [
        "--workloads=mnist,mlp",
        "--systems=keras-tfdata,overlap",
        "--threads=1,6",
        "--epochs=2",
        "--repeats=2",
        f"--output_dir={tmp_path / 'out'}",
    ]


@pytest.mark.parametrize("cut_off", [0, pytest.param(1, marks=pytest.mark.nightly), 7, 15])
def test_a_comparison_that_was_cut_off_goes_on_with_the_next_run(monkeypatch, arguments, cut_off, tmp_path):
    first = FakeRuns(monkeypatch, cut_off)
    with pytest.raises(KeyboardInterrupt):
        compare.main(arguments)
    second = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    planned = [(s.workload, s.system, s.threads, s.repeat) for s in [*first.specs, *second.specs]]
    assert len(planned) == len(set(planned)) == 16
    third = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    assert third.specs == []
    assert (tmp_path / "out" / "results.json").exists()


def test_a_run_that_failed_is_tried_again(monkeypatch, arguments):
    fakes = FakeRuns(monkeypatch)

    def failing(spec, *, timeout_s):
        fakes.specs.append(spec)
        return runner.RunRecord.failed(spec, "no memory")

    monkeypatch.setattr(runner, "run", failing)
    assert compare.main(arguments) == 1
    again = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume"]) == 0
    assert len(again.specs) == 16


def test_other_arguments_and_other_data_are_refused(monkeypatch, arguments, capsys):
    FakeRuns(monkeypatch)
    assert compare.main(arguments) == 0
    with pytest.raises(SystemExit):
        compare.main([*arguments, "--resume", "--epochs=3"])
    assert "--epochs was 2, is 3" in capsys.readouterr().err
    FakeRuns(monkeypatch).source = "other digits"
    with pytest.raises(SystemExit):
        compare.main([*arguments, "--resume"])
    assert "mnist: the data were 'made up" in capsys.readouterr().err


def test_a_finished_comparison_is_published_without_a_run(monkeypatch, arguments, tmp_path, capsys):
    FakeRuns(monkeypatch)
    assert compare.main(arguments) == 0
    (tmp_path / "index.md").write_text("| question | newest | earlier |\n|---|---|---|\n")
    monkeypatch.setattr(compare, "publish", lambda *values: publish.publish(*values, folder=tmp_path))
    again = FakeRuns(monkeypatch)
    assert compare.main([*arguments, "--resume", "--publish=mine"]) == 0
    assert again.specs == []
    (page,) = tmp_path.glob("*-mine.md")
    text = page.read_text()
    assert "scripts/compare.sh --workloads=mnist,mlp" in text
    assert str(tmp_path) not in text
    assert f"({page.name})" in (tmp_path / "index.md").read_text()


def test_quick_figures_are_not_published(monkeypatch, arguments, capsys):
    fakes = FakeRuns(monkeypatch)
    with pytest.raises(SystemExit):
        compare.main([*arguments, "--quick", "--publish"])
    assert "figures are not published" in capsys.readouterr().err
    assert fakes.specs == []
