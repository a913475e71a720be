"""Every block of code in the documentation does what its page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import overlap_train
from tests.docs.pages import COMPILED, GIVEN, ROOT, RUN, SETUP, Block, blocks, checked, name_of

# Pages of several fits each. Their blocks are compiled here and run nightly.
NIGHTLY = [
    "docs/start/keras_is_slow.md",
    *(f"docs/how_to/{name}.md" for name in ("early_stopping", "large_data", "reproducibility")),
    *(f"docs/how_to/{name}.md" for name in ("custom_evaluation", "slow_validation")),
]
PAGES = [pytest.param(page, marks=pytest.mark.nightly if name_of(page) in NIGHTLY else ()) for page in RUN]

WIDEST = 83  # characters

_FILE = re.compile(r"# (?P<name>\w+\.py)\n")


@pytest.fixture
def somewhere_else(tmp_path, monkeypatch):
    """Runs a page in an empty folder, with digits at hand and the thread pools of the other tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(overlap_train, "configure", lambda **sizes: None)
    rng = np.random.default_rng(0)
    digits = [(rng.integers(0, 256, (n, 28, 28), np.uint8), rng.integers(0, 10, n)) for n in (512, 256)]
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: digits)
    monkeypatch.setattr(tf.config.threading, "set_intra_op_parallelism_threads", lambda threads: None)


@pytest.mark.by_default("docs/command_line.md")
@pytest.mark.timeout(900)  # one page compiles the convolution, if no other test has
@pytest.mark.parametrize("page", PAGES, ids=[name_of(page) for page in RUN])
def test_the_blocks_of_a_page_run_in_order(page, somewhere_else):
    found = blocks(page, "python")
    setup = [] if page in (SETUP, ROOT / "README.md") else blocks(SETUP, "python")[:1]
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in setup:
        run(block, namespace)
    exec(GIVEN.get(name_of(page), ""), namespace)
    for block in found:
        if file := _FILE.match(block.code):
            Path(file["name"]).write_text(block.code)
        elif block.runs:
            run(block, namespace)


def test_every_page_with_blocks_runs_them_or_says_why_not():
    """Dated reports and what comes of them apart."""
    pages = [page for page in COMPILED if "results" not in page.parts]
    assert [block for page in pages for block in blocks(page, "python") if block.runs] == []


@pytest.mark.parametrize("page", [*RUN, *COMPILED], ids=name_of)
def test_the_blocks_of_a_page_are_python(page):
    for block in blocks(page, "python"):
        compile(block.padded, str(page), "exec")


SHOWN = [page for page in (*RUN, *COMPILED) if "docs" in page.parts and "results" not in page.parts]


@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_no_block_scrolls_on_a_page_of_1280_pixels(page):
    """Dated reports apart, whose commands are as they were typed."""
    languages = ("", "python", "sh", "console", "json")
    lines = [line for block in blocks(page, *languages) for line in block.code.splitlines()]
    assert [line for line in lines if len(line) > WIDEST] == []


# A dated report names the commands of its day.
LIVING = [page for page in (*RUN, *COMPILED) if not re.match(r"\d{4}-", page.name)]


@pytest.mark.parametrize("page", LIVING, ids=name_of)
def test_the_commands_of_a_page_exist(page):
    from overlap_train.cli.main import _COMMANDS

    for block in blocks(page, "sh", "console"):
        for path in re.findall(r"(?<![\w/.-])(?:scripts|examples)/[\w/.-]+", block.code):
            assert (ROOT / path).exists(), f"{page}: {path}"
        for command in re.findall(r"^(?:\S*/)?overlap-train (\w+)", block.code, re.M):
            assert command in _COMMANDS, f"{page}: overlap-train {command}"
        for module in re.findall(r"python -m ((?:scripts|overlap_train)[\w.]+)", block.code):
            path = ROOT.joinpath(*module.split("."))
            assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), f"{page}: {module}"


def run(block: Block, namespace: dict[str, Any]) -> None:
    """Run a block; a statement with `# -> value` behind it has to have that value."""
    exec(compile(checked(block.padded), str(block.page), "exec"), namespace)
