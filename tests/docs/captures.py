"""What a fit prints in six places, in docs/reference/output.md.

`python -m tests.docs.captures` writes it, with names such as "MLflow" these places alone.

The notebook runs in a real kernel (nbclient, ipykernel, ipywidgets), the terminal is a pseudo-terminal.
MLflow and Weights & Biases log what they log for Keras. A place whose packages are not installed keeps its
section of the page.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable
from pathlib import Path

from tests.docs.pages import DOCS, ROOT
from tests.support.terminal import screen

PAGE = DOCS / "reference" / "output.md"
COLUMNS = 100

_MODEL = """
import keras
import numpy as np
from overlap_train import Trainer

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(24_000, 256)).astype("float32")
y = (x[:, :1] > 0).astype("float32")
layers = [keras.layers.Dense(256, "relu"), keras.layers.Dense(1, "sigmoid")]
model = keras.Sequential(layers, name="mine")
model.compile("adam", "binary_crossentropy")
"""
_FIT = "Trainer(model).fit(x, y, epochs=2, validation_split=0.5{})\n"


def run(source: str, folder: Path, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a program, or pytest on it."""
    (folder / "train.py").write_text(source)
    return subprocess.run(
        [sys.executable, *(command or ["train.py"])],
        cwd=folder,
        env=environment(options.pop("columns", COLUMNS)),
        stdout=options.pop("stdout", subprocess.PIPE),
        text=True,
        check=True,
        timeout=600,
        **options,
    )


def environment(columns: int = COLUMNS) -> dict[str, str]:
    """Return the variables of a program that a user starts."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {"TERM": "xterm", "COLUMNS": str(columns), "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    given |= {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return os.environ | given


def terminal(folder: Path) -> str:
    """Return a frame of the bar, and what stays on the terminal."""
    (folder / "train.py").write_text(_MODEL + _FIT.format(""))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    program = subprocess.Popen(
        [sys.executable, "train.py"], cwd=folder, env=environment(), stdout=slave, stderr=subprocess.DEVNULL
    )
    os.close(slave)
    output = b""
    with program, contextlib.suppress(OSError):  # raised when the program has closed the terminal
        while select.select([master], [], [], 120)[0]:
            output += os.read(master, 65536)
    os.close(master)
    text = output.decode()
    assert program.returncode == 0, text
    frames = re.findall(r"Epoch 2/2 [^\r\n\x1b]+validating[^\r\n\x1b]+", text)
    return "\n".join([frames[-1].rstrip(), "", *screen(text)])


def file(folder: Path) -> str:
    """Return what a program writes into a file."""
    with open(folder / "log.txt", "w") as log:
        run(_MODEL + _FIT.format(""), folder, stdout=log)
    return without_table((folder / "log.txt").read_text())


def by_pytest(folder: Path) -> str:
    """Return what pytest shows of a test that trains."""
    body = "def test_it_learns():\n    history = " + _FIT.format(", verbose=2")
    source = f"{_MODEL}\n\n{body}    assert history.history['val_loss'][-1] < 0.5\n"
    done = run(source, folder, "-m", "pytest", "-q", "-rP", "-p", "no:cacheprovider", "train.py", columns=80)
    return without_table(done.stdout[done.stdout.index("_____") :])


def notebook(folder: Path) -> str:
    """Return the widget's texts in a kernel, and the text below it."""
    import nbclient
    import nbformat

    shown: list[str] = []

    class Client(nbclient.NotebookClient):
        def handle_comm_msg(self, outs, msg, cell_index):
            super().handle_comm_msg(outs, msg, cell_index)
            value = msg["content"].get("data", {}).get("state", {}).get("value")
            if isinstance(value, str):
                shown.append(value.replace("\u2007", " "))

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(_MODEL + _FIT.format(""))])
    os.environ.update(environment())
    Client(book, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    outputs = book.cells[0].outputs
    text = "".join(each.text for each in outputs if each.output_type == "stream" and each.name == "stdout")
    left = [value for value in shown if value.startswith("Epoch 2/2")][-1]
    right = [value for value in shown if "validating" in value][-1]
    return f"{left.strip()} [the bar, a widget] {right.strip()}\n\n{without_table(text)}"


def mlflow(folder: Path) -> str:
    """Return the metrics that MLflow has logged."""
    logged = """
import mlflow

mlflow.set_tracking_uri("sqlite:///mlflow.db")
mlflow.keras.autolog(log_models=False)
"""
    read = """
(run,) = mlflow.search_runs(output_format="list")
for name in ("loss", "val_loss"):
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
    print(name, {metric.step: round(metric.value, 4) for metric in history})
"""
    done = run(f"{logged}{_MODEL}{_FIT.format(', verbose=0')}{read}", folder, stderr=subprocess.DEVNULL)
    return done.stdout.strip()


def wandb(folder: Path) -> str:
    """Return the output that Weights & Biases has kept, and the last metrics."""
    logger = (
        "from wandb.integration.keras import WandbMetricsLogger\nimport wandb\n\nwandb.init(project='mine')"
    )
    fit = _FIT.format(", callbacks=[WandbMetricsLogger()]")
    read = (
        "print({name: round(value, 4) for name, value in dict(wandb.run.summary).items() if 'val' in name})"
    )
    run(f"{logger}{_MODEL}{fit}{read}\nwandb.finish()\n", folder, stderr=subprocess.DEVNULL)
    (kept,) = folder.glob("wandb/offline-run-*/files/output.log")
    return f"{without_table(kept.read_text().strip())}"


def without_table(text: str) -> str:
    """Return an output with a dot for each line of the closing table but its last."""
    lines = text.strip().splitlines()
    first = next(i for i, line in enumerate(lines) if re.match(r" +epoch  ", line))
    last = next(i for i, line in enumerate(lines) if line.startswith("validation "))
    return "\n".join([*lines[:first], "…", *lines[last:]])


PLACES: dict[str, tuple[Callable[[Path], str], tuple[str, ...]]] = {
    "A terminal": (terminal, ()),
    "A file or a pipe": (file, ()),
    "A notebook": (notebook, ("nbclient", "ipykernel", "ipywidgets")),
    "pytest": (by_pytest, ("pytest",)),
    "MLflow": (mlflow, ("mlflow",)),
    "Weights & Biases": (wandb, ("wandb",)),
}


def missing(place: str) -> list[str]:
    """Return the packages of a place that are not installed."""
    return [name for name in PLACES[place][1] if importlib.util.find_spec(name) is None]


def capture(place: str) -> str:
    """Return what is printed in a place."""
    with tempfile.TemporaryDirectory() as folder:
        return PLACES[place][0](Path(folder))


def sections(text: str) -> dict[str, str]:
    """Return the captures of the page by their place."""
    return dict(re.findall(r"^## (.+?)\n.*?```text\n(.*?)\n```$", text, re.M | re.S))


def shape(capture: str) -> str:
    """Return a capture with what differs from run to run left out: numbers, and how far a bar is."""
    text = re.sub(r" \(\d+:\d\d:\d\d\)", "", capture)  # of pytest, beyond a minute
    text = re.sub(r"[━─]+", "━", re.sub(r"\d+(:\d+)*(\.\d+)?(e-\d+)?", "0", text))
    text = re.sub(r"about 0 s saved|no time saved|running ahead has cost about 0 s", "saved", text)
    text = re.sub(r"; (saved; )?(0 s|nothing) waited", "; waited", re.sub(r"0(us|ms|s)/step", "0/step", text))
    return re.sub(r"[ _=-]+", " ", text)


def write(place: str) -> None:
    """Put what is printed in a place into the page."""
    made = f"```text\n{capture(place)}\n```"
    head, heading, rest = PAGE.read_text().partition(f"## {place}\n")
    rest = re.sub(r"```text\n.*?\n```", lambda _: made, rest, count=1, flags=re.S)
    PAGE.write_text(head + heading + rest)


if __name__ == "__main__":
    for place in sys.argv[1:] or PLACES:
        if not missing(place):
            write(place)
