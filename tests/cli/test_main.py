"""The command line: which command runs, how it ends, and what it costs to start."""

import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys

import pytest

from overlap_train import __version__
from overlap_train.cli import main as module
from overlap_train.cli.main import main
from overlap_train.cli.report import Finding, Report, UsageError


class Fake:
    """A command that finds what it is given."""

    def __init__(self, finds):
        self.finds = finds

    def add_arguments(self, parser):
        parser.add_argument("--loud", action="store_true")

    def run(self, options):
        if isinstance(self.finds, BaseException):
            raise self.finds
        return Report("doctor", {"things": [self.finds]})


@pytest.fixture
def doctor(monkeypatch):
    """Returns what puts another command in the doctor's place."""

    def put(finds):
        monkeypatch.setattr(module, "_COMMANDS", {"doctor": "a test"})
        monkeypatch.setattr(module.importlib, "import_module", lambda name: Fake(finds))

    return put


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["doctr"], "'build'); did you mean doctor?"),
        (["--versoin"], "the following arguments are required: COMMAND"),
        (["doctor", "--jsn"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["explain", "--jsno", "x.py"], "unrecognized arguments: --jsno; did you mean --json?"),
        (["explain", "--batches", "x.py"], "unrecognized arguments: --batches"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_usage_is_status_2(arguments, told, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: overlap-train" in said.err
    assert said.err.rstrip().endswith(told)


@pytest.mark.parametrize(
    ("finding", "status", "told"),
    [
        (Finding("it", 1), 0, "nothing to mend\n"),
        (Finding("it", None, "in step", "note", "choose"), 0, "nothing to mend; a line with -> is optional"),
        (Finding("it", None, "gone", "mend", "get it"), 1, "-> get it"),
    ],
)
def test_the_status_says_whether_something_is_to_be_mended(finding, status, told, doctor, capsys):
    doctor(finding)
    assert main(["doctor"]) == status
    assert told in capsys.readouterr().out


def test_a_command_may_refuse_its_arguments_and_ctrl_c_is_status_130(doctor, capsys, tmp_path):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"overlap_train {__version__}"
    assert main(["explain", str(tmp_path / "no.py"), "--jsno"]) == 2  # behind the script they are its own
    assert "there is no script" in capsys.readouterr().err
    doctor(UsageError("there is no such script"))
    assert main(["doctor", "--json"]) == 2
    assert capsys.readouterr() == ("", "overlap-train doctor: there is no such script\n")
    doctor(KeyboardInterrupt())
    assert main(["doctor"]) == 130


def test_json_is_one_object(doctor, capsys):
    doctor(Finding("it", {"size_bytes": 3}, "3 bytes", "note", "less"))
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    finding = {"name": "it", "value": {"size_bytes": 3}, "text": "3 bytes", "state": "note"}
    assert report == {
        "command": "doctor",
        "version": __version__,
        "ok": True,
        "sections": {"things": [{**finding, "remedy": "less"}]},
    }


PRINTS = """
import keras, numpy as np
print("by print")
x = np.zeros((8, 2), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.summary()
try:
    model.fit(x, x[:, :1], validation_split=0.5)
finally:
    print("on the way out")
"""


def test_what_a_script_prints_is_no_part_of_the_json(tmp_path, capsys):
    script = tmp_path / "prints.py"
    script.write_text(PRINTS)
    assert main(["explain", "--json", str(script)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["command"] == "explain"
    for words in ("by print", "on the way out"):
        assert words in said.err


@pytest.mark.parametrize("command", module._COMMANDS)
def test_the_help_of_each_command_has_an_example_that_can_be_typed(command, capsys, monkeypatch):
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    example = re.search(r"example: overlap-train ([^.]*(?:\.py)?[^.]*)", shown)
    assert example, shown
    ran = []
    room = importlib.import_module(f"overlap_train.cli.{command}")
    monkeypatch.setattr(room, "run", lambda options: ran.append(options.command))
    assert main(example[1].split()) == 0, capsys.readouterr().err
    assert ran == [command]


@pytest.mark.parametrize("arguments", [["build"], ["build", "--json"]], ids=["text", "json"])
def test_a_reader_that_has_gone_is_no_error(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    code = f"import sys; from overlap_train.cli.main import main; sys.exit(main({arguments}))"
    process = subprocess.run(
        [sys.executable, "-c", f"import os; os.chdir('/'); {code}"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": ""},
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert b"BrokenPipeError" not in process.stderr


def test_the_start_imports_nothing_heavy():
    code = (
        "import sys; from overlap_train.cli.main import main; assert main(['--help']) == 0; "
        "heavy = {'tensorflow', 'keras', 'numpy', 'tqdm', 'packaging'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


def test_the_console_script_is_this_function():
    scripts = importlib.metadata.entry_points(group="console_scripts", name="overlap-train")
    if not scripts:
        pytest.skip("the package is not installed with its console script")
    assert all(script.load() is main for script in scripts)
