"""A training that `test_kill.py` kills and starts again.

    python -m tests.kill_target DIRECTORY [STEPS]

With STEPS its epochs are few and long, and so many steps lie between two checkpoints.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import keras
import numpy as np
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests.networks import arrays, sequential

EPOCHS = 40
LONG_EPOCHS, LONG_STEPS = 4, 4000


class Tell(keras.callbacks.Callback):
    """Says on standard output that training has begun, so that the killer knows from when to count."""

    def on_train_begin(self, logs=None):
        print("begun", flush=True)


def main(directory: Path, every_steps: int | None = None) -> None:
    model = sequential(keras.optimizers.SGD(0.3, momentum=0.9))
    x, y = arrays(400)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(400, seed=3).batch(16)
    if every_steps is not None:
        dataset = dataset.repeat()
    callbacks = [
        Tell(),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.7, patience=2, min_delta=0.01),
        keras.callbacks.EarlyStopping("val_loss", patience=30, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(
            directory / "best.weights.h5", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.CSVLogger(str(directory / "log.csv")),
    ]
    trainer = Trainer(model, validation=ValidationPolicy(workers=2, max_lag=1, overlap="always"))
    history = trainer.fit(
        dataset,
        validation_data=arrays(91, 1),
        epochs=EPOCHS if every_steps is None else LONG_EPOCHS,
        steps_per_epoch=None if every_steps is None else LONG_STEPS,
        callbacks=callbacks,
        verbose=0,
        resume=CheckpointPolicy(directory=directory / "checkpoints", every_steps=every_steps),
    )
    np.savez(
        directory / "final.npz",
        **{str(i): np.asarray(v) for i, v in enumerate((*model.variables, *model.optimizer.variables))},
    )
    (directory / "history.json").write_text(json.dumps({"epoch": history.epoch, **history.history}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
