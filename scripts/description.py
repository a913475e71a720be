"""Prepares the sources of a wheel for the package index, where no link of README.md leads anywhere by itself.

    python scripts/description.py SOURCE URL

SOURCE is a copy of the repository, and URL its address, such as https://host/owner/name. Links become
absolute, to the tag of this version, and the index shows the addresses of the project. If URL is empty, links
become their words, and pictures go.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)\s]+)\)")
_VERSION = re.compile(r'__version__ = "([^"]+)"')


def main(source: Path, url: str) -> None:
    """Rewrite README.md and setup.cfg of a copy."""
    version = _VERSION.search((source / "overlap_train" / "_support" / "version.py").read_text())
    if version is None:
        raise ValueError(f"{source} holds no version")
    url = url.rstrip("/").removesuffix(".git")
    readme, config = source / "README.md", source / "setup.cfg"
    readme.write_text(absolute(readme.read_text(), url, f"v{version[1]}"))
    if url:
        config.write_text(config.read_text().replace("[metadata]\n", f"[metadata]\n{addresses(url)}", 1))


def absolute(text: str, url: str, tag: str) -> str:
    """Return Markdown whose links and pictures can be followed from anywhere."""

    def replaced(link: re.Match[str]) -> str:
        if not url:
            return "" if link["picture"] else link["words"]
        view = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['words']}]({url}/{view}/{tag}/{link['path']})"

    return _LINK.sub(replaced, text)


def addresses(url: str) -> str:
    """Return the lines of setup.cfg with the addresses of the project."""
    named = {"Source": url, "Issues": f"{url}/issues", "Changelog": f"{url}/blob/main/CHANGELOG.md"}
    return "project_urls =\n" + "".join(f"    {name} = {address}\n" for name, address in named.items())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
