"""Hazards of getting MNIST: directories that lie, damaged copies, no network."""

import io
import os
import pwd
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from overlap_train.errors import DataUnavailableError
from overlap_train.models import mnist_data as mnist

COUNTS = {"train": 40, "test": 20}


@pytest.fixture(scope="module")
def real_mnist():
    folder = os.environ.get("TFDS_DATA_DIR")
    if not folder:
        pytest.skip("TFDS_DATA_DIR names no prepared copy of MNIST")
    return folder


@pytest.fixture(autouse=True)
def empty_home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    return home


@pytest.fixture
def digits():
    return mnist.load_mnist(download=False)


@pytest.fixture
def prepared(tmp_path, monkeypatch, digits):
    """A directory as TFDS writes it, with few images: the real digits of scikit-learn."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    monkeypatch.setattr(mnist, "_NUM_EXAMPLES", COUNTS)
    folder = tmp_path / "tfds" / "mnist" / "3.0.1"
    folder.mkdir(parents=True)
    image, label = tfds.features.Image(shape=(28, 28, 1)), tfds.features.ClassLabel(num_classes=10)
    features = tfds.features.FeaturesDict({"image": image, "label": label})
    for split, count in COUNTS.items():
        with tf.io.TFRecordWriter(str(folder / f"mnist-{split}.tfrecord-00000-of-00001")) as writer:
            for x, y in zip(digits.x_train[:count], digits.y_train[:count], strict=True):
                writer.write(features.serialize_example({"image": x, "label": y}))
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, supervised_keys=("image", "label"), check_data=False
    )
    return tmp_path / "tfds"


@pytest.mark.nightly
def test_official_copy_has_the_official_images(real_mnist):
    arrays = mnist.load_mnist(real_mnist)
    assert arrays.x_train.shape == (60_000, 28, 28, 1)
    assert arrays.x_test.shape == (10_000, 28, 28, 1)
    # Known of the official files: mean pixel 33.3 of 255, and how often each digit occurs.
    assert arrays.x_train.mean() == pytest.approx(33.318, abs=1e-3)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(arrays.y_train), counts)


def test_named_directory_is_read_as_written(prepared, digits, monkeypatch):
    arrays = mnist.load_mnist(prepared)
    np.testing.assert_array_equal(arrays.x_train, digits.x_train[:40])
    np.testing.assert_array_equal(arrays.y_test, digits.y_train[:20])
    assert arrays.x_train.dtype == np.uint8
    assert arrays.y_train.dtype == np.int64
    assert arrays.source == "MNIST (tensorflow-datasets 3.0.1)"
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    assert len(mnist.load_mnist().x_train) == 40
    monkeypatch.setattr(mnist, "_NUM_EXAMPLES", {"train": 41, "test": 20})
    with pytest.raises(DataUnavailableError, match="not 41"):
        mnist.load_mnist()


@pytest.mark.parametrize("where", ["missing", "empty"])
def test_named_directory_without_mnist_is_an_error_and_no_fallback(tmp_path, where):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataUnavailableError, match=where):
        mnist.load_mnist(tmp_path / where)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("mnist-test.tfrecord-00000-of-00001", flip_a_byte),
        ("mnist-test.tfrecord-00000-of-00001", Path.unlink),
        ("dataset_info.json", truncate),
    ],
)
def test_damaged_copy_is_one_clear_error(prepared, file, damage):
    damage(prepared / "mnist" / "3.0.1" / file)
    before = sorted(prepared.rglob("*"))
    with pytest.raises(DataUnavailableError, match=r"is damaged .* prepare it again"):
        mnist.load_mnist(prepared)
    assert sorted(prepared.rglob("*")) == before


@pytest.mark.parametrize("answers", [False, True])
def test_without_a_download_the_digits_stand_in_and_say_why(answers, monkeypatch):
    def answer(request, timeout):
        if not answers:
            raise OSError("unreachable")
        return io.BytesIO()

    def fail(name):
        raise ValueError(f"checksum of {name}")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    monkeypatch.setattr("tensorflow_datasets.builder", fail)
    source = mnist.load_mnist().source
    assert source.startswith("scikit-learn's handwritten digits, 1,797 images resized to 28x28")
    assert source.endswith("the download failed (checksum of mnist:3.0.1)" if answers else "no network")


def test_without_a_home_the_digits_stand_in(monkeypatch):
    def unknown(user):
        raise KeyError(user)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert "no home directory" in mnist.load_mnist().source
    with pytest.raises(DataUnavailableError, match="'~nobody-of-that-name' does not exist"):
        mnist.load_mnist("~nobody-of-that-name")


def test_embedded_digits_are_the_same_each_time_and_balanced(digits):
    again = mnist.load_mnist(download=False)
    np.testing.assert_array_equal(digits.x_test, again.x_test)
    assert digits.x_train.shape == (1500, 28, 28, 1)
    assert digits.x_test.shape == (297, 28, 28, 1)
    assert (digits.x_train.min(), digits.x_train.max()) == (0, 255)
    assert np.bincount(digits.y_test).min() >= 28


def test_replicated_images_fill_the_size_in_order(digits):
    larger = mnist.replicate_to(digits, 3 * digits.x_train.nbytes + 784)
    assert larger.x_train.nbytes == 3 * digits.x_train.nbytes + 784
    np.testing.assert_array_equal(larger.x_train[1500:3000], digits.x_train)
    np.testing.assert_array_equal(larger.y_train[-1:], digits.y_train[:1])
    assert larger.x_test is digits.x_test
    assert mnist.replicate_to(digits, 1) is digits
    with pytest.raises(ValueError, match="size_bytes"):
        mnist.replicate_to(digits, 0)
