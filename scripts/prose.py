"""Checks the prose of the documentation: words that say less than they seem to, and sentences that run on.

Run from the repository root; each finding is a line "file:line: what". Ends with 1 if there is any.

    python scripts/prose.py                # the pages, README and its kind, notebooks, the public docstrings
    python scripts/prose.py docs/api.md    # some files
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A pattern, and what to write instead.
WORDS = (
    (r"\bso many\b", "n, count, or the number itself"),
    (r"\bbeside\b", "next to, and, or during"),
    (r"\bof (?:the user's|one's) own\b", "custom, or your own"),
    (r"\bnobody\b", "who does not: no callback, no thread"),
    (r"\blikewise\b", "the meaning once more"),
    (r"\b(?:see|as) above\b", "the meaning once more"),
    (r"\bas ever\b", "as in Keras, or as before"),
    (r"\bwere not kept\b", "a command that is kept"),
    (r"\b(?:simply|obviously|of course)\b", "nothing"),
)
LONGEST_SENTENCE = 30  # words

# Dated reports say what was so on a day.
EXEMPT = ("docs/results/",)
AT_THE_ROOT = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PUBLIC = ("conv", "models", "monitoring", "options", "parallel", "scheduling", "zero_copy")
PUBLIC_FILES = ("__init__.py", "errors.py", "records.py", "routing.py", "trainer.py")

_FENCE = re.compile(r"^ *```.*?^ *```$|^<!--.*?-->$", re.M | re.S)
_SPAN = re.compile(r"``.+?``|`[^`\n]+`|!?\[(?P<words>[^\]]*)\]\([^)]*\)|<https?://[^>]+>", re.S)
_END = re.compile(r"(?<=[.!?:;])[)\"*]*\s+(?=[A-Z0-9`*(\"\[])")


def main(arguments: Sequence[str]) -> int:
    """Print the findings in the files that are named, or in all; returns the exit status."""
    paths = [Path(argument).resolve() for argument in arguments] or [*pages(), *sources()]
    found = [finding for path in paths for finding in findings(path)]
    print("\n".join(found) or f"{len(paths)} files: nothing to mend")
    return 1 if found else 0


def pages() -> list[Path]:
    """Return the pages at the root, those of the documentation that are not dated, and the notebooks."""
    found = [*(ROOT / name for name in AT_THE_ROOT), *sorted((ROOT / "docs").rglob("*.md"))]
    found += sorted((ROOT / "notebooks").glob("*.ipynb"))
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(EXEMPT)]


def sources() -> list[Path]:
    """Return the modules whose docstrings users read."""
    package = ROOT / "overlap_train"
    found = [path for name in PUBLIC for path in sorted((package / name).rglob("*.py"))]
    return [*(package / name for name in PUBLIC_FILES), *found]


def findings(path: Path) -> Iterator[str]:
    """Return what is to be mended in a page, or in the public docstrings of a module."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    if path.suffix == ".py":
        for line, text in _docstrings(path):
            yield from (f"{name}:{line + n}: {what}" for n, what in _words(text))
        return
    text = _cells(path) if path.suffix == ".ipynb" else path.read_text()
    text = _FENCE.sub(lambda match: re.sub(r"[^\n]", "", match[0]), text)
    yield from (f"{name}:{n}: {what}" for n, what in _words(text, first=1))
    yield from (f"{name}:{n}: {what}" for n, what in _sentences(text))


def _cells(path: Path) -> str:
    """Return the words of a notebook."""
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def _words(text: str, first: int = 0) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(_SPAN.sub(_shown, text).split("\n"), start=first):
        for pattern, instead in WORDS:
            for match in re.finditer(pattern, line, re.I):
                yield number, f'"{match[0]}": write {instead}'


def _sentences(text: str) -> Iterator[tuple[int, str]]:
    for number, paragraph in _paragraphs(text):
        for sentence in _END.split(_SPAN.sub(_shown, paragraph)):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            if len(words) > LONGEST_SENTENCE:
                yield number, f"a sentence of {len(words)} words: {' '.join(words[:6])} ..."


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Return the paragraphs, items and cells of a page, each with the line on which it begins."""
    first, lines = 0, list[str]()
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        stripped = line.strip()
        begins = not stripped or re.match(r"#|\||- |\* |\d+\. ", stripped)
        if begins and lines:
            yield first, " ".join(lines)
            lines = []
        if stripped.startswith(("#", "|")):
            yield from ((number, cell) for cell in stripped.split(" | "))
        elif stripped:
            first = number if not lines else first
            lines.append(stripped)


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Return the docstrings of what is public in a module, each with its first line."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            continue
        if getattr(node, "name", "").startswith("_") and getattr(node, "name", "") != "__init__":
            continue
        text = ast.get_docstring(node, clean=False)
        if text is not None:
            yield node.body[0].lineno, text
        todo += [] if isinstance(node, ast.FunctionDef) else node.body


def _shown(match: re.Match[str]) -> str:
    """Return what a reader sees of a link, and one word for code."""
    lines = "\n" * match[0].count("\n")
    return f"{match['words']}{lines}" if match["words"] is not None else f"Code{lines}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
