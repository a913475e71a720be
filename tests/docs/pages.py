"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SETUP = DOCS / "start" / "five_minutes.md"

# What the blocks of a page take for granted, besides the names of `SETUP`'s first block.
GIVEN = {
    "docs/command_line.md": "(vx, vy), callbacks = (x_val, y_val), []",
    "docs/explanations/plans.md": "",
    "docs/reference/trainer.md": "",
    "docs/troubleshooting.md": "",
}

# Their blocks run, in order, in one namespace for each page.
RUN = [
    ROOT / "README.md",
    DOCS / "index.md",
    *sorted(DOCS.glob("start/*.md")),
    *sorted(DOCS.glob("how_to/*.md")),
    *(ROOT / name for name in GIVEN),
]
# The others have no blocks of Python, or one for several hosts.
COMPILED = sorted(set(DOCS.rglob("*.md")) - set(RUN))

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.M | re.S
)
_COMPILED_ONLY = re.compile(r"<!-- compiled only: [^\n]+ -->\n+\Z")
_VALUE = re.compile(r"# -> (?P<value>.+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: the file.
        line: of its first line of code, counted from 1.
        language: what stands behind the fence, such as "python".
        code: without the fence.
        runs: whether a machine without a GPU or a cluster can run it; otherwise a comment says what it needs.
    """

    page: Path
    line: int
    language: str
    code: str
    runs: bool

    @property
    def padded(self) -> str:
        """The code behind as many empty lines as put its errors on the page's lines."""
        return "\n" * (self.line - 1) + self.code


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of a page in some languages, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        if match["language"] in languages:
            before = text[: match.start()]
            indent = match["indent"]
            code = "".join(line.removeprefix(indent) for line in match["code"].splitlines(keepends=True))
            runs = _COMPILED_ONLY.search(before) is None
            found.append(Block(page, before.count("\n") + 2, match["language"], code, runs))
    return found


def checked(code: str) -> ast.Module:
    """Return a program in which an expression with `# -> value` behind it has to have that value."""
    tree, lines = ast.parse(code), code.splitlines()
    for number, statement in enumerate(tree.body):
        value = _VALUE.search(lines[statement.end_lineno - 1])
        if value is not None and isinstance(statement, ast.Expr):
            found = f"repr({ast.unparse(statement)})"
            (tree.body[number],) = ast.parse(f"assert {found} == {value['value']!r}, {found}").body
            ast.increment_lineno(tree.body[number], statement.lineno - 1)
    return tree


def name_of(page: Path) -> str:
    """Return a page's path within the repository, for the name of a test."""
    return page.relative_to(ROOT).as_posix()
