"""A trained model that is dropped takes its graphs along, and no error is kept: a search must not grow."""

from __future__ import annotations

import gc
import threading
from collections import Counter

import keras
import pytest
import tensorflow as tf

from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
from overlap_train.conv import TiledConv2D
from tests.networks import arrays, linear
from tests.whole_fits.comparing import Rows

X, Y = arrays(40)


def graphs():
    """Counts the graphs that live, by name."""
    for thread in threading.enumerate():
        # One of ours draws the order of a next pass, and holds the data until it ends.
        if thread.name.startswith("overlap"):
            thread.join()
    while gc.collect():  # what a finalizer lets go is garbage of the next collection
        pass
    return Counter(o.name for o in gc.get_objects() if isinstance(o, tf.__internal__.FuncGraph))


def trained(*makers, optimizer="adam", **arguments):
    return linear(*makers, optimizer=optimizer, metrics=["accuracy"], **arguments)


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def fit(data, plan):
    layers = []
    if data == "images":
        layers = [
            lambda: keras.layers.Reshape((3, 4, 1)),
            lambda: TiledConv2D(2, 3, activation="relu"),
            keras.layers.Flatten,
        ]
    given = {"x": rows().batch(16)} if data == "dataset" else {"x": X, "y": Y, "batch_size": 16}
    trainer = Trainer(trained(*layers), validation=ValidationPolicy(workers=2), execution=plan)
    trainer.fit(**given, epochs=2, verbose=0, validation_data=(X, Y))


@pytest.mark.parametrize(
    ("data", "plan"),
    [
        ("arrays", ExecutionPlan()),
        ("arrays", ExecutionPlan(jit=True)),
        ("arrays", ExecutionPlan(batch_splits=2)),
        ("images", ExecutionPlan(jit=False)),
        ("dataset", ExecutionPlan()),
    ],
)
@pytest.mark.by_default("dataset-plan4")
def test_a_dropped_model_leaves_no_graph_behind(data, plan):
    fit(data, plan)
    keras.backend.clear_session()
    before = graphs()
    fit(data, plan)
    keras.backend.clear_session()
    after = graphs()
    assert after.total() <= before.total(), f"left behind: {after - before}"


@pytest.mark.parametrize("validate", [False, True], ids=["", "validated"])
@pytest.mark.parametrize("data", ["arrays", "in their order", "dataset", "validation_split"])
@pytest.mark.parametrize("seed", [None, 3], ids=["no seed", "seed"])
@pytest.mark.by_default("seed-arrays-")
def test_a_second_fit_and_evaluate_make_no_pipeline_and_no_graph(monkeypatch, data, validate, seed):
    """Both take most of a short call, and TensorFlow keeps something of each pipeline for good."""
    tf.random.set_seed(seed)
    dataset = rows().shuffle(40).batch(16)
    given = {"x": dataset} if data == "dataset" else {"x": X, "y": Y, "batch_size": 16}
    more = {"arrays": {}, "dataset": {}, "in their order": {"shuffle": False}}
    more["validation_split"] = {"validation_split": 0.5}
    if validate:
        more[data] = more[data] | {"validation_data": dataset if data == "dataset" else (X, Y)}
    trainer = Trainer(trained())
    made: list[str] = []
    for call in ("first", "second", "third"):
        if call == "third":  # the second may still be the first to run a plan
            note_what_is_made(made, monkeypatch)
        trainer.fit(**given, **more[data], epochs=2, verbose=0)
        trainer.evaluate(**given, verbose=0)
    assert made == []


def note_what_is_made(made, monkeypatch):
    """Has the pipelines and the graphs that are made from now on noted, but for one without operations."""
    for kind in (tf.data.Dataset, tf.__internal__.FuncGraph):
        begin = kind.__init__

        def noted(self, *args, begin=begin, **kwargs):
            begin(self, *args, **kwargs)
            if getattr(self, "name", "") != "seed":
                made.append(getattr(self, "name", type(self).__name__))

        monkeypatch.setattr(kind, "__init__", noted)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("data", ["arrays", "dataset", "of unknown length", "PyDataset"])
@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("seed", [None, 3], ids=["no seed", "seed"])
@pytest.mark.by_default("no seed-False-dataset", "no seed-False-arrays")
def test_the_end_of_the_data_is_no_error(monkeypatch, data, eager, seed):
    """TensorFlow keeps some memory for good of each error that leaves an operation."""

    dataset = rows().batch(16)
    given = {
        "arrays": (X, Y),
        "dataset": (dataset, None),
        "of unknown length": (dataset.filter(lambda x, y: True), None),
        "PyDataset": (Rows(X[:16], Y[:16]), None),
    }[data]
    tf.random.set_seed(seed)
    raised = []
    kind = tf.errors.OutOfRangeError
    create = kind.__init__
    monkeypatch.setattr(kind, "__init__", lambda self, *args: raised.append(args) or create(self, *args))
    validated = given if data == "arrays" else given[0]
    trainer = Trainer(trained(optimizer="sgd", run_eagerly=eager))
    trainer.fit(*given, epochs=2, verbose=0, validation_data=validated)
    trainer.evaluate(*given, verbose=0)
    by_keras = 3 if eager and data == "of unknown length" else 0  # an eager model's validations are Keras's
    assert len(raised) == by_keras
