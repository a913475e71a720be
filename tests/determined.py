"""A program that prints hashes of what trainings come to: `python -m tests.determined THREADS SETTING …`.

THREADS is the number of operations that TensorFlow may run at once. A setting is `MODEL,LAG,WORKERS,WAY`,
where the way is "straight", "resumed" (the fit fails in its second epoch and is begun again) or "split" (each
batch in four parts). One JSON object goes to standard output, with a hash of weights, optimizer and history
for each.
"""

import hashlib
import json
import sys
import tempfile

import overlap_train

if __name__ == "__main__":
    overlap_train.configure(cores=int(sys.argv[1]), deterministic=True)

import keras
import numpy as np

ROWS, EPOCHS, BATCH = 96, 3, 16
SHAPES = {"dense": (24,), "conv": (12, 12, 2), "parts": (12, 12, 2), "recurrent": (6, 8)}


class Failing(keras.callbacks.Callback):
    """Fails at the end of the second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


class Pooled:
    """A model, traced once, that is put back to its first values."""

    def __init__(self, name):
        keras.utils.set_random_seed(3)
        layers = keras.layers
        hidden = {
            "dense": [layers.Dense(64, activation="relu"), layers.Dropout(0.3)],
            "conv": [
                layers.Conv2D(16, 3, activation="relu"),
                layers.Conv2D(8, 3),
                *(layers.BatchNormalization(), layers.Dropout(0.2), layers.GlobalAveragePooling2D()),
            ],
            "parts": [layers.Conv2D(8, 3, activation="relu"), layers.Dropout(0.2), layers.Flatten()],
            "recurrent": [layers.LSTM(16)],
        }
        # "parts" is split by itself, as all of its layers treat each row of a batch alone.
        self.model = keras.Sequential([keras.Input(SHAPES[name]), *hidden[name], layers.Dense(4)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.model.compile("adam", loss, metrics=["accuracy"])
        self.model.optimizer.build(self.model.trainable_variables)
        self.variables = [*self.model.variables, *self.model.optimizer.variables]
        self.first = [np.copy(variable) for variable in self.variables]
        rng = np.random.default_rng(0)
        self.x = rng.normal(size=(ROWS, *SHAPES[name])).astype("float32")
        self.y = rng.integers(0, 4, ROWS)

    def restore(self, seed):
        for variable, value in zip(self.variables, self.first, strict=True):
            variable.assign(value)
        self.model.stop_training = False
        keras.utils.set_random_seed(seed)

    def fit(self, trainer, **arguments):
        data = (self.x[:70], self.y[:70])
        return trainer.fit(
            self.x, self.y, BATCH, EPOCHS, verbose=0, validation_data=data, **arguments
        ).history


def hashed(pooled, lag, workers, way):
    """Returns the hash of what a training comes to."""
    trainer = overlap_train.Trainer(
        pooled.model,
        validation=overlap_train.ValidationPolicy(max_lag=lag, workers=workers, overlap="always"),
        execution=overlap_train.ExecutionPlan(batch_splits=4) if way == "split" else None,
    )
    pooled.restore(5)
    if way == "resumed":
        with tempfile.TemporaryDirectory() as directory:
            try:
                pooled.fit(trainer, resume=directory, callbacks=[Failing()])
            except InterruptedError:
                pooled.restore(6)  # what is drawn goes on from the checkpoint
            history = pooled.fit(trainer, resume=directory)
    else:
        history = pooled.fit(trainer)
    values = [np.asarray(variable) for variable in (*pooled.model.weights, *pooled.model.optimizer.variables)]
    content = b"".join(value.tobytes() for value in values)
    digest = hashlib.sha256(content + repr(sorted(history.items())).encode())
    return digest.hexdigest()[:16]


def main(settings):
    pools, hashes = {}, {}
    for setting in settings:
        name, lag, workers, way = setting.split(",")
        if name not in pools:
            pools[name] = Pooled(name)
        hashes[setting] = hashed(pools[name], int(lag), int(workers), way)
    print(json.dumps(hashes))


if __name__ == "__main__":
    main(sys.argv[2:])
