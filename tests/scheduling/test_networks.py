"""The paper's four networks and ten more from keras.applications, split, under every policy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from overlap_train.scheduling import POLICIES, Device, MultiModelScheduler, Platform, Transfer

# One CPU under two names: to TensorFlow the same, to the scheduler a CPU and a "GPU".
TWO = Platform(
    (Device("CPU:0", "cpu", slots=2), Device("cpu:0", "gpu")),
    {("CPU:0", "cpu:0"): Transfer(1e-5), ("cpu:0", "CPU:0"): Transfer(1e-5)},
)
PAPERS = ("AlexNet", "VGG16", "ResNet152", "DenseNet201")
TEN_MORE = (
    "MobileNetV2",
    "EfficientNetB0",
    "NASNetMobile",
    "Xception",
    "InceptionV3",
    "InceptionResNetV2",
    "ConvNeXtTiny",
    "ResNet50V2",
    "MobileNetV3Small",
    "VGG19",
)
# The smallest images that these take, and for the paper's what all four take.
SIZES = dict.fromkeys(PAPERS, 64) | {
    "NASNetMobile": 64,
    "Xception": 75,
    "InceptionV3": 80,
    "InceptionResNetV2": 80,
}


def network(name):
    from overlap_train.models.alexnet import alexnet

    keras.utils.set_random_seed(0)
    size = SIZES.get(name, 32)
    if name == "AlexNet":
        return alexnet((size, size, 3), 10)
    return getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)


def check(name, policies):
    """The oracle gets eight segments, the others forty."""
    model = network(name)
    # Those that rescale by themselves expect bytes' range.
    high = 255 if name.startswith(("EfficientNet", "MobileNetV3", "ConvNeXt")) else 1
    x = np.random.default_rng(0).random((2, *model.input_shape[1:]), "float32") * np.float32(high)
    want = model(x, training=False).numpy()
    for policy in sorted(policies):
        options = {"policy": policy, "segments": 8 if policy == "oracle" else 40, "profile": False}
        with MultiModelScheduler({name: model}, devices=TWO, **options) as scheduler:
            for future in [scheduler.submit(name, x) for _ in range(2)]:
                np.testing.assert_allclose(future.result(300), want, atol=1e-5, err_msg=policy)


@pytest.mark.parametrize(
    ("name", "policies"), [("AlexNet", POLICIES), ("MobileNetV3Small", ("paper", "earliest_finish"))]
)
@pytest.mark.by_default("AlexNet-policies0")
def test_a_network_split_equals_its_whole(name, policies):
    """A chain under every policy, and a graph with branches; all networks under all policies are nightly."""
    check(name, policies)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*PAPERS, *TEN_MORE])
@pytest.mark.timeout(1800)
def test_a_network_split_equals_its_whole_under_every_policy(name):
    check(name, POLICIES)


@pytest.mark.parametrize("name", ["AlexNet", "VGG16", "ResNet50V2", "InceptionV3"])
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_a_network_in_pieces_equals_its_whole_under_every_policy(name):
    """Images large enough that there is something to cut; the oracle takes no graph of so many layers."""
    from overlap_train.models.alexnet import alexnet

    keras.utils.set_random_seed(0)
    shape = (128, 128, 3)
    if name == "AlexNet":
        model = alexnet(shape, 10)
    else:
        model = getattr(keras.applications, name)(weights=None, input_shape=shape, classes=10)
    x = np.random.default_rng(0).random((1, *shape), "float32")
    want = model(x, training=False).numpy()
    for policy in sorted(set(POLICIES) - {"oracle"}):
        options = {"policy": policy, "profile": False, "cut": 3}
        with MultiModelScheduler({name: model}, devices=TWO, **options) as scheduler:
            assert scheduler.graph(name).joins
            for future in [scheduler.submit(name, x) for _ in range(4)]:
                np.testing.assert_allclose(future.result(300), want, atol=1e-5, err_msg=policy)
