"""Reports: plain in a pipe, in colour on a terminal, as JSON, and alone on standard output."""

import contextlib
import io
import json
import os
import subprocess
import sys

import pytest

from overlap_train.cli.report import Finding, Report, one_line, report_only, show

REPORT = Report(
    "doctor",
    {
        "versions": [Finding("Keras", "3.15.1"), Finding("GPU", None, "none", "note")],
        "nothing": [],
        "caches": [Finding("a longer name", False, "not writable", "mend", "chmod [u+w] ~/.cache")],
    },
    title="What is here",
)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, **options):
    show(REPORT, stream=stream, **{"as_json": False, **options})
    return stream.getvalue()


def test_plain_lines_stand_in_columns():
    assert shown(io.StringIO()).splitlines() == [
        "What is here",
        "",
        "versions",
        "  ok    Keras          3.15.1",
        "  -     GPU            none",
        "",
        "caches",
        "  mend  a longer name  not writable",
        "                       -> chmod [u+w] ~/.cache",
        "",
        "1 to mend",
    ]


def test_a_terminal_gets_colours_and_the_same_words(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = shown(Terminal())
    assert "\x1b[" in text
    # What stands in brackets is text and no markup.
    assert all(word in text for word in ("What is here", "not writable", "chmod [u+w] ~/.cache", "1 to mend"))
    assert json.loads(shown(Terminal(), as_json=True))["ok"] is False
    monkeypatch.setenv("TERM", "dumb")
    assert shown(Terminal()) == shown(io.StringIO()), "a dumb one is as a pipe"


@pytest.mark.parametrize("as_json", [False, True])
def test_where_standard_output_is_closed_nothing_is_written(as_json, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    show(REPORT, as_json=as_json)


class Strict(io.TextIOWrapper):
    """Refuses what its encoding has not, as standard output does."""

    def __init__(self, encoding, terminal):
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict")
        self.terminal = terminal

    def isatty(self):
        return self.terminal


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", "/café\\udcff"), ("ascii", "/caf\\xe9\\udcff")])
def test_a_path_that_is_no_text_is_shown_all_the_same(terminal, encoding, expected, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Strict(encoding, terminal)
    report = Report("doctor", {"caches": [Finding("place", "/café\udcff", "", "mend", "ls /café\udcff")]})
    show(report, as_json=False, stream=stream)
    assert stream.buffer.getvalue().decode(encoding).count(expected) == 2


def test_an_error_of_many_lines_is_put_on_one():
    assert one_line("a\n  b\t c") == "a b c"
    assert one_line("x" * 50, most=10) == "xxxxxxx..."
    assert one_line("") == "str"


def test_a_captured_stream_is_the_reports_and_comes_back(capsys):
    before = sys.stdout
    with contextlib.ExitStack() as resources:
        stream = report_only(resources, put_back=True)
        assert stream is before
        print("aside")
        stream.write("report")
    assert sys.stdout is before
    assert capsys.readouterr() == ("report", "aside\n")
    resources = contextlib.ExitStack()
    report_only(resources, put_back=True)
    with pytest.raises(KeyError), resources:
        raise KeyError
    assert sys.stdout is before


def test_the_files_come_back(capfd):
    with contextlib.ExitStack() as resources:
        stream = report_only(resources, put_back=True)
        os.write(1, b"aside")
        stream.write("report")
    os.write(1, b", again")
    said = capfd.readouterr()
    assert (said.out, said.err) == ("report, again", "aside")


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
def test_a_process_of_the_commands_own_prints_nothing_behind_the_report(closed):
    code = (
        "import atexit, contextlib, sys; atexit.register(print, 'late')\n"
        "from overlap_train.cli.report import report_only\n"
        "with contextlib.ExitStack() as resources: report_only(resources, put_back=False).write('report')\n"
        "print('behind')"
    )
    shell = f'exec {sys.executable} -c "$0" {">&-" if closed else ""}'
    done = subprocess.run(["sh", "-c", shell, code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == ("" if closed else "report")
    assert done.returncode == 0, done.stderr
