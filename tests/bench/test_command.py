"""Hazards of the command line: a comparison that repeats itself, and one whose page names a place."""

import argparse
import importlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench import command

ROOT = Path(__file__).parents[2]
COMMANDS = ("compare", "conv", "scheduling", "zero_copy", "start")


def line(*argv):
    parsed = command.Command(argparse.ArgumentParser(), script="scripts/x.sh", series="x", output_dir="out")
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
    ],
)
def test_the_command_of_a_page_names_no_place(argv, typed):
    assert line(*argv)[0].as_typed == typed


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


@pytest.mark.parametrize("name", [*COMMANDS, "soak"])
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
