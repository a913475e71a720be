"""Scripts are bash, can be run and say what they do; a release describes its version and links to it."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from overlap_train import __version__
from scripts import description

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


def test_links_of_the_description_lead_to_this_version(tmp_path):
    for name in ("README.md", "setup.cfg", "overlap_train/_support/version.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    description.main(tmp_path, "https://host/owner/name.git")
    text = (tmp_path / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", re.sub(r"```.*?```", "", text, flags=re.S))
    assert len(links) > 10
    assert [link for link in links if not re.match("https://", link)] == []
    assert f"https://host/owner/name/blob/v{__version__}/docs/command_line.md#compare" in links
    assert f"https://host/owner/name/raw/v{__version__}/docs/pictures/overlap_timeline.svg" in links
    config = configparser.ConfigParser(interpolation=None)
    config.read(tmp_path / "setup.cfg")
    assert "Source = https://host/owner/name\n" in config["metadata"]["project_urls"]


def test_the_changelog_describes_this_version_within_1500_words():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d{{2}}-\d{{2}}\)$", text, re.M)
    assert len(text.split()) <= 1500
    assert f"Version {__version__} " in (ROOT / "docs" / "index.md").read_text()
