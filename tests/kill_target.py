"""A training that `test_kill.py` kills and starts again: `python -m tests.kill_target DIRECTORY`."""

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


class Tell(keras.callbacks.Callback):
    """Says on standard output that training has begun, so that the killer knows from when to count."""

    def on_train_begin(self, logs=None):
        print("begun", flush=True)


def main(directory: Path) -> None:
    model = sequential(keras.optimizers.SGD(0.3, momentum=0.9))
    x, y = arrays(400)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(400, seed=3).batch(16)
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
        epochs=EPOCHS,
        callbacks=callbacks,
        verbose=0,
        resume=CheckpointPolicy(directory=directory / "checkpoints"),
    )
    np.savez(
        directory / "final.npz",
        **{str(i): np.asarray(v) for i, v in enumerate((*model.variables, *model.optimizer.variables))},
    )
    (directory / "history.json").write_text(json.dumps({"epoch": history.epoch, **history.history}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
