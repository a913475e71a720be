"""Hooks of mkdocs.yml: folders in the navigation, links to files outside docs/, setups, and what is searched.

In the repository a page links to `../SECURITY.md` or `../examples/ray_train.py`, and there the link works.
The site holds only docs/, so each file that is linked becomes a page below `repository/`, and links go there.
A page whose blocks use the model and arrays of `SETUP` gets that block, folded, before its own first one.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PLACE = "repository"
SETUP = DOCS / "start" / "five_minutes.md"
BOOSTS = {"how_to/": 2, "troubleshooting.md": 4, "start/coming_from_keras.md": 4}  # ahead of mere mentions
UNSEARCHED = ("results/", f"{PLACE}/")  # dated figures, the changelog, sources: not what people look for

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#|/)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=[)\s])")
_DATED = re.compile(r"\d{4}-\d{2}-\d{2}-")
_BLOCK = re.compile(r"^```python\n.*?^```\n", re.M | re.S)
_COMPILED_ONLY = re.compile(r"<!-- compiled only: [^\n]+ -->\n+\Z")
_LANGUAGES = {".py": "python", ".sh": "bash", ".slurm": "bash", ".yaml": "yaml"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder where the navigation says "folder/*", but for those that it names."""
    entries = config.nav or []
    config.nav = _filled(entries, set(_pages_of(entries)))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that the navigation, a page, or such a file names."""
    waiting = [ROOT / page.removeprefix(f"{PLACE}/") for page in _pages_of(config.nav or []) if _added(page)]
    for file in files.documentation_pages():
        waiting += _outside(file.content_string, _folder(file.src_uri))
    added: set[Path] = set()
    while waiting:
        target = waiting.pop()
        if target not in added:
            added.add(target)
            files.append(File.generated(config, _uri(target), content=_as_page(target)))
            waiting += _outside(target.read_text(), target.parent) if target.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files outside docs/ at their pages, add the setup, leave some out of the search."""
    here = page.file.src_uri
    if here.startswith(UNSEARCHED):
        page.meta["search"] = {"exclude": True}
    elif boosts := [boost for place, boost in BOOSTS.items() if here.startswith(place)]:
        page.meta["search"] = {"boost": boosts[0]}
    if here.startswith(("how_to/", "start/")):
        markdown = _with_setup(markdown)

    def replaced(link: re.Match[str]) -> str:
        target = _target(link["path"], _folder(here))
        if target is None:
            return link[0]
        return posixpath.relpath(_uri(target), posixpath.dirname(here) or ".") + (link["anchor"] or "")

    return _LINK.sub(replaced, markdown)


def _with_setup(markdown: str) -> str:
    """Return a page with the block of `SETUP` before its first block that runs, or as it is."""
    setup = _BLOCK.search(SETUP.read_text())
    if setup is None or setup[0] in markdown:
        return markdown
    for block in _BLOCK.finditer(markdown):
        if not _COMPILED_ONLY.search(markdown[: block.start()]):
            folded = "".join(f"    {line}".rstrip() + "\n" for line in setup[0].splitlines())
            note = f'??? note "The model and the arrays of these blocks: run this once"\n\n{folded}\n'
            return markdown[: block.start()] + note + markdown[block.start() :]
    return markdown


def _filled(entries: list[Any], named: set[str]) -> list[Any]:
    filled: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            filled += _expanded(entry, named)
            continue
        ((title, below),) = entry.items()
        if isinstance(below, str):
            filled.append(entry)
        elif pages := _filled(below, named):
            filled.append({title: pages})
    return filled


def _expanded(entry: str, named: set[str]) -> list[str]:
    """Return the pages of a folder, the index first, dated ones newest first, others by name; or the page."""
    if not entry.endswith("/*"):
        return [entry if (DOCS / entry).is_file() or not (ROOT / entry).is_file() else f"{PLACE}/{entry}"]
    names = sorted(path.name for path in (DOCS / entry[:-2]).glob("*.md"))
    dated = [name for name in names if _DATED.match(name)]
    others = sorted(
        (name for name in names if name not in dated), key=lambda name: (name != "index.md", name)
    )
    return [page for name in (*others, *reversed(dated)) if (page := f"{entry[:-2]}/{name}") not in named]


def _pages_of(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        below = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from [below] if isinstance(below, str) else _pages_of(below)


def _added(uri: str) -> bool:
    return uri.startswith(f"{PLACE}/")


def _folder(uri: str) -> Path:
    """Return the folder of the repository from which the links of a page start."""
    return (ROOT / uri.removeprefix(f"{PLACE}/") if _added(uri) else DOCS / uri).parent


def _outside(markdown: str, folder: Path) -> list[Path]:
    targets = [_target(link["path"], folder) for link in _LINK.finditer(markdown)]
    return [target for target in targets if target is not None and DOCS not in target.parents]


def _target(link: str, folder: Path) -> Path | None:
    """Return the file of the repository that a link names, or None for another link."""
    path = Path(posixpath.normpath((folder / link).as_posix()))
    return path if path.is_file() and ROOT in path.parents else None


def _uri(target: Path) -> str:
    """Return the address of a file of the repository among the sources of the site."""
    if DOCS in target.parents:
        return target.relative_to(DOCS).as_posix()
    return f"{PLACE}/{target.relative_to(ROOT).as_posix()}" + ("" if target.suffix == ".md" else ".md")


def _as_page(target: Path) -> str:
    if target.suffix == ".md":
        return target.read_text()
    if target.suffix == ".ipynb":
        return _notebook(json.loads(target.read_text()))
    language = _LANGUAGES.get(target.suffix, "text")
    return f"# {target.relative_to(ROOT).as_posix()}\n\n````{language}\n{target.read_text()}````\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook as Markdown: its words, and its code in fences."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells)
