"""Standard output is the report's, and what else is written there goes to standard error."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from overlap_train.cli.output import report_only


def test_a_captured_stream_is_the_reports_and_comes_back(capsys):
    before = sys.stdout
    with contextlib.ExitStack() as resources:
        stream = report_only(resources, put_back=True)
        assert stream is before
        print("aside")
        stream.write("report")
    assert sys.stdout is before
    assert capsys.readouterr() == ("report", "aside\n")


def test_the_files_come_back(capfd):
    with contextlib.ExitStack() as resources:
        stream = report_only(resources, put_back=True)
        os.write(1, b"aside")
        stream.write("report")
    os.write(1, b", again")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("report, again", "aside")


def test_they_come_back_when_it_fails(capsys):
    before, resources = sys.stdout, contextlib.ExitStack()
    report_only(resources, put_back=True)
    with pytest.raises(KeyError), resources:
        raise KeyError
    assert sys.stdout is before


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_process_of_the_commands_own_prints_nothing_behind_the_report(closed):
    code = (
        "import atexit, contextlib, sys; atexit.register(print, 'late')\n"
        "from overlap_train.cli.output import report_only\n"
        "with contextlib.ExitStack() as resources: report_only(resources, put_back=False).write('report')\n"
        "print('behind')"
    )
    shell = f'exec {sys.executable} -c "$0" {">&-" if closed else ""}'
    done = subprocess.run(["sh", "-c", shell, code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ("" if closed else "report")
    assert done.returncode == 0, done.stderr
