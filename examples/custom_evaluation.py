"""Evaluates each epoch on the hardest digits while the next epoch is trained, and stops by that value.

Run from the repository root, after scripts/setup.sh:

    .venv/bin/python examples/custom_evaluation.py --epochs=5

MNIST comes from --data_dir, from TFDS_DATA_DIR, or is downloaded by tensorflow-datasets.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
from absl import app, flags, logging
from sklearn.metrics import confusion_matrix

import overlap_train
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.models.mnist_data import MnistArrays, load_mnist

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 5, "Epochs to train at most.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Images in a training batch.", lower_bound=1)
flags.DEFINE_integer(
    "patience", 2, "Epochs without a better worst digit before training stops.", lower_bound=1
)
flags.DEFINE_string("data_dir", None, "A directory that tensorflow-datasets prepared; it must hold MNIST.")


class DigitReport:
    """The recall of each digit, by scikit-learn: what no Keras metric computes.

    Args:
        digits: whose test images are looked at.
    """

    def __init__(self, digits: MnistArrays) -> None:
        self._x, self._y = digits.x_test, np.asarray(digits.y_test)

    def __call__(self, model: keras.Model) -> dict[str, float | dict[str, float]]:
        """Returns the recall of the worst digit, and of each by its name."""
        found = model.predict(self._x, batch_size=512, verbose=0).argmax(axis=1)
        recall = confusion_matrix(self._y, found, labels=range(10), normalize="true").diagonal()
        return {"worst": recall.min(), "digit": {str(digit): value for digit, value in enumerate(recall)}}


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # tensorflow-datasets tells of every file it opens
    digits = load_mnist(FLAGS.data_dir)
    print(f"Data: {digits.source}")
    keras.utils.set_random_seed(0)
    model = mnist_cnn(from_uint8=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    policy = overlap_train.ValidationPolicy(functions={"recall": DigitReport(digits)})
    stop = keras.callbacks.EarlyStopping("val_recall_worst", mode="max", patience=FLAGS.patience)
    trainer = overlap_train.Trainer(model, validation=policy)
    history = trainer.fit(
        digits.x_train,
        digits.y_train,
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=(digits.x_test, digits.y_test),
        callbacks=[stop],
        verbose=2,
    ).history
    for epoch, worst in enumerate(history.get("val_recall_worst", ())):  # none if it was interrupted before
        print(f"epoch {epoch + 1}: the worst digit is found in {worst:.1%} of its images")


if __name__ == "__main__":
    overlap_train.configure()  # lets the trainer split batches over the cores; before TensorFlow starts
    app.run(main)
