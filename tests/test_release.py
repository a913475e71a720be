"""What a release says of itself: a changelog of this version, and a description whose links lead to it."""

import configparser
import re
import shutil
from pathlib import Path

from overlap_train import __version__
from scripts import description

ROOT = Path(__file__).parents[1]


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
