"""The scripts of `scripts/clients.sh`, and the page that shows their lines."""

import ast
import configparser
import re
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "how_to" / "other_libraries.md").read_text()
PROGRAMS = ROOT / "scripts" / "clients" / "programs.py"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def lines_of(code: str) -> str:
    """Returns code without its white space, and without the comma that a formatter puts at a line's end."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s+", "", code))


def test_there_is_a_client_for_every_library():
    decorated = [
        node
        for node in ast.parse(PROGRAMS.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.decorator_list
    ]
    assert len(decorated) >= 21
    assert len(BLOCKS) >= 18


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[-1][:40])
def test_the_page_shows_lines_that_a_client_runs(block):
    ast.parse(textwrap.dedent(block))
    assert lines_of(block) in lines_of(PROGRAMS.read_text())


def test_the_libraries_of_the_clients_are_the_extra():
    options = configparser.ConfigParser(interpolation=None)
    options.read(ROOT / "setup.cfg")
    extra = options["options.extras_require"]["clients"].split()
    wanted = {re.split(r"[><=]", name)[0].replace("-", "_") for name in extra if "%" not in name}
    imported = set()
    for node in ast.walk(ast.parse(PROGRAMS.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.split(".")[0])
    named = {"sklearn": "scikit_learn"}
    here = {"keras", "numpy", "overlap_train", "scripts", "tensorboard", "tqdm"}
    known = set(sys.stdlib_module_names) | here
    needed = {named.get(name, name) for name in imported - known}
    assert needed <= wanted
    # What Keras's own callback needs is imported by no script.
    assert wanted - needed == {"orbax_checkpoint"}


def test_what_is_skipped_for_want_of_a_library_runs_with_the_clients():
    """Nothing else has these libraries: a test that the script does not name never runs."""
    script = (ROOT / "scripts" / "clients.sh").read_text()
    named = {name.partition("::")[0] for name in re.findall(r"^  (tests/\S+)$", script, re.MULTILINE)}
    lacks = re.compile(r"reason=\"(?:lacks (?:datasets|grain|pandas)|needs [^\"]*\bray\b)")
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if lacks.search(path.read_text())]
    skipping = {path.relative_to(ROOT).as_posix() for path in files}
    assert skipping <= named
    assert [name for name in named if not (ROOT / name).is_file()] == []
