"""Each plan trains as Keras does, and a second fit does not trace again."""

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer
from overlap_train._data.array_feed import make_feed
from overlap_train._inspection.traced import TracedFunction
from overlap_train._inspection.traces import Traces
from overlap_train._keras.data import recognize
from overlap_train._training import execution, xla
from overlap_train._training.execution import make_loop
from overlap_train._training.loops import Loop
from overlap_train._training.xla import is_harmless, may_compile
from tests import networks


def perceptron(**options):
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.1), networks.crossentropy(), **{"metrics": ["accuracy"], **options})
    return model


def assert_equals_keras(trainer, expected):
    """Trains and compares with a model that Keras has trained with `ARGUMENTS`."""
    history = trainer.fit(*networks.arrays(), **ARGUMENTS)
    networks.assert_same_history(history.history, expected.history.history)
    networks.assert_same_weights(trainer.model, expected)


# The last batch is smaller.
ARGUMENTS = {"batch_size": 32, "epochs": 2, "verbose": 0, "validation_data": networks.arrays(50, 1)}


@pytest.fixture(scope="module")
def expected():
    model = perceptron()
    model.fit(*networks.arrays(), **ARGUMENTS)
    return model


@pytest.mark.by_default("plan1", "plan2")
@pytest.mark.parametrize(
    "plan",
    [
        ExecutionPlan(loop="iterator"),
        ExecutionPlan(loop="in_memory", steps_per_call=2),
        ExecutionPlan(jit=True),
        ExecutionPlan(loop="iterator", jit=True),
    ],
)
def test_plans_by_hand_equal_keras(plan, expected):
    assert_equals_keras(Trainer(perceptron(), execution=plan), expected)


def test_in_memory_refuses_a_dataset():
    data = tf.data.Dataset.from_tensor_slices(networks.arrays()).batch(8)
    with pytest.raises(ValueError, match="loop='in_memory' needs arrays"):
        Trainer(perceptron(), execution=ExecutionPlan(loop="in_memory")).fit(data, verbose=0)


def test_second_fit_traces_no_step_and_reads_the_new_arrays():
    traced = []

    class Counting(keras.Sequential):
        def call(self, *args, **kwargs):
            traced.append(1)
            return super().call(*args, **kwargs)

    model = Counting([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(0.0), networks.crossentropy())
    trainer = Trainer(model)
    x, y = networks.arrays()
    first = trainer.fit(x, y, verbose=0, shuffle=False).history["loss"]
    assert traced
    loops = loops_of(model)
    traced.clear()
    second = trainer.fit(np.zeros_like(x), y, verbose=0, shuffle=False).history["loss"]
    Trainer(model).fit(x, y, verbose=0)
    assert loops_of(model) == loops
    assert traced == []
    assert first != second
    assert second[0] == pytest.approx(np.log(4), rel=1e-5)
    for anew in (
        lambda: model.compile(keras.optimizers.SGD(0.0), networks.crossentropy()),
        lambda: model.make_train_function(force=True),
    ):
        loops = loops_of(model)
        traced.clear()
        anew()
        trainer.fit(x, y, verbose=0)
        assert traced, "as Keras would"
        assert not set(map(id, loops_of(model))) & set(map(id, loops))


def loops_of(model):
    """Returns the loops among the traces of a model."""
    loops = [value for value in Traces.of(model, "train")._values.values() if isinstance(value, Loop)]
    assert loops
    return loops


@pytest.mark.nightly
def test_a_step_of_other_weights_is_not_taken_for_the_one_that_was_traced_and_kept():
    """Keras goes on with the trace of before `trainable` was set, until `compile`; so do we, and say it."""
    x, y = networks.arrays()
    expected, actual = perceptron(), perceptron()
    trainer, arguments = Trainer(actual), {"batch_size": 32, "verbose": 0}
    for model, fit in ((expected, expected.fit), (actual, trainer.fit)):
        fit(x, y, **arguments)
        model.layers[0].trainable = False
        fit(x, y, **arguments)
    assert any("compile the model" in message for message in trainer.messages)
    networks.assert_same_weights(actual, expected)
    before = actual.layers[0].kernel.numpy()
    actual.compile(keras.optimizers.SGD(0.1), networks.crossentropy(), metrics=["accuracy"])
    trainer.fit(x, y, **arguments)
    assert not any("compile the model" in message for message in trainer.messages)
    np.testing.assert_array_equal(actual.layers[0].kernel, before)


def feed_for(rows=64, batch_size=32):
    x, y = networks.arrays(rows)
    return make_feed(recognize(x, y, batch_size=batch_size, shuffle=True), hold_in_memory=lambda size: True)


def is_compiled(model, feed):
    graph = TracedFunction(model.train_step, feed.element_spec).graph
    return may_compile(model, feed, graph) and is_harmless(feed.tensors, graph)


def test_xla_is_not_chosen_where_it_changes_numbers_or_loses():
    assert is_compiled(perceptron(), feed_for())
    assert not is_compiled(networks.sequential(), feed_for()), "it draws random numbers"
    assert not is_compiled(perceptron(), feed_for(rows=8)), "there is no full batch"
    model = keras.Sequential([keras.Input((12, 1)), keras.layers.Conv1D(2, 3), keras.layers.Flatten()])
    model.compile("sgd", networks.crossentropy())
    assert not is_compiled(model, feed_for())
    half = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4, dtype="mixed_bfloat16")])
    half.compile("sgd", networks.crossentropy())
    assert not is_compiled(half, feed_for())
    feed = feed_for()
    feed.tensors = (tf.where(feed.tensors[0] > 1, np.nan, feed.tensors[0]), feed.tensors[1])
    assert not is_compiled(perceptron(), feed)


def lookup(y_true, y_pred):
    return tf.gather(tf.ones([3]), tf.cast(y_true, tf.int32)) * y_pred


def checked(y_true, y_pred):
    tf.debugging.assert_less(y_pred, 1e9)
    return y_pred


def noisy(y_true, y_pred):
    return y_pred + keras.random.normal(tf.shape(y_pred), seed=1)


class Rates(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return tf.constant([0.1, 0.05])[tf.cast(step, tf.int32)]


@pytest.mark.parametrize(
    "options",
    [
        {"loss": lookup},
        {"loss": tf.function(lookup)},
        {"loss": noisy},
        {"metrics": [checked]},
        {"optimizer": keras.optimizers.SGD(Rates())},
    ],
)
def test_xla_is_not_chosen_for_custom_code(options):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae", keras.metrics.AUC()])
    assert all(is_compiled(model, feed_for(rows)) for rows in (64, 70))
    model.compile(**{"optimizer": "sgd", "loss": "mse", **options})
    assert not any(is_compiled(model, feed_for(rows)) for rows in (64, 70))


@pytest.mark.parametrize("splits", ["auto", 2])
def test_traces_that_are_kept_hold_no_data_and_no_trainer(splits, monkeypatch):
    """Else a trainer's dataset, callbacks and processes would live as long as the model."""
    model, feeds = perceptron(), []
    trainer = Trainer(model, execution=ExecutionPlan(batch_splits=splits))

    def make_noted(feed, step):
        feeds.append(weakref.ref(feed))
        return make_loop(feed, step)

    monkeypatch.setattr(execution, "make_loop", make_noted)
    trainer.fit(*networks.arrays(), batch_size=32, verbose=0, validation_data=networks.arrays(50, 1))
    gc.collect()
    assert [feed() for feed in feeds] == [None]
    alive = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert alive() is None
    assert loops_of(model)


@pytest.mark.nightly
@pytest.mark.default_options
def test_a_long_run_of_tiny_steps_is_compiled_by_xla_and_trains_as_keras_does(monkeypatch, expected):
    monkeypatch.setattr(execution, "_STEPS_THAT_PAY_XLA", 12)
    x, y = networks.arrays()
    trainer = Trainer(perceptron())
    assert_equals_keras(trainer, expected)
    assert any(message.startswith("plan: in_memory, no splits, XLA") for message in trainer.messages)
    brief = Trainer(perceptron())
    brief.fit(x, y, batch_size=32, verbose=0)
    assert "no XLA" in brief.messages[-1]


def reader(kind="LSTM", units=4, **options):
    """Returns a model of the words of `texts`, of which 0 is padding."""
    keras.utils.set_random_seed(7)
    embedding = keras.layers.Embedding(20, 6, mask_zero=True)
    recurrent = getattr(keras.layers, kind)(units, **options)
    model = keras.Sequential([keras.Input((12,)), embedding, recurrent, keras.layers.Dense(4)])
    model.compile("adam", networks.crossentropy(), metrics=["accuracy"])
    return model


def texts(rows=64):
    x, y = networks.arrays(rows)
    return np.clip(x * 4 + 10, 0, 19).astype("int32"), y


@pytest.mark.nightly
@pytest.mark.default_options
@pytest.mark.cpu_only("Keras asks cuDNN for LSTM and GRU on a GPU")
@pytest.mark.parametrize(
    ("kind", "options", "enough", "by_xla"),
    [
        ("LSTM", {}, 50, True),
        ("GRU", {"go_backwards": True}, 50, True),
        ("SimpleRNN", {}, 50, True),
        ("LSTM", {}, 100, False),
        ("LSTM", {"units": 400}, 50, False),
        ("LSTM", {"unroll": True}, 50, False),
        ("LSTM", {"dropout": 0.1}, 50, False),
    ],
)
def test_a_long_run_of_tiny_time_steps_is_compiled_too(monkeypatch, kind, options, enough, by_xla):
    monkeypatch.setattr(execution, "_TIME_STEPS_THAT_PAY_XLA", enough)
    arguments = {"batch_size": 20, "epochs": 2, "verbose": 0, "shuffle": False}
    expected, trainer = reader(kind, **options), Trainer(reader(kind, **options))
    history = expected.fit(*texts(), **arguments).history
    networks.assert_same_history(trainer.fit(*texts(), **arguments).history, history, rtol=1e-4)
    assert ("no splits, XLA" in trainer.messages[-1]) == by_xla


@pytest.mark.parametrize(("what", "value"), [("x", 20), ("x", -1), ("y", 4), ("y", -1), (None, None)])
def test_xla_is_not_chosen_where_an_index_out_of_range_would_be_no_error(what, value):
    x, y = texts()
    if what is not None:
        {"x": x, "y": y}[what][5] = value
    data = recognize(x, y, batch_size=32, shuffle=True)
    assert is_compiled(reader(), make_feed(data, lambda size: True)) == (what is None)
    assert not is_compiled(reader(), make_feed(data, lambda size: True, lambda x, y: (x, y)))


@pytest.mark.parametrize("label", [3, 4])
def test_labels_of_a_sequence_are_looked_at_too(label):
    layers = [keras.layers.Embedding(20, 6), keras.layers.Dense(8), keras.layers.Reshape((12, 2, 4))]
    model = keras.Sequential([keras.Input((12,)), *layers])
    model.compile("sgd", networks.crossentropy())
    data = recognize(texts(70)[0], np.full((70, 12, 2), label), batch_size=32, shuffle=True)
    feed = make_feed(data, lambda size: True)
    assert is_compiled(model, feed) == (label < 4)
    graph = TracedFunction(model.train_step, feed.element_spec).graph
    assert is_harmless([tensor[:0] for tensor in feed.tensors], graph)


@pytest.mark.parametrize("label", [3, 4])
def test_labels_that_a_metric_alone_looks_up_are_looked_at_too(label):
    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
    model.compile("sgd", "mse", metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2)])
    data = recognize(networks.arrays(64)[0], np.full((64, 1), label), batch_size=32, shuffle=True)
    assert is_compiled(model, make_feed(data, lambda size: True)) == (label < 4)


def test_xla_is_not_chosen_where_an_index_is_computed():
    layers = [keras.layers.Rescaling(2), keras.layers.Embedding(20, 6), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((12,)), *layers, keras.layers.Dense(4)])
    model.compile("sgd", networks.crossentropy())
    data = recognize(*texts(), batch_size=32, shuffle=True)
    assert not is_compiled(model, make_feed(data, lambda size: True))


class WithUnused(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.unused = keras.layers.Dense(4), keras.layers.LSTM(3)

    def build(self, shapes):
        self.dense.build(shapes[0])

    def call(self, inputs):
        return self.dense(inputs[0])


def joining():
    return keras.Sequential([keras.layers.Concatenate(), keras.layers.Dense(4)])


@pytest.mark.parametrize("make", [WithUnused, joining])
def test_the_choice_of_xla_is_no_error_for_layers_without_weights_and_models_without_outputs(
    monkeypatch, make
):
    monkeypatch.setattr(execution, "_STEPS_THAT_PAY_XLA", 1)
    model, (x, y) = make(), networks.arrays(64)
    model.compile("sgd", networks.crossentropy())
    Trainer(model).fit([x, x], y, batch_size=32, verbose=0)


@pytest.mark.nightly
@pytest.mark.default_options
def test_what_xla_cannot_compile_unasked_is_trained_without(monkeypatch):
    monkeypatch.setattr(execution, "_STEPS_THAT_PAY_XLA", 1)
    monkeypatch.setattr(xla, "is_custom", lambda operation: False)

    def by_text(y_true, y_pred):
        texts = tf.strings.as_string(tf.round(y_pred), precision=0)
        return tf.reduce_mean(tf.strings.to_number(texts), axis=-1)

    expected = perceptron(metrics=[by_text])
    expected.fit(*networks.arrays(), **ARGUMENTS)
    trainer = Trainer(perceptron(metrics=[by_text]))
    assert_equals_keras(trainer, expected)
    assert any("no splits, XLA" in message for message in trainer.messages), "which was tried"
    trainer = Trainer(perceptron(metrics=[by_text]), execution=ExecutionPlan(jit=True))
    with pytest.raises(tf.errors.OpError):
        trainer.fit(*networks.arrays(), **ARGUMENTS)


@pytest.mark.cpu_only("batches are split over the cores of a CPU")
@pytest.mark.default_options
@pytest.mark.by_default("2-False", "1-True")
@pytest.mark.parametrize(("cores", "fixed"), [(2, False), (1, True), (16, True)])
def test_heavy_steps_are_split_after_configure(monkeypatch, expected, cores, fixed):
    monkeypatch.setattr(execution, "available_cores", lambda: cores)
    monkeypatch.setattr(execution, "splits_pay", lambda: cores > 1)
    monkeypatch.setattr(execution, "ways_are_fixed", lambda: fixed)
    monkeypatch.setattr(execution, "_HEAVY_FLOP", 1.0)
    trainer = Trainer(perceptron())
    assert_equals_keras(trainer, expected)
    assert "plan: in_memory, 4 splits, no XLA" in trainer.messages


@pytest.mark.cpu_only("batches are split over the cores of a CPU")
@pytest.mark.parametrize(
    ("plan", "said"),
    [(ExecutionPlan(), True), (ExecutionPlan(batch_splits=1), False)],
)
def test_who_forgot_configure_is_told_where_it_would_pay(monkeypatch, plan, said):
    monkeypatch.setattr(execution, "splits_would_pay", lambda: True)
    monkeypatch.setattr(execution, "_HEAVY_FLOP", 1.0)
    trainer = Trainer(perceptron(), execution=plan)
    trainer.fit(*networks.arrays(64), batch_size=32, verbose=0)
    assert any("overlap_train.configure()" in message for message in trainer.messages) == said
