"""`scripts/corpus.sh`: the results of whole programs, by Keras and overlapped, in one table."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = runpy.run_path(str(ROOT / "scripts" / "corpus.py"))

PROGRAM = """
import keras, numpy as np
{line}
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.arange(32, dtype="float32").reshape(16, 2) / 32
model.fit(x, x[:, :1] * factor, epochs=2, verbose=0)
"""


def rows(text):
    """Returns the cells of a printed table by program."""
    lines = [line for line in text.splitlines() if line.startswith("| ")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {program: (results, gain) for program, results, gain in cells}


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_programs_of_the_corpus_have_the_results_of_keras(capsys):
    status = CORPUS["main"]([str(ROOT / "tests" / "corpus"), "--jobs=2"])
    found = rows(capsys.readouterr().out)
    assert len(found) == 10
    assert {name: text for name, (text, _) in found.items() if not text.startswith("equal")} == {}
    assert status == 0


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("folder", ["examples", "notebooks"])
def test_the_examples_that_keras_can_run_are_equal(folder, capsys):
    CORPUS["main"]([str(ROOT / folder), "--jobs=2", "--epochs=2", "--batches=20"])
    printed = capsys.readouterr().out
    found = {program: text for program, (text, _) in rows(printed).items()}
    assert any(text.startswith("equal") for text in found.values()), printed
    listed = ("equal", "- ", "cannot be told: fails by Keras too: ModuleNotFoundError: No module named 'ray'")
    assert {p: text for p, text in found.items() if not text.startswith(listed)} == {}


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_one_program_that_differs_is_the_status(tmp_path, capsys):
    folder, marks = tmp_path / "programs", tmp_path / "marks"
    folder.mkdir()
    # The second run of a program is the overlapped one.
    mark = f"with open({str(marks)!r}, 'a') as file: print(file=file)"
    other = f"{mark}\nfactor = 2.0 if len(open({str(marks)!r}).read()) == 2 else 1.0"
    (folder / "equal.py").write_text(PROGRAM.format(line="factor = 1.0"))
    (folder / "other.py").write_text(PROGRAM.format(line=other))
    (folder / "reads.py").write_text("print('no training')")
    (folder / "_helper.py").write_text("raise SystemExit('is no program')")
    assert CORPUS["main"]([str(folder), "--jobs=2"]) == 1
    found = rows(capsys.readouterr().out)
    assert found["equal.py"][0] == "equal bit for bit"
    assert found["other.py"][0].startswith("different: fit, epoch 1")
    assert found["reads.py"][0].endswith("has not called fit or evaluate")
    assert set(found) == {"equal.py", "other.py", "reads.py"}


def test_a_folder_without_programs_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        CORPUS["main"]([str(tmp_path)])
    assert "there are no programs in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("%matplotlib inline\nx = 1\n!ls 'it", "pass\nx = 1\npass"),
        ("try:\n  %pip install \\\n keras\nexcept OSError:\n  !ls", "try:\n  pass\nexcept OSError:\n  pass"),
        ("files = !ls\nmodel.fit?\n?model", "files = []\npass\npass"),
        ("\n %%bash\n ls -l", "pass"),
        (
            "  pip install -q a\n  ls = cd\n  ls -= 1\n  if ls:\n    ls /a",
            "pass\nls = cd\nls -= 1\nif ls:\n  pass",
        ),
        ("%%writefile a.py\nx = 1\n", "open('a.py', 'w').write('x = 1\\n')"),
        ("%time h = model.fit(x)\nh = %timeit -n 1 -r1 f(x)", "h = model.fit(x)\nh = f(x)"),
        ("%%time\n%%capture out\nmodel.fit(x)\n%ls", "model.fit(x)\npass"),
        *(
            (python, python)
            for python in ("print('%d'\n  % x)", "t = '''\n%d\n!\nx?\n'''", "f'({x=!r}?'", "x \\\n% 2")
        ),
    ],
)
def test_commands_of_a_cell_do_nothing(cell, python):
    assert CORPUS["python_of"](cell).strip() == python


def test_of_a_notebook_the_code_is_run(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Digits"]},
        {"cell_type": "code", "source": ["!ls\n", "from __future__ import annotations\n", "x = 1"]},
        {"cell_type": "code", "source": "display(x)\n%cd a"},
    ]
    (tmp_path / "digits.ipynb").write_text(json.dumps({"cells": cells}))
    code = CORPUS["code_of"](tmp_path / "digits.ipynb")
    assert code.split("None\n")[1].split() == ["pass", "x", "=", "1", "display(x)", "pass"]
    compile(code, "digits", "exec")


# What `overlap-train verify` does, and its row; "S" is a sleep that has lost its parent.
ROWS = {
    "- has not called fit or evaluate": 'echo "$V: $7 has not called fit or evaluate" >&2; exit 2',
    "cannot be told: fails by Keras too: a / b": 'echo "$V: $7 fails by Keras too: a | b" >&2; S',
    "cannot be told: ended with 3": "exit 3",
    "cannot be told: took longer than 2 s": "S; sleep 600",
}


def test_each_program_is_a_row_and_all_that_it_started_ends(tmp_path, capsys, monkeypatch):
    for number, does in enumerate(ROWS.values()):
        (tmp_path / f"{number}.py").write_text(
            does.replace("S", f"(sleep 600 & echo $! >> {tmp_path}/sleeps)")
        )
    lost = [{"cell_type": "code", "source": "%%python\nmodel.fit(x)"}]  # a fit in no process of ours
    for name, content in {"empty": None, "lost": {"cells": lost}, "third": {"worksheets": []}}.items():
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(content) if content else "")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/bash\nV="overlap-train verify"\necho $TMPDIR >> {tmp_path}/directories\n. "${{@: -1}}"\n'
    )
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    assert CORPUS["main"]([str(tmp_path), "--timeout=2"]) == 1
    texts = [text for text, _ in rows(capsys.readouterr().out).values()]
    assert texts[:4] == list(ROWS)
    assert [text.startswith("cannot be told: no notebook") for text in texts[4:]] == [True] * 3
    directories, sleeps = ((tmp_path / name).read_text().split() for name in ("directories", "sleeps"))
    assert (len(directories), len(sleeps)) == (4, 2)
    left = [*directories, *(f"/proc/{pid}/exe" for pid in sleeps)]
    assert not any(map(os.path.exists, left))
