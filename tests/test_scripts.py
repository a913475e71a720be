"""The scripts are bash, can be run, say what they do, and are those that CONTRIBUTING names."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_can_be_run_and_says_what_it_does(path):
    subprocess.run(["bash", "-n", str(path)], check=True)
    first, says, *lines = path.read_text().splitlines()
    assert first == "#!/usr/bin/env bash"
    assert re.match(r"# \w+s\b", says), says  # "Builds the site", "Runs the tests"
    assert "set -euo pipefail" in lines
    assert os.access(path, os.X_OK)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md"])
def test_the_scripts_that_a_page_tells_to_run_are_there(page):
    named = set(re.findall(r"^scripts/\w+\.sh", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert named <= {path.relative_to(ROOT).as_posix() for path in SCRIPTS}


def test_each_script_calls_only_what_is_there():
    for path in SCRIPTS:
        text = path.read_text()
        for module in re.findall(r"python -m ((?:scripts|overlap_train)(?:\.\w+)*)", text):
            place = ROOT.joinpath(*module.split("."))
            assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), (path, module)
        for called in re.findall(r"(?:^|[ \"])(scripts/\w+\.(?:sh|py))", text, re.MULTILINE):
            assert (ROOT / called).is_file(), (path, called)
