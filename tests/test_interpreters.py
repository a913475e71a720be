"""A forked interpreter is like any other: it prints, fails, is killed, and starts TensorFlow itself."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests import interpreters


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
    (tmp_path / "script.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ, os.getcwd(), __name__)\n"
    )
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
