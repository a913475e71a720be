"""`overlap-train build` and `overlap-train compare`: what they did, or why they could not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlap_train.cli import compare
from overlap_train.cli.main import main
from overlap_train.conv import build
from overlap_train.errors import NativeUnavailableError


def test_the_library_is_told(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(build, "build", lambda **options: asked.append(options) or Path("/cache/library.so"))
    assert main(["build", "--force", "--json"]) == 0
    findings = {f["name"]: f["value"] for f in json.loads(capsys.readouterr().out)["sections"]["convolution"]}
    assert findings["library"] == "/cache/library.so"
    assert findings["took"] >= 0
    assert asked == [{"cuda": False, "force": True}]


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_why_it_cannot_be_built_is_told(monkeypatch, capsys, options):
    def refuse(**_):
        raise NativeUnavailableError("CMake is missing.\nInstall it.")

    monkeypatch.setattr(build, "build", refuse)
    assert main(["build", *options]) == 1
    assert "CMake is missing. Install it." in capsys.readouterr().out


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Returns what makes a checkout whose script is the given text, with the working directory in it."""

    def make(text):
        root = tmp_path / "checkout"
        (root / "scripts").mkdir(parents=True)
        (root / "overlap_train").mkdir()
        (root / "overlap_train" / "__init__.py").touch()
        script = root / compare.SCRIPT
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        monkeypatch.chdir(root / "overlap_train")
        return root

    return make


def test_arguments_are_passed_on(checkout, capfd):
    root = checkout('echo "$PWD: $*"')
    assert main(["compare", "--quick", "--threads=1,6"]) == 0
    assert f"{root}: --quick --threads=1,6" in capfd.readouterr().out


def test_json_alone_stands_on_standard_output(checkout, capfd):
    root = checkout("echo a table")
    assert main(["compare", "--json"]) == 0
    said = capfd.readouterr()
    findings = json.loads(said.out)["sections"]["comparison"]
    assert {f["name"]: f["value"] for f in findings} == {"checkout": str(root), "status": 0}
    assert "a table" in said.err


def test_a_failed_comparison_is_status_1(checkout, capfd):
    checkout("exit 3")
    assert main(["compare"]) == 1
    assert "ended with status 3" in capfd.readouterr().out


def test_arguments_that_the_script_refuses_are_wrong_usage(checkout, capfd):
    checkout("exit 2")
    assert main(["compare", "--nosuch"]) == 2
    assert "does not know" in capfd.readouterr().err


def test_a_script_that_cannot_be_run_is_told(checkout, capfd):
    (checkout("true") / compare.SCRIPT).chmod(0o644)
    assert main(["compare"]) == 1
    assert "cannot be run" in capfd.readouterr().out


def test_without_a_checkout_it_says_where_the_comparison_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(compare, "_candidates", lambda: iter([tmp_path]))
    assert main(["compare"]) == 1
    said = capsys.readouterr().out
    assert "in the repository and not in the wheel" in said
    assert "scripts/compare.sh at its root" in said


def test_this_repository_is_a_checkout(monkeypatch):
    monkeypatch.chdir("/")
    assert compare.find_checkout() == Path(__file__).resolve().parents[2]
