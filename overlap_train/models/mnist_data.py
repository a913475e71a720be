"""MNIST as arrays in memory, through tensorflow-datasets, with real digits where MNIST is out of reach.

The order of preference:

    1. the directory that the caller or `TFDS_DATA_DIR` names; if it cannot be used, that is an error
    2. TFDS's own directory, if MNIST lies there prepared
    3. a download by TFDS into that directory
    4. scikit-learn's handwritten digits, which come with that package, resized to MNIST's shape

Everything here may be called from any thread; nothing is kept between calls.
"""

from __future__ import annotations

import os
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overlap_train._support.arguments import require_count, require_flag, require_instance, short_repr
from overlap_train._support.files import require_path
from overlap_train._support.imports import import_extra
from overlap_train.errors import DataUnavailableError

__all__ = ["MnistArrays", "load_mnist", "replicate_to"]

_VERSION = "3.0.1"
_NUM_EXAMPLES = {"train": 60_000, "test": 10_000}
_SIDE = 28
_DIGITS_SEED = 0
_DIGITS_TEST_EXAMPLES = 297

_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/t10k-labels-idx1-ubyte.gz"


@dataclass(frozen=True)
class MnistArrays:
    """Handwritten digits for training and validation.

    Attributes:
        x_train: images, uint8 `[N, 28, 28, 1]`, 0 to 255.
        y_train: digits, int64 `[N]`, 0 to 9.
        x_test: images for validation, as `x_train`.
        y_test: digits for validation, as `y_train`.
        source: one line for the user that says which images these are.
    """

    x_train: npt.NDArray[np.uint8]
    y_train: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.uint8]
    y_test: npt.NDArray[np.int64]
    source: str


def load_mnist(data_dir: str | os.PathLike[str] | None = None, *, download: bool = True) -> MnistArrays:
    """Return MNIST, or scikit-learn's digits if there is neither a copy nor a network.

    Args:
        data_dir: a TFDS directory, one that holds `mnist/3.0.1`. Default: the environment variable
            `TFDS_DATA_DIR`; if that is not set either, TFDS's own directory or a download into it.
        download: whether TFDS may download it where there is no copy.

    Raises:
        TypeError: `data_dir` is not a path, or `download` is not True or False.
        DataUnavailableError: the named directory does not exist, holds no MNIST or a damaged one; or MNIST is
            out of reach and scikit-learn not installed.
    """
    download = require_flag("download", download)
    if data_dir is not None:
        directory: str | None = os.fspath(require_path("data_dir", data_dir))
    else:
        directory = os.environ.get("TFDS_DATA_DIR")
    if directory:
        return _read(_dataset_dir(directory))
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return _embedded_digits("no home directory to look for MNIST in")
    dataset = Path(home) / "tensorflow_datasets" / "mnist" / _VERSION
    if not (dataset / "dataset_info.json").is_file():
        problem = _download() if download else "no MNIST on disk and no download wanted"
        if problem is not None:
            return _embedded_digits(problem)
    return _read(dataset)


def replicate_to(arrays: MnistArrays, size_bytes: int) -> MnistArrays:
    """Return `arrays` with the training part repeated until its images fill `size_bytes`.

    Paper P1 enlarges MNIST to 1 GB in this way. The images are repeated in order, and the last repetition
    ends at the size. A size below that of one image set cuts nothing off.

    Raises:
        TypeError: `arrays` is not a `MnistArrays`, or `size_bytes` is not an integer.
        ValueError: `size_bytes` is not positive.
    """
    require_instance("arrays", arrays, MnistArrays, optional=False)
    size_bytes = require_count("size_bytes", size_bytes, minimum=1)
    examples = len(arrays.x_train)
    count = max(examples, size_bytes // arrays.x_train[0].nbytes)
    if count == examples:
        return arrays
    return replace(
        arrays,
        x_train=np.resize(arrays.x_train, (count, *arrays.x_train.shape[1:])),
        y_train=np.resize(arrays.y_train, count),
        source=f"{arrays.source}, repeated to {count:,} training images",
    )


def _dataset_dir(directory: str) -> Path:
    root = Path(os.path.expanduser(directory))
    if not os.path.isdir(root):  # also False for a name that the system does not accept
        raise DataUnavailableError(
            f"the data directory {short_repr(directory)} does not exist; name one that tensorflow-datasets "
            "prepared, or none to let MNIST be downloaded"
        )
    dataset = root / "mnist" / _VERSION
    if not (dataset / "dataset_info.json").is_file():
        raise DataUnavailableError(
            f"the data directory {short_repr(directory)} holds no mnist/{_VERSION}/dataset_info.json; name "
            "the directory above 'mnist', or none to let MNIST be downloaded"
        )
    return dataset


def _read(dataset: Path) -> MnistArrays:
    import tensorflow_datasets as tfds

    parts = {}
    try:
        # From the directory alone: `tfds.builder` would ask the network about a version.
        builder = tfds.builder_from_directory(os.fspath(dataset))
        for split, expected in _NUM_EXAMPLES.items():
            images, labels = tfds.as_numpy(
                builder.as_dataset(split=split, batch_size=-1, as_supervised=True, shuffle_files=False)
            )
            if images.shape != (expected, _SIDE, _SIDE, 1) or labels.shape != (expected,):
                raise ValueError(
                    f"the {split} part has images {images.shape} and labels {labels.shape}, not {expected:,}"
                )
            parts[split] = images, labels
    except MemoryError:
        raise
    except Exception as error:  # TFDS and TensorFlow raise many types for a broken file
        raise DataUnavailableError(
            f"the copy of MNIST in {os.fspath(dataset)!r} is damaged ({_first_line(error)}); delete that "
            "directory and prepare it again"
        ) from error
    return MnistArrays(*parts["train"], *parts["test"], source=f"MNIST (tensorflow-datasets {_VERSION})")


def _download() -> str | None:
    """Let TFDS put MNIST into its own directory; return None, or why it is not there."""
    # TFDS retries for minutes where nothing answers, so one request with a time-out goes first.
    try:
        urllib.request.urlopen(urllib.request.Request(_URL, method="HEAD"), timeout=10).close()
    except OSError:
        return "no MNIST on disk and no network"
    import tensorflow_datasets as tfds

    try:
        tfds.builder(f"mnist:{_VERSION}").download_and_prepare()
    except Exception as error:  # TFDS raises many types for what can go wrong on the way
        return f"no MNIST on disk and the download failed ({_first_line(error)})"
    return None


def _embedded_digits(reason: str) -> MnistArrays:
    try:
        purpose = f"MNIST cannot be had ({reason}); what stands in for it"
        import_extra("sklearn", purpose=purpose, package="scikit-learn")
    except ModuleNotFoundError as error:
        raise DataUnavailableError(str(error)) from error
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()  # the UCI test set: 1,797 images of 8x8, values 0 to 16
    x_train, x_test, y_train, y_test = train_test_split(
        _resize(digits.images * (255.0 / 16.0)),
        digits.target.astype(np.int64),
        test_size=_DIGITS_TEST_EXAMPLES,
        random_state=_DIGITS_SEED,
        stratify=digits.target,
    )
    source = f"scikit-learn's handwritten digits, {len(digits.images):,} images resized to 28x28: {reason}"
    return MnistArrays(x_train, y_train, x_test, y_test, source)


def _resize(images: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Resize images `[N, S, S]` of 0 to 255 to uint8 `[N, 28, 28, 1]`, bilinear between pixel centres."""
    size = images.shape[1]
    centres = (np.arange(_SIDE) + 0.5) * size / _SIDE - 0.5
    # Row i holds the weights with which the old pixels make the new pixel i; the border repeats.
    weights = np.maximum(0.0, 1.0 - np.abs(np.clip(centres, 0, size - 1)[:, None] - np.arange(size)))
    resized: npt.NDArray[np.float64] = weights @ images @ weights.T
    return np.expand_dims(np.rint(resized), -1).astype(np.uint8)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
