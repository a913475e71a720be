"""Five tasks of a new user: the built wheel in an empty environment, and the blocks of a page of the site."""

from __future__ import annotations

import ast
import html
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.docs.pages import checked
from tests.wheels import build_wheel, environment, install

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]
MOST_S = 180


def blocks(page: Path, language: str = "python") -> list[str]:
    """Returns the blocks of a page of the site."""
    found = re.findall(rf'<div class="language-{language} .*?<code>(.*?)</code>', page.read_text(), re.S)
    return [html.unescape(re.sub("<[^>]+>", "", code)) for code in found]


def program(*codes: str) -> str:
    """Returns the blocks as one program, which ends where a value is not the one behind `# ->`."""
    return "".join(f"{ast.unparse(checked(code))}\n" for code in codes)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of an environment with the wheel and the extras that the page on installing names."""
    folder = tmp_path_factory.mktemp("tasks")
    return install(build_wheel(folder), folder / "env", "plots", "tensorboard")


@pytest.fixture
def do(python, tmp_path):
    """Returns what runs a program, or a command, in an empty folder."""

    def run(text: str, command: str | None = None) -> str:
        (tmp_path / "train.py").write_text(text)
        words = command.split() if command else ["python", "train.py"]
        done = subprocess.run(
            [str(python.parent / words[0]), *words[1:]],
            cwd=tmp_path,
            env=environment(python),
            capture_output=True,
            text=True,
            check=False,
            timeout=MOST_S,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    return run


def test_train_my_own_model(site, do, tmp_path):
    assert "\nEpoch 5/5 - 64/64 - " in do(program(*blocks(site / "start" / "five_minutes.html")))
    assert (tmp_path / "timeline.svg").exists()


def test_resume_after_a_kill(site, do, python, tmp_path):
    setup, first, longer, *_ = blocks(site / "how_to" / "resume.html")
    (tmp_path / "train.py").write_text(program(setup, first))
    killed = psutil.Popen([str(python), "train.py"], cwd=tmp_path, env=environment(python))
    while not list((tmp_path / "runs" / "first").glob("ckpt-*.otck")) and killed.is_running():
        try:
            killed.wait(0.01)
        except psutil.TimeoutExpired:
            continue
    killed.kill()
    assert killed.wait(MOST_S) == -signal.SIGKILL, "it ended before it was killed"
    resumed = "assert 'resumed after epoch' in ' '.join(trainer.messages), trainer.messages\n"
    do(program(setup, first) + resumed)
    do(program(setup, longer))


def test_validate_with_a_custom_metric(site, do):
    codes = blocks(site / "how_to" / "custom_evaluation.html")
    in_this_process = codes[: next(n for n, code in enumerate(codes) if code.startswith("# edits.py"))]
    assert len(in_this_process) >= 4
    do(program(*in_this_process))


def test_read_the_timeline(site, do, tmp_path):
    page = site / "how_to" / "monitoring.html"
    do(program(*blocks(page)))
    assert (tmp_path / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert "the validation is hidden" in page.read_text()


def test_find_out_why_it_waits(site, do):
    page = site / "troubleshooting.html"
    (code,) = blocks(page)
    (console,) = blocks(page, "console")
    command, *_, last = console.splitlines()
    printed = do(code, command.removeprefix("$ "))
    identifier = last.split()[1]
    assert re.search(rf"-\s+{identifier}\s+Rates.on_train_batch_end", printed), printed
    section = page.read_text().partition(f'id="{identifier}"')[2].partition("<h3")[0]
    assert "Remedy:" in section
