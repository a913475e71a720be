"""What decides the values in a history tells one training from another, and names by number do not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import ValidationSet
from overlap_train._checkpoint.fingerprints import (
    describe_data,
    describe_loss,
    describe_metrics,
    describe_sets,
    fingerprint,
)
from overlap_train._data import array_feed
from overlap_train._data.training_data import make_feed
from overlap_train._keras.data import recognize

X, Y = np.arange(12.0, dtype="float32").reshape(6, 2), np.zeros((6, 1), "float32")


def model(optimizer="sgd", loss="mse", metrics=(), units=1):
    made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(units)])
    made.compile(optimizer, loss, metrics=list(metrics), run_eagerly=True)
    made.test_on_batch(X, np.zeros((6, units)))  # which builds the metrics
    return made


def feed(x=X):
    return make_feed(recognize(x, Y, batch_size=2), hold_in_memory=lambda size: True)


def test_a_model_may_have_no_optimizer():
    made = model()
    made.optimizer = None
    one = fingerprint(made, feed())
    assert one["optimizer"] == "NoneType\n"
    assert one["optimizer"] != fingerprint(model(), feed())["optimizer"]


def own_loss(y, p):
    return keras.ops.mean(y - p)


def test_the_same_training_in_another_process_has_the_same_fingerprint():
    assert fingerprint(model(), feed()) == fingerprint(model(), feed())


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("model", {"units": 3}),
        ("optimizer", {"optimizer": "adam"}),
        ("loss", {"loss": "mae"}),
        ("metrics", {"metrics": ["mae"]}),
    ],
)
def test_what_differs_is_one_part(part, other):
    one, another = fingerprint(model(), feed()), fingerprint(model(**other), feed())
    assert one[part] != another[part]
    assert one["data"] == another["data"]


def test_other_data_is_another_part():
    one, another = fingerprint(model(), feed()), fingerprint(model(), feed(X + 1))
    assert {name for name in one if one[name] != another[name]} == {"data"}


def pipeline(*arrays, shuffled=False):
    dataset = tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])
    return (dataset.shuffle(6) if shuffled else dataset).batch(2)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[2 * index : 2 * index + 2], Y[2 * index : 2 * index + 2]


def described_data(data):
    return fingerprint(model(), make_feed(recognize(data), hold_in_memory=lambda size: True))["data"]


def test_a_training_pipeline_is_told_by_the_arrays_that_it_is_made_from():
    assert described_data(pipeline(X, Y)) == described_data(pipeline(X.copy(), Y.copy()))
    assert described_data(pipeline(X, Y)) != described_data(pipeline(X, Y + 1))
    assert described_data(pipeline(X, Y, shuffled=True)) != described_data(pipeline(X + 1, Y, shuffled=True))


def test_a_training_pipeline_is_not_told_by_where_its_files_lie():
    def read(directory, count=4):
        names = tf.data.Dataset.from_tensor_slices([f"{directory}/{n}.bin" for n in range(count)])
        return names.map(lambda name: (tf.strings.length(name)[None], tf.zeros([1]))).batch(2)

    assert described_data(read("here")) == described_data(read("elsewhere"))
    assert described_data(read("here")) != described_data(read("here", count=3))


def test_training_data_of_one_kind_is_told_from_that_of_another():
    def generator():
        while True:
            yield X[:2], Y[:2]

    kinds = [pipeline(X, Y), Batches(), generator(), pipeline(X, Y).repeat()]
    assert len({described_data(kind) for kind in kinds}) == len(kinds)


def test_each_row_of_arrays_counts_unless_they_are_large(monkeypatch):
    x = np.zeros((5000, 2), "float32")
    other = x.copy()
    other[1234, 1] = 1

    def described(x):
        rows = recognize(x, x, batch_size=100)
        return make_feed(rows, hold_in_memory=lambda size: True).describe()

    assert described(x) == described(x.copy())
    assert described(x) != described(other)
    monkeypatch.setattr(array_feed, "_DIGEST_BYTES", 1600)
    assert described(x).splitlines()[1].startswith("digest of 100 rows")
    assert described(x) == described(other)


def test_a_loss_is_told_by_its_class_and_settings_or_by_its_name():
    def described(loss):
        return describe_loss(model(loss=loss))

    crossentropy = keras.losses.BinaryCrossentropy
    assert described("mse") == "mse"
    assert described(own_loss) == "own_loss"
    assert described(crossentropy()) == described(crossentropy())
    assert described(crossentropy()) != described(crossentropy(from_logits=True))
    assert described(lambda y, p: keras.ops.mean(p)) == "<lambda>"


def test_losses_of_several_outputs_have_a_line_each():
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("a", "b")}
    made = keras.Model(inputs, outputs)
    made.compile("sgd", {"a": "mse", "b": own_loss})
    assert describe_loss(made) == "a: mse\nb: own_loss"
    made.compile("sgd", ["mse", None])
    assert describe_loss(made) == "mse\nNone"


def test_metrics_are_told_by_their_settings_and_not_by_numbers_in_names():
    def described(*metrics):
        return describe_metrics(model(metrics=metrics))

    auc = keras.metrics.AUC
    assert described(auc()) == described(auc())  # the second one is called auc_1
    assert described(auc(curve="PR")) != described(auc())
    assert described("mae") != described("mae", auc())


def test_metrics_that_count_sample_weights_are_told_from_those_that_do_not():
    def described(metrics, weighted_metrics):
        made = model()
        made.compile("sgd", "mse", metrics=metrics, weighted_metrics=weighted_metrics, run_eagerly=True)
        made.test_on_batch(X, Y)
        return describe_metrics(made)

    mae = keras.metrics.MeanAbsoluteError
    assert described(["mae"], None) != described(None, ["mae"])
    assert described(None, ["mae"]) == described(None, ["mae"])
    assert described([mae(name="a")], [mae(name="b")]) != described([mae(name="a"), mae(name="b")], [])
    assert described(["mae"], []) == described(["mae"], None)


class Untold(keras.metrics.MeanAbsoluteError):
    """Cannot say what it was made with."""

    def get_config(self):
        raise NotImplementedError


def test_a_metric_that_cannot_tell_its_settings_is_told_by_its_name():
    text = describe_metrics(model(metrics=[Untold(name="untold")]))
    assert "Untold {'name': 'untold'}" in text


def test_sets_are_told_by_what_is_used_of_them_and_when():
    sets = {
        "": ValidationSet(data=(X, Y)),
        "b": ValidationSet(data=(X, Y), freq=[1, 3], steps=2, batch_size=4),
    }
    first, data, second, same = describe_sets(sets).splitlines()
    assert first == "validation_data: freq 1, steps None, batch size None"
    assert second == "b: freq [1, 3], steps 2, batch size 4"
    assert data.split(": ")[1] == same.split(": ")[1]
    assert describe_sets({}) == "none"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ((X, Y), (X.copy(), Y.copy()), True),
        ((X, Y), (X, Y + 1), False),
        ((X, Y), (X.astype("float64"), Y), False),
        ((X, Y), (X.reshape(3, 4), Y), False),
        ((X, Y), (X, Y, np.ones(6)), False),
        ((X, None), (X,), True),
        ((np.array(["a", "b"], object),), (np.array(["a", "c"], object),), False),
        ((np.array([object()]),), (np.array([object()]),), True),
    ],
)
def test_arrays_are_told_apart_by_their_content(one, other, same):
    assert (describe_data(one) == describe_data(other)) is same


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "float32"])
def test_datasets_of_one_number_are_told_apart_by_it(dtype):
    one, other = (tf.data.Dataset.from_tensors(tf.cast(number, dtype)) for number in (1.0, 2.0))
    assert describe_data(one) == describe_data(one) != describe_data(other)


def dataset(x=X, size=2):
    return tf.data.Dataset.from_tensor_slices((x, Y)).shuffle(3).batch(size).prefetch(1)


@pytest.mark.parametrize(
    ("other", "same"),
    [(dataset(), True), (dataset(X + 1), False), (dataset(size=3), False), (dataset().take(2), False)],
)
def test_datasets_are_told_apart_by_what_they_were_made_from_and_their_length(other, same):
    assert (describe_data(dataset()) == describe_data(other)) is same


def test_datasets_that_functions_have_captured_are_told_apart_too():
    def captured(x):
        inner = dataset(x)
        return tf.data.Dataset.range(2).flat_map(lambda i: inner)

    assert describe_data(captured(X)) == describe_data(captured(X.copy()))
    assert describe_data(captured(X)) != describe_data(captured(X + 1))
    assert described_data(captured(X)) != described_data(captured(X + 1))


def test_data_of_python_is_told_by_its_class_and_nothing_is_drawn():
    drawn = []

    def rows():
        drawn.append(1)
        yield X

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 7

        def __getitem__(self, index):
            drawn.append(index)

    assert describe_data(rows()).endswith("of generator")
    assert describe_data(Rows()).endswith("of Rows of 7")
    assert drawn == []


def test_of_many_parts_the_first_are_shown():
    text = describe_data(({str(number): X for number in range(6)}, Y))
    assert text.endswith("and 4 more")
    assert text.count("(6, 2) float32") == 3
