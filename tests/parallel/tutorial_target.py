"""One worker of TensorFlow's tutorial "Multi-worker training with Keras", with `Trainer(model).fit`.

    python -m tests.parallel.tutorial_target directory

What the tutorial does is done here in its order, on a few drawn digits in the place of MNIST: the strategy
is TensorFlow's own, the dataset is shuffled and endless, the model is saved by all workers, each under a path
of its own where it is not the chief, and loaded again in the strategy's scope. One line is new: a shuffle
under a `repeat` needs a seed, or each host would draw an order of its own.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from overlap_train import Trainer


def main(directory: Path) -> None:
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    workers = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(0)

    def digits(batch_size: int) -> tf.data.Dataset:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, 512).astype("int64")
        x = (rng.random((512, 28, 28)) * 0.2 + y[:, None, None] / 20).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).repeat().batch(batch_size)

    def build() -> tf.keras.Model:
        model = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(shape=(28, 28)),
                tf.keras.layers.Reshape((28, 28, 1)),
                tf.keras.layers.Conv2D(8, 3, activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(16, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
        return model

    with strategy.scope():
        data = digits(16 * workers)
        model = build()
    callbacks = [
        tf.keras.callbacks.BackupAndRestore(str(directory / f"backup{task['index']}")),
        tf.keras.callbacks.ModelCheckpoint(str(directory / f"newest{task['index']}.keras")),
        tf.keras.callbacks.TensorBoard(str(directory / "board"), update_freq="batch"),
    ]
    history = Trainer(model).fit(data, epochs=3, steps_per_epoch=8, callbacks=callbacks, verbose=0)
    path = directory / ("saved.keras" if task["index"] == 0 else f"aside{task['index']}.keras")
    model.save(path)
    with strategy.scope():
        loaded = tf.keras.models.load_model(path)
    same = all(np.array_equal(a, b) for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True))
    found = {"history": history.history, "same": same, "sum": float(np.sum(model.get_weights()[0]))}
    (directory / f"found{task['index']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
