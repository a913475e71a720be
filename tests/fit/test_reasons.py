"""Why a training waits: reasons of a few kinds, and a fit that fails rather than wait."""

import pickle
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from overlap_train._support.reasons import KINDS, Reason
from overlap_train.errors import OverlapError
from tests.networks import arrays, linear, sequential
from tests.rooms import ROOT
from tests.whole_fits.comparing import Rows, X, Y, assert_as_keras, slices
from tests.whole_fits.test_late_hooks import Scaled

VALIDATION = arrays(40, 1)
REQUIRE = ValidationPolicy(overlap="require", workers=1)


class Acts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.called = []

    def on_train_begin(self, logs=None):
        self.called.append("on_train_begin")

    def on_train_batch_end(self, batch, logs=None):
        self.called.append("on_train_batch_end")
        self.model.optimizer.iterations.assign_add(0)


def identifiers(raised):
    return [reason.identifier for reason in raised.value.reasons]


def test_each_kind_is_a_reason_somewhere():
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py"))
    assert set(re.findall(r'Reason\.of\(\s*"([\w-]+)"', sources)) == set(KINDS)


def test_a_reason_names_its_cause_a_remedy_a_line_and_its_section():
    reason = Reason.of("callback-acts", "Halves.on_train_batch_end")
    first, *remedies, last = str(reason).splitlines()
    assert first == reason.sentence
    assert [line.removesuffix(", or") for line in remedies] == [
        f"  - {remedy}" for remedy in KINDS["callback-acts"].remedies
    ]
    assert last == "  see docs/troubleshooting.md#callback-acts"
    assert reason.sentence.startswith("Halves.on_train_batch_end must not run")
    assert Reason.of("step-stateful", "it prints", "print elsewhere").remedies == ("print elsewhere",)


@pytest.mark.parametrize("resumes", [False, True])
def test_all_reasons_are_raised_before_anything_is_called_or_drawn(resumes, tmp_path):
    drawn, acts = [], Acts()

    def rows():
        for row in zip(X, Y, strict=True):
            drawn.append(1)
            yield row

    specs = tf.TensorSpec(X.shape[1:], X.dtype), tf.TensorSpec(Y.shape[1:], Y.dtype)
    data = tf.data.Dataset.from_generator(rows, output_signature=specs).batch(32)
    model = sequential(run_eagerly=not resumes)
    before = model.get_weights()
    trainer, resume = Trainer(model, validation=REQUIRE), tmp_path if resumes else None
    with pytest.raises(OverlapError, match=r"(?s)#callback-acts\n.*#data-once$") as raised:
        trainer.fit(data, validation_data=VALIDATION, callbacks=[acts], verbose=0, resume=resume)
    assert identifiers(raised) == ["model-eager"] * (not resumes) + ["callback-acts", "data-once"]
    assert (acts.called, drawn) == ([], [])
    assert all(map(np.array_equal, before, model.get_weights()))
    assert pickle.loads(pickle.dumps(raised.value)).reasons == raised.value.reasons


class SetsFirst(keras.callbacks.Callback):
    """Sets, before the first epoch, seeds of the data and what the steps are traced with."""

    overlap_safe = True

    def on_train_begin(self, logs=None):
        keras.utils.set_random_seed(9)
        self.model.layers[0].scale = 3.0


@pytest.mark.nightly
@pytest.mark.by_default("arrays")
@pytest.mark.parametrize("kind", ["arrays", "shuffled", "PyDataset"])
def test_a_fit_that_overlaps_is_not_changed(kind):
    def run(trained):
        keras.utils.set_random_seed(5)
        data = {"x": X, "y": Y}
        if kind == "shuffled":
            data = {"x": slices().shuffle(50).batch(16)}
        elif kind == "PyDataset":
            data = {"x": Rows(size=50)}
        trained.fit(**data, validation_data=VALIDATION, callbacks=[SetsFirst()], epochs=3, verbose=0)

    assert_as_keras(run, REQUIRE, build=lambda: linear(Scaled, optimizer="adam"))
