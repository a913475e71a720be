"""Trains U-Net on the tiled convolution, validation overlapped, and saves what it sees as a picture.

Run from the repository root, after scripts/setup.sh:

    .venv/bin/python examples/unet_tiled.py --epochs=3 --output_dir=runs/unet

The images are Oxford-IIIT Pet where tensorflow-datasets has it (--data_dir or TFDS_DATA_DIR; --download
fetches it, 800 MB). Otherwise they are drawn: discs and rectangles on a noisy ground, which this file makes
and calls "drawn shapes".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from absl import app, flags

from overlap_train.conv import accelerate, format_report, report
from overlap_train.models.unet import unet

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 3, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer("batch_size", 8, "Images in a training batch.", lower_bound=1)
flags.DEFINE_integer("images", 512, "Images to train on; an eighth as many validate.", lower_bound=8)
flags.DEFINE_integer("height", 128, "Height of an image.", lower_bound=8)
flags.DEFINE_integer("width", 191, "Width of an image; odd, to show that any size will do.", lower_bound=8)
flags.DEFINE_list("widths", ["16", "32", "64", "128"], "Channels of U-Net's levels.")
flags.DEFINE_bool("tiled", True, "Whether to use our convolution; --notiled trains on TensorFlow's.")
flags.DEFINE_string("data_dir", None, "A directory that tensorflow-datasets prepared.")
flags.DEFINE_bool("download", False, "Whether tensorflow-datasets may download Oxford-IIIT Pet.")
flags.DEFINE_string("output_dir", "runs/unet", "Where the picture goes.")
flags.DEFINE_integer("seed", 0, "Seed of the weights and of the drawn shapes.")
flags.DEFINE_enum("verbose", "auto", ["auto", "0", "1", "2"], "As in keras.Model.fit.")


@dataclass(frozen=True)
class Segmentation:
    """A segmentation set.

    Attributes:
        name: what it is.
        classes: names of the classes.
        images: uint8 [N, height, width, 3].
        masks: the class of each pixel, uint8 [N, height, width].
    """

    name: str
    classes: tuple[str, ...]
    images: np.ndarray
    masks: np.ndarray


# Red, green and blue of the ground, of discs and of rectangles, on average: a few epochs tell them apart.
_TYPICAL = np.array([(100, 100, 100), (170, 100, 100), (100, 100, 170)])


def draw_shapes(count: int, height: int, width: int, seed: int) -> Segmentation:
    """Draws a disc and a rectangle on each of `count` noisy images; where they overlap, the disc is in
    front."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    masks = np.zeros((count, height, width), np.uint8)
    images = np.empty((count, height, width, 3), np.uint8)
    for mask, image in zip(masks, images, strict=True):
        top, bottom = np.sort(generator.integers(0, height, 2))
        left, right = np.sort(generator.integers(0, width, 2))
        mask[top : bottom + 1, left : right + 1] = 2
        centre = generator.uniform((0, 0), (height, width))
        radius = generator.uniform(0.1, 0.35) * min(height, width)
        mask[(rows - centre[0]) ** 2 + (columns - centre[1]) ** 2 < radius**2] = 1
        colours = _TYPICAL + generator.uniform(-60, 60, (3, 3))
        image[:] = np.clip(colours[mask] + generator.normal(0, 25, (height, width, 3)), 0, 255)
    return Segmentation("drawn shapes", ("ground", "disc", "rectangle"), images, masks)


def load_pets(count: int, height: int, width: int) -> Segmentation | None:
    """Loads Oxford-IIIT Pet, resized, or returns None where it cannot be had."""
    import tensorflow_datasets as tfds

    try:
        pets = tfds.load("oxford_iiit_pet", split="train", data_dir=FLAGS.data_dir, download=FLAGS.download)
    except Exception as error:  # TFDS raises whatever its storage and its downloads do
        print(f"Oxford-IIIT Pet cannot be had ({type(error).__name__}); training on drawn shapes.")
        return None

    def resize(example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.image.resize(example["image"], (height, width))
        mask = tf.image.resize(example["segmentation_mask"], (height, width), "nearest")
        # TFDS counts the classes from 1.
        return tf.cast(image, tf.uint8), mask[..., 0] - 1

    images, masks = zip(*pets.take(count).map(resize).as_numpy_iterator(), strict=True)
    return Segmentation("Oxford-IIIT Pet", ("pet", "ground", "outline"), np.stack(images), np.stack(masks))


def build_model(classes: int) -> keras.Model:
    """Returns U-Net, compiled, taking pixels of 0 to 255 as they are stored."""
    inputs = keras.Input((FLAGS.height, FLAGS.width, 3), dtype="uint8")
    body = unet((FLAGS.height, FLAGS.width, 3), classes, [int(width) for width in FLAGS.widths])
    model = keras.Model(inputs, body(keras.layers.Rescaling(1 / 127.5, -1)(inputs)), name="unet_tiled")
    if FLAGS.tiled:
        accelerate(model, batch_size=FLAGS.batch_size, verbose=0)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.MeanIoU(classes, sparse_y_pred=False, name="mean_iou")],
    )
    return model


def save_picture(data: Segmentation, predictions: np.ndarray, path: Path) -> None:
    """Saves images beside their masks and the predicted ones.

    Args:
        data: up to four images are shown.
        predictions: logits, [N, height, width, classes].
        path: the file; its folder is made.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    count = min(4, len(data.images))
    figure, axes = plt.subplots(count, 3, figsize=(9, 2.2 * count), layout="constrained", squeeze=False)
    for row, image, mask, logits in zip(axes, data.images, data.masks, predictions, strict=False):
        row[0].imshow(image)
        row[1].imshow(mask, vmin=0, vmax=len(data.classes) - 1)
        row[2].imshow(logits.argmax(-1), vmin=0, vmax=len(data.classes) - 1)
    for axis, title in zip(axes[0], (data.name, "truth", "prediction"), strict=True):
        axis.set_title(title)
    for axis in axes.flat:
        axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def main(argv: list[str]) -> None:
    """Trains, shows the mean intersection over union, and saves the picture."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {argv[1:]}")
    # The last import, so that --help needs no training loop.
    import overlap_train

    overlap_train.configure()  # before TensorFlow starts
    keras.utils.set_random_seed(FLAGS.seed)
    held_out = max(1, FLAGS.images // 8)
    count = FLAGS.images + held_out
    data = load_pets(count, FLAGS.height, FLAGS.width)
    if data is None:
        data = draw_shapes(count, FLAGS.height, FLAGS.width, FLAGS.seed)
    training = slice(held_out, None)
    validation = Segmentation(data.name, data.classes, data.images[:held_out], data.masks[:held_out])
    print(f"{data.name}: {len(data.images) - held_out} images to train on, {held_out} to validate")

    model = build_model(len(data.classes))
    history = overlap_train.Trainer(model).fit(
        data.images[training],
        data.masks[training],
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=(validation.images, validation.masks),
        verbose=FLAGS.verbose if FLAGS.verbose == "auto" else int(FLAGS.verbose),
    )
    for value in history.history.get("val_mean_iou", [])[-1:]:  # none if it was interrupted before
        print(f"mean IoU: {value:.4f} on the validation images")
    shown = model.predict(validation.images[:4], verbose=0)
    picture = Path(FLAGS.output_dir) / "predictions.png"
    save_picture(validation, shown, picture)
    print(f"predictions: {picture}")
    if FLAGS.tiled and report():
        print(format_report())


if __name__ == "__main__":
    app.run(main)
