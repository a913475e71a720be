"""accelerate(): models of every kind keep their weights, results and files."""

from __future__ import annotations

import zipfile

import keras
import numpy as np
import pytest

from overlap_train.conv import accelerate, report, selection
from overlap_train.conv.acceleration import acceleration_report

pytestmark = pytest.mark.usefixtures("native")

IMAGES = np.random.default_rng(0).standard_normal((4, 12, 10, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 1])


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((12, 10, 3)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.Sequential([keras.layers.Conv2D(8, 3, strides=2, use_bias=False)]),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


def functional() -> keras.Model:
    inputs = keras.Input((12, 10, 3))
    shared = keras.layers.Conv2D(3, 3, padding="same", activation="tanh")
    x = keras.layers.Add()([shared(inputs), shared(shared(inputs))])
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = keras.layers.Conv2D(8, 3)
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(keras.ops.mean(self.convolution(inputs), axis=(1, 2)))


@pytest.mark.parametrize(("build", "layers"), [(sequential, 2), (functional, 1), (Subclassed, 1)])
@pytest.mark.by_default("Subclassed-1")
def test_weights_and_training_stay_what_they_were(build, layers: int) -> None:
    results = []
    for swap in (False, True):
        keras.utils.set_random_seed(1)
        model = build()
        model(IMAGES)
        weights = model.get_weights()
        if swap:
            assert accelerate(model, verbose=0) is model
            assert len(acceleration_report(model).swapped) == layers
            for before, after in zip(weights, model.get_weights(), strict=True):
                np.testing.assert_array_equal(before, after)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        history = model.fit(IMAGES, LABELS, batch_size=2, epochs=3, shuffle=False, verbose=0)
        results.append([history.history["loss"], model.predict(IMAGES, verbose=0)])
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-4)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-3, atol=1e-4)


def test_functions_traced_before_are_traced_again() -> None:
    model = sequential()
    model.compile("sgd", "mse")
    want = model.predict(IMAGES, verbose=0)
    selection.clear_timings()
    accelerate(model, verbose=0)
    np.testing.assert_allclose(model.predict(IMAGES, verbose=0), want, rtol=1e-4, atol=1e-5)
    assert {row.key.filter_shape for row in report()} == {(3, 3, 3, 8), (3, 3, 8, 8)}, "on the operation"
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=False"):
        accelerate(model)


def test_a_saved_model_is_one_of_keras_alone(tmp_path) -> None:
    model = accelerate(sequential(), verbose=0)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        assert "overlap_train" not in file.read("config.json").decode()
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert not any("call" in vars(layer) for layer in loaded.layers)
    np.testing.assert_allclose(loaded(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-5)


def test_what_we_cannot_do_is_left_alone_and_named() -> None:
    class Own(keras.layers.Conv2D):
        def call(self, inputs):
            return 2 * super().call(inputs)

    model = keras.Sequential(
        [
            keras.Input((12, 10, 4)),
            keras.layers.Conv2D(4, 3, groups=2, name="grouped"),
            keras.layers.Conv2D(4, 3, dilation_rate=2, name="dilated"),
            keras.layers.Conv2D(4, 1, dtype="mixed_float16", name="half"),
            Own(4, 1, name="own"),
        ]
    )
    accelerate(model, verbose=0)
    result = acceleration_report(model)
    assert result.swapped == ()
    assert len(result.skipped) == 4
    reasons = " ".join(result.skipped.values())
    for word in ("grouped", "dilated", "float16", "Own"):
        assert word in reasons


def test_report_shows_what_each_layer_gained(capsys) -> None:
    model = accelerate(sequential(), batch_size=2)
    timings = acceleration_report(model).timings
    assert len(timings) == 2
    for rows in timings.values():
        assert [row.key.direction for row in rows] == ["forward", "input_gradient", "filter_gradient"]
    assert "tf.nn" in capsys.readouterr().out
