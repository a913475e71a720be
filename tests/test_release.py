"""`scripts/release.sh` makes a release of what is committed and described, and says what is left to do.

What takes minutes (the environment, the wheels, the tests in them) is replaced here; tests/test_wheel.py has
the wheels.
"""

from __future__ import annotations

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
SCRIPT = ROOT / "scripts" / "release.sh"
# Does what the script asks Python for: a version, a source distribution, an environment.
PYTHON = """#!/usr/bin/env bash
echo "python $*" >> calls
case "$*" in
  *__version__*) echo 1.2.3 ;;
  *build_sdist*) mkdir -p dist && touch dist/overlap_train-1.2.3.tar.gz ;;
  *venv*) exit "${VENV:-1}" ;;
esac
"""
STUB = """#!/usr/bin/env bash
echo "$(basename "$0") $*" >> calls
"""


@pytest.fixture
def project(tmp_path):
    """A committed project of one changelog, whose other scripts only say that they were called."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts" / "release.sh")
    made = {
        "setup.sh": STUB,
        "audit.sh": STUB + 'echo {} > "$2"\n',
        "test.sh": STUB + 'exit "${TESTS:-0}"\n',
    }
    made["wheel.sh"] = STUB + "mkdir -p dist && touch dist/overlap_train-1.2.3-py3-none-any.whl\n"
    for name, text in made.items():
        (tmp_path / "scripts" / name).write_text(text)
    (tmp_path / ".venv" / "bin" / "python").write_text(PYTHON)
    for path in (*(tmp_path / "scripts").iterdir(), tmp_path / ".venv" / "bin" / "python"):
        path.chmod(0o755)
    (tmp_path / ".gitignore").write_text("dist/\ncalls\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n## 1.2.3\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "All of it")
    return tmp_path


def git(project, *arguments):
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "core.hooksPath=/dev/null")
    subprocess.run(["git", *who, *arguments], cwd=project, check=True, timeout=60)


def release(project, **environment):
    how = {"cwd": project, "env": {**os.environ, **environment}, "timeout": 60}
    return subprocess.run(["scripts/release.sh"], capture_output=True, text=True, check=False, **how)


def called(project):
    return (project / "calls").read_text() if (project / "calls").exists() else ""


def test_it_makes_the_files_and_says_what_is_left(project):
    done = release(project, VENV="1")
    assert done.returncode == 0, done.stderr
    made = {path.name for path in (project / "dist").iterdir()}
    whole = {f"overlap_train-1.2.3{end}" for end in ("-py3-none-any.whl", ".tar.gz", ".cdx.json")}
    assert made == {*whole, "SHA256SUMS"}
    sums = (project / "dist" / "SHA256SUMS").read_text()
    assert whole <= {line.split()[-1].lstrip("./") for line in sums.splitlines()}
    assert "git tag -s v1.2.3" in done.stdout
    assert "twine check --strict" in done.stdout  # since it could not be installed
    assert "test.sh tests/test_wheel.py" in called(project)


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


def test_what_fails_is_not_released(project):
    done = release(project, TESTS="1")
    assert done.returncode == 1
    assert "What is left" not in done.stdout


@pytest.mark.parametrize(
    ("changelog", "committed", "said"),
    [
        ("# Changelog\n## 1.2.3\nand more\n", False, "commit them first"),
        ("# Changelog\n## 1.2.2\n", True, "no section for 1.2.3"),
    ],
)
def test_what_no_commit_holds_or_the_changelog_does_not_describe_is_not_released(
    project, changelog, committed, said
):
    (project / "CHANGELOG.md").write_text(changelog)
    if committed:
        git(project, "commit", "-qam", "Another")
    done = release(project)
    assert done.returncode == 1
    assert said in done.stderr
    assert "wheel.sh" not in called(project)
