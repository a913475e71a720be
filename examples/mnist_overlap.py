"""Trains a small CNN on MNIST while the epoch before is validated, and shows where the time went.

Run from the repository root, after scripts/setup.sh:

    .venv/bin/python examples/mnist_overlap.py --epochs=5 --output_dir=runs/mnist

MNIST comes from --data_dir, from TFDS_DATA_DIR, or is downloaded by tensorflow-datasets.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
from absl import app, flags, logging

import overlap_train
from overlap_train.models.mnist_cnn import mnist_cnn
from overlap_train.models.mnist_data import load_mnist, replicate_to
from overlap_train.monitoring import Sampler, SpanRecorder, save_chrome_trace, save_timeline

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 5, "Epochs to train at most; early stopping may end sooner.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Images in a training batch.", lower_bound=1)
flags.DEFINE_integer("threads", 2, "Validation worker threads.", lower_bound=1)
flags.DEFINE_integer(
    "max_lag", 1, "Later epochs that may begin before an epoch's validation is delivered.", lower_bound=0
)
flags.DEFINE_string("data_dir", None, "A directory that tensorflow-datasets prepared; it must hold MNIST.")
flags.DEFINE_integer("replicate_to_mib", None, "Repeat the training images to so many MiB.", lower_bound=1)
flags.DEFINE_string("output_dir", "runs/mnist", "Where the timeline, the trace and the best model go.")
flags.DEFINE_integer("patience", 3, "Epochs without a better val_loss before training stops.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Seed of the weights, the dropout and the order of the images.")
flags.DEFINE_enum("verbose", "auto", ["auto", "0", "1", "2"], "As in keras.Model.fit.")


def build_model() -> keras.Model:
    """Returns the CNN, compiled, taking pixels of 0 to 255 as they are stored."""
    model = mnist_cnn(from_uint8=True)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def build_callbacks(output_dir: Path) -> list[keras.callbacks.Callback]:
    """Returns plain Keras callbacks: at the end of an epoch they see the weights of that epoch."""
    return [
        keras.callbacks.EarlyStopping("val_loss", patience=FLAGS.patience, restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(output_dir / "best.keras", "val_accuracy", save_best_only=True),
        keras.callbacks.TensorBoard(output_dir / "tensorboard", write_graph=False),
    ]


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    logging.set_verbosity(logging.WARNING)  # tensorflow-datasets tells of every file it opens
    digits = load_mnist(FLAGS.data_dir)
    if FLAGS.replicate_to_mib:
        digits = replicate_to(digits, FLAGS.replicate_to_mib << 20)
    print(f"Data: {digits.source}")

    output_dir = Path(FLAGS.output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(FLAGS.seed)
    recorder = SpanRecorder()
    trainer = overlap_train.Trainer(
        build_model(),
        validation=overlap_train.ValidationPolicy(workers=FLAGS.threads, max_lag=FLAGS.max_lag),
        recorder=recorder,
    )
    with Sampler() as sampler:
        trainer.fit(
            digits.x_train,
            digits.y_train,
            batch_size=FLAGS.batch_size,
            epochs=FLAGS.epochs,
            validation_data=(digits.x_test, digits.y_test),
            callbacks=build_callbacks(output_dir),
            verbose=FLAGS.verbose if FLAGS.verbose == "auto" else int(FLAGS.verbose),
        )

    save_timeline(output_dir / "timeline.png", recorder.spans(), sampler.samples())
    save_chrome_trace(output_dir / "trace.json", recorder.spans(), sampler.samples())
    print("Written:")
    print(f"  {output_dir / 'timeline.png'}   what each thread did when, and the load of the machine")
    print(f"  {output_dir / 'trace.json'}     the same for https://ui.perfetto.dev")
    print(f"  {output_dir / 'best.keras'}     the weights of the best epoch")
    print(f"  {output_dir / 'tensorboard'}    .venv/bin/tensorboard --logdir {output_dir / 'tensorboard'}")


if __name__ == "__main__":
    overlap_train.configure()  # lets the trainer split batches over the cores; before TensorFlow starts
    app.run(main)
