"""`overlap-train build`: the result of the build, or why there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
