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


def test_arguments_are_passed_on_and_json_alone_stands_on_standard_output(checkout, capfd):
    root = checkout('echo "$PWD: $*"')
    assert main(["compare", "--quick", "--threads=1,6"]) == 0
    assert f"{root}: --quick --threads=1,6" in capfd.readouterr().out
    assert main(["compare", "--json"]) == 0
    said = capfd.readouterr()
    findings = json.loads(said.out)["sections"]["comparison"]
    assert {f["name"]: f["value"] for f in findings} == {"checkout": str(root), "status": 0}
    assert f"{root}: " in said.err


@pytest.mark.parametrize(
    ("script", "mode", "status", "told"),
    [
        ("exit 3", 0o755, 1, "ended with status 3"),
        ("exit 2", 0o755, 2, "does not know"),  # as of arguments
        ("true", 0o644, 1, "cannot be run"),
    ],
)
def test_a_comparison_that_fails_says_how(checkout, capfd, script, mode, status, told):
    (checkout(script) / compare.SCRIPT).chmod(mode)
    assert main(["compare", "--nosuch"]) == status
    assert told in "".join(capfd.readouterr())


def test_without_a_checkout_it_says_where_the_comparison_is(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir("/")
    assert compare.find_checkout() == Path(__file__).resolve().parents[2]
    monkeypatch.setattr(compare, "_candidates", lambda: iter([tmp_path]))
    assert main(["compare"]) == 1
    said = capsys.readouterr().out
    assert "in the repository and not in the wheel" in said
    assert "scripts/compare.sh at its root" in said
