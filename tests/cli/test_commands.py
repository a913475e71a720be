"""`overlap-train build` and `compare`: what they did, or why they could not; reports for people."""

import io
import json
from pathlib import Path

import pytest

from overlap_train._support.differences import Call
from overlap_train.cli import verify
from overlap_train.cli.comparing import Run
from overlap_train.cli.main import main
from overlap_train.cli.report import Finding, Report, show
from overlap_train.conv import build
from overlap_train.errors import NativeUnavailableError


def test_the_library_is_told(monkeypatch, told):
    asked = []
    monkeypatch.setattr(build, "build", lambda **options: asked.append(options) or Path("/cache/library.so"))
    findings = told("build", "--force")["convolution"]
    assert findings["library"]["value"] == "/cache/library.so"
    assert findings["took"]["value"] >= 0
    assert asked == [{"cuda": False, "force": True}]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_why_it_cannot_be_built_is_told(monkeypatch, capsys, options):
    def refuse(**_):
        raise NativeUnavailableError("CMake is missing.\nInstall it.")

    monkeypatch.setattr(build, "build", refuse)
    assert main(["build", *options]) == 1
    assert "CMake is missing. Install it." in capsys.readouterr().out


def run_of(*, seconds=1.0, cores=1.0, loss=0.5, calls=("fit",)):
    """What one run of a script did, in as many seconds of `fit`, on as many busy cores."""
    hooks, cpu_s = [("on_epoch_end", 0, {"loss": loss})], seconds * cores
    return Run([Call(name=name, hooks=hooks, seconds=seconds, cpu_seconds=cpu_s) for name in calls])


@pytest.fixture
def compared(monkeypatch, tmp_path, capsys):
    """Returns what compares a script whose runs are these, and gives the status and the verdict."""

    def compare(by_keras, overlapped):
        runs = {"keras": iter(by_keras), "overlap": iter(overlapped)}
        order = []
        monkeypatch.setattr(verify, "record", lambda _, by, __: order.append(by) or next(runs[by]))
        monkeypatch.setattr("overlap_train.options.threads.available_cores", lambda: 2)
        (tmp_path / "train.py").touch()
        status = main(["compare", "--json", str(tmp_path / "train.py")])
        assert order == ["keras", "overlap", "overlap", "keras"]
        verdict, *_ = json.loads(capsys.readouterr().out)["sections"]["result"]
        return status, verdict["value"], verdict["text"]

    return compare


BUSY = "Keras keeps 1.9 of 2 cores busy"


@pytest.mark.parametrize(
    ("by_keras", "overlapped", "cores", "value", "parts"),
    [
        ((2.0, 3.0), (1.0, 1.5), 1.9, "faster", ["0.50 of the time", "equal bit for bit"]),
        ((2.0, 3.0), (1.0, 2.5), 1.9, "same", ["gained nothing that two runs show", BUSY]),
        ((2.0, 3.0), (1.0, 2.5), 1.0, "same", ["gained nothing that two runs show"]),
        ((2.0, 3.0), (4.0, 6.0), 1.9, "slower", ["2.00 times as long", BUSY]),
    ],
)
def test_a_comparison_has_one_verdict(compared, by_keras, overlapped, cores, value, parts):
    keras = [run_of(seconds=seconds, cores=cores) for seconds in by_keras]
    status, found, text = compared(keras, [run_of(seconds=seconds) for seconds in overlapped])
    assert (status, found) == (0, value)
    assert [part for part in parts if part not in text] == []
    assert (BUSY in text) == (BUSY in parts)


def test_a_faster_run_of_other_results_is_no_gain(compared):
    status, found, text = compared([run_of(seconds=9.0)] * 2, [run_of(loss=0.7)] * 2)
    assert (status, found) == (1, "different")
    assert "epoch 1, on_epoch_end loss: 0.5 by Keras, 0.7 overlapped" in text


def test_a_script_without_a_fit_has_nothing_to_compare(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(verify, "record", lambda *_: run_of(calls=("evaluate",)))
    (tmp_path / "train.py").touch()
    assert main(["compare", str(tmp_path / "train.py")]) == 2
    assert "has not called fit" in capsys.readouterr().err


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
