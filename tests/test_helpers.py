"""What the tests lean on: processes that are forked, defaults that a plugin sets, cases left to the night."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from tests import interpreters, stress
from tests.conftest import left_to_the_night

# A forked interpreter is like any other.


@pytest.mark.by_default("1 / 0-1")
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    ],
)
def test_a_program_ends_as_under_python(code, status):
    done = interpreters.run(["-c", code])
    assert done.returncode == status
    assert ("ZeroDivisionError" in done.stderr) == (status == 1)


def test_arguments_environment_and_directory_are_its_own(tmp_path):
    code = "import os, sys\nprint(sys.argv[1:], os.environ, os.getcwd(), __name__)\n"
    (tmp_path / "script.py").write_text(code)
    arguments = [tmp_path / "script.py", "a"]
    done = interpreters.run(arguments, env={"ONLY": "this"}, cwd=tmp_path, check=True)
    assert done.stdout == f"['a'] environ({{'ONLY': 'this'}}) {tmp_path} __main__\n"


def test_tensorflow_is_imported_and_not_started():
    code = (
        "import sys\n"
        "assert 'tensorflow' in sys.modules\n"
        "import tensorflow as tf\n"
        "two = [tf.config.LogicalDeviceConfiguration()] * 2\n"
        "tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0], two)\n"
        "print(len(tf.config.list_logical_devices()))\n"
    )
    assert interpreters.run(["-c", code], check=True).stdout == "2\n"


def test_a_running_one_is_spoken_to_waited_for_and_killed():
    pipe = subprocess.PIPE
    process = interpreters.start(["-c", "print(input(), flush=True); input()"], stdin=pipe, stdout=pipe)
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline() == "hello\n"
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.communicate() == ("", "")
    assert process.returncode == -signal.SIGKILL


def test_the_plugin_that_sets_other_defaults_leaves_what_is_given():
    @dataclass(frozen=True)
    class Options:
        one: int = 1
        two: str = "two"

    stress.set_default(Options, "two", "another")
    assert Options() == Options(1, "another")
    assert Options(one=3).two == "another"
    assert Options(two="two").two == Options(3, "two").two == "two"


# The marker `by_default` leaves cases to the nightly run, and none of the kinds.


def cases(marker, *params):
    """Return stand-ins for the cases of a test, by the values of their parameters."""
    return [
        SimpleNamespace(
            originalname="test_it",
            callspec=SimpleNamespace(id=" ".join(map(str, each.values())), params=each),
            get_closest_marker=lambda name: marker.mark,
        )
        for each in params
    ]


@pytest.mark.parametrize(
    ("marker", "params", "left"),
    [
        (pytest.mark.by_default("1", "3"), [{"a": a} for a in range(5)], ["0", "2", "4"]),
        (
            pytest.mark.by_default(each_value=True),
            [{"a": a, "b": b} for a in range(3) for b in range(2)],
            ["1 1", "2 1"],
        ),
    ],
    ids=["named", "each value with some others"],
)
def test_cases_are_left_to_the_night(marker, params, left):
    assert [each.callspec.id for each in left_to_the_night(cases(marker, *params))] == left


def test_a_name_of_no_case_is_an_error_where_all_cases_are_there():
    found = cases(pytest.mark.by_default("1", "other"), {"a": 0}, {"a": 1})
    with pytest.raises(pytest.UsageError, match=r"test_it has no cases \['other'\]"):
        left_to_the_night(found)
    assert [each.callspec.id for each in left_to_the_night(found, whole=False)] == ["0"]
