"""What the pages write for TensorBoard and MLflow, read back by TensorBoard's reader and MLflow's client."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.docs.pages import DOCS, ROOT, SETUP, blocks

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(400)]

_TENSORBOARD = """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

read = EventAccumulator("logs", {"tensors": 0, "images": 0}).Reload()
for name in ("trained_s", "validated_s", "hidden_s", "waited_s"):
    scalars = {event.step: tf.make_ndarray(event.tensor_proto) for event in read.Tensors(f"account/{name}")}
    assert list(scalars) == [account.epoch for account in trainer.accounts]
    for account in trainer.accounts:
        assert np.float32(getattr(account, name)) == scalars[account.epoch], name
(event,) = read.Tensors("timeline")
width, height, png = event.tensor_proto.string_val
picture = tf.io.decode_png(png)
assert event.step == len(trainer.accounts)
assert picture.shape[:2] == (int(height), int(width))
assert (picture.numpy() == tf.io.decode_png(open("timeline.png", "rb").read()).numpy()).all()
"""

_MLFLOW_BEFORE = """
import mlflow
from overlap_train import Trainer
from overlap_train.monitoring import save_timeline
from scripts.clients.case import ARGUMENTS, X, Y, build

mlflow.set_tracking_uri("sqlite:///mlflow.db")
"""
_MLFLOW = """
client = mlflow.MlflowClient()
(run,) = mlflow.search_runs(output_format="list")


def logged(name):
    return {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}


assert logged("account/hidden_s") == {account.epoch: account.hidden_s for account in trainer.accounts}
assert list(logged("val_loss").values()) == model.history.history["val_loss"]
with open(client.download_artifacts(run.info.run_id, "timeline.png"), "rb") as kept:
    png = kept.read()
assert png.startswith(b"\\x89PNG") and png == open("timeline.png", "rb").read()
"""


def run(folder, program: str) -> None:
    """Run a program in a process of its own, as MLflow replaces methods of Keras."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_tensorboard_reads_what_the_page_on_monitoring_writes(tmp_path) -> None:
    setup = [block.code for block in blocks(SETUP, "python")[:1]]
    page = [block.code for block in blocks(DOCS / "how_to" / "monitoring.md", "python")]
    last = next(n for n, code in enumerate(page) if "AccountWriter" in code)
    run(tmp_path, "\n".join(["import tensorflow as tf", *setup, *page[: last + 1], _TENSORBOARD]))


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs the package mlflow")
def test_mlflow_reads_what_the_page_on_libraries_writes(tmp_path) -> None:
    page = [block.code for block in blocks(DOCS / "how_to" / "other_libraries.md", "python")]
    ours = [code for code in page if "mlflow." in code]
    assert len(ours) == 2
    run(tmp_path, "\n".join([_MLFLOW_BEFORE, *ours, _MLFLOW]))
