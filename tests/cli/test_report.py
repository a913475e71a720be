"""Reports for people; as JSON: test_main.py."""

import io

import pytest

from overlap_train.cli.report import Finding, Report, show

REPORT = Report(
    "doctor",
    {
        "versions": [Finding("Keras", "3.15.1"), Finding("GPU", None, "none", "note")],
        "nothing": [],
        "caches": [Finding("a longer name", False, "not writable", "mend", "chmod [u+w] ~/.cache")],
    },
    title="What is here",
)


def test_plain_lines_stand_in_columns():
    stream = io.StringIO()
    show(REPORT, stream, as_json=False)
    assert stream.getvalue().splitlines() == [
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


@pytest.mark.parametrize(("encoding", "expected"), [("utf-8", "/café\\udcff"), ("ascii", "/caf\\xe9\\udcff")])
def test_a_path_that_is_no_text_is_shown_all_the_same(encoding, expected):
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict")
    report = Report("doctor", {"caches": [Finding("place", "/café\udcff", "", "mend", "ls /café\udcff")]})
    show(report, stream, as_json=False)
    assert stream.buffer.getvalue().decode(encoding).count(expected) == 2
