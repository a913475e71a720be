"""Trains MNIST on the hosts of a Ray cluster, or on two Ray workers of this machine.

Needs the extra [ray] (pip install -e .[ray]). Run from the repository root:

    .venv/bin/python examples/ray_train.py --workers=2

Ray Train places the workers and sets TF_CONFIG in each; from there on it is training on several hosts.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("workers", 2, "Ray workers.", lower_bound=2)
flags.DEFINE_integer("epochs", 3, "Epochs to train at most.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Images in a batch, of all workers together.", lower_bound=2)
flags.DEFINE_integer("rows", None, "Number of images to train on; all by default.", lower_bound=1)
flags.DEFINE_string("data_dir", None, "A directory that tensorflow-datasets prepared; it must hold MNIST.")
flags.DEFINE_string("output_dir", "runs/ray", "Where Ray and the checkpoints go; all workers must reach it.")


def train(config: dict[str, Any]) -> None:
    """Train as one of the workers; Ray calls it."""
    import keras
    import ray.train

    import overlap_train
    from overlap_train.models.mnist_cnn import mnist_cnn
    from overlap_train.models.mnist_data import load_mnist
    from overlap_train.parallel import RayReport, join_cluster

    strategy = join_cluster()
    keras.utils.set_random_seed(0)  # the same order of the images on all workers
    digits = load_mnist(config["data_dir"])
    with strategy.scope():
        model = mnist_cnn(from_uint8=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    rows, resume = config["rows"], Path(config["output_dir"]) / "checkpoints"
    history = overlap_train.Trainer(model).fit(
        digits.x_train[:rows],
        digits.y_train[:rows],
        batch_size=config["batch_size"],
        epochs=config["epochs"],
        validation_data=(digits.x_test[:rows], digits.y_test[:rows]),
        callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=3), RayReport(resume)],
        resume=resume,
        verbose=2,
    )
    if ray.train.get_context().get_world_rank() == 0:
        (Path(config["output_dir"]) / "history.json").write_text(json.dumps(history.history))


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    output_dir = Path(FLAGS.output_dir).resolve()
    output_dir.mkdir(parents=True, exist_ok=True)
    trainer = TensorflowTrainer(
        train,
        train_loop_config={
            "epochs": FLAGS.epochs,
            "batch_size": FLAGS.batch_size,
            "rows": FLAGS.rows,
            "data_dir": FLAGS.data_dir,
            "output_dir": str(output_dir),
        },
        scaling_config=ScalingConfig(num_workers=FLAGS.workers),
        # Workers that Ray starts again go on from the last checkpoint.
        run_config=RunConfig(storage_path=str(output_dir), failure_config=FailureConfig(max_failures=3)),
    )
    trainer.fit()
    history = json.loads((output_dir / "history.json").read_text())
    print(f"val_accuracy {history['val_accuracy'][-1]:.4f}")


if __name__ == "__main__":
    app.run(main)
