"""A training on data that Python makes goes on from its checkpoints to the result of the unbroken one."""

from __future__ import annotations

import functools
import random

import keras
import numpy as np
import pytest

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train.errors import CheckpointMismatchError
from tests.killing import Killed, Kills
from tests.networks import Outcome, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits.test_replay import SOURCES, VALIDATION, Indexed, callbacks, generator


class Speaks(Indexed):
    """Tells its state itself; what it is in is nothing that could be stored."""

    def __init__(self):
        super().__init__()
        self.where = [object()]

    def on_epoch_end(self):
        self.where.append(object())
        self.order = np.roll(self.order, 3)

    def get_state(self):
        return {"epochs": len(self.where)}

    def set_state(self, state):
        self.where = [object() for _ in range(state["epochs"])]
        self.order = np.roll(np.sort(self.order), 3 * (state["epochs"] - 1))


class Spoken(Speaks):
    """The same by the names of PyTorch and Hugging Face."""

    get_state = set_state = None

    def state_dict(self):
        return Speaks.get_state(self)

    def load_state_dict(self, state):
        Speaks.set_state(self, state)


class Passes(Indexed):
    """Its seed is of Python's own kind, and its state in containers."""

    def __init__(self):
        super().__init__()
        self.random, self.seen = random.Random(3), {"epochs": [0], "shifts": ()}

    def on_epoch_begin(self):
        self.seen["shifts"] = (*self.seen["shifts"], self.random.randrange(9))
        self.order = np.roll(self.order, sum(self.seen["shifts"]))


class Jitter:
    """An object of the user's with a seed, as an augmentation has one."""

    def __init__(self, rng):
        self.rng, self.done = rng, {"count": 0}

    def __call__(self, x):
        self.done["count"] += 1
        return x + self.rng.normal(scale=0.01 * self.done["count"], size=x.shape)


class Augments(Indexed):
    """Its state is that of an object which shares its generator, and of a layer's seed."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(6)
        self.jitter = Jitter(self.random)
        self.noise = keras.layers.GaussianNoise(0.1, seed=2)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return self.noise(self.jitter(x).astype("float32"), training=True), y

    def on_epoch_end(self):
        self.random.shuffle(self.order)


MADE = {
    **{
        name: SOURCES[name]
        for name in ("generator", "in Keras's order", "in parts", "reshuffled", "augmented")
    },
    "speaks": (Speaks, None, True),
    "spoken": (Spoken, None, False),
    "passes": (Passes, None, False),
    "augments": (Augments, None, False),
}


def fit(source, resume, *, step=10**9, lag=1):
    make, steps, shuffle = MADE[source]
    model = sequential()
    random.seed(1)
    np.random.seed(2)
    trainer = Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always"))
    options = {"epochs": 5, "steps_per_epoch": steps, "shuffle": shuffle, "validation_data": VALIDATION}
    trainer.fit(make(), callbacks=[Kills(step), *callbacks()], verbose=0, resume=resume, **options)
    return trainer


@functools.cache
def unbroken(source):
    return Outcome.of(fit(source, None).model)


@pytest.mark.parametrize(
    ("source", "every_steps"),
    [*((source, 2) for source in MADE), ("in Keras's order", None), ("in parts", None), ("augmented", None)],
)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("generator-2")
def test_killed_it_goes_on_with_the_batches_of_the_unbroken_run(tmp_path, source, every_steps):
    expected = unbroken(source)
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=every_steps)
    epoch = MADE[source][1] or 12
    with pytest.raises(Killed):
        fit(source, policy, step=2 * epoch + 3)
    trainer = fit(source, policy)
    assert any(message.startswith("resumed") for message in trainer.messages)
    assert_same_outcome(trainer.model, expected)


class Curriculum(Indexed):
    scale = 1.0

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x * self.scale, y


@pytest.mark.by_default("1")
@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_callback_has_set_on_the_data_goes_on(tmp_path, lag):
    def fit(epochs, resume):
        source = Curriculum()

        class Scales(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                source.scale = 1.0 + logs["val_loss"]

        trainer = Trainer(sequential(), validation=ValidationPolicy(max_lag=lag, overlap="always"))
        trainer.fit(
            source, epochs=epochs, validation_data=VALIDATION, callbacks=[Scales()], verbose=0, resume=resume
        )
        return trainer.model

    fit(2, tmp_path / "run")
    assert_same_outcome(fit(4, tmp_path / "run"), Outcome.of(fit(4, None)))


def test_what_cannot_be_stored_is_named(tmp_path):
    class Holds(Indexed):
        def __init__(self):
            super().__init__()
            self.lock = object()

    trainer = Trainer(sequential())
    trainer.fit(Holds(), verbose=0, resume=tmp_path / "run")
    assert any("takes these attributes of its data as they then are: lock" in m for m in trainer.messages)


def test_a_generator_that_ended_cannot_be_found_again(tmp_path):
    def short():
        made = generator()
        return (next(made) for _ in range(5))

    with pytest.warns(UserWarning, match="ran out"):
        Trainer(sequential()).fit(short(), steps_per_epoch=4, epochs=2, verbose=0, resume=tmp_path / "run")
    with pytest.raises(CheckpointMismatchError, match="after a generator had ended"):
        Trainer(sequential()).fit(short(), steps_per_epoch=4, epochs=3, verbose=0, resume=tmp_path / "run")


def test_data_whose_state_is_nowhere_is_refused(tmp_path):
    make, steps, _ = SOURCES["through python"]
    with pytest.raises(ValueError, match="resume needs data whose position can be found again"):
        Trainer(sequential()).fit(make(), steps_per_epoch=steps, verbose=0, resume=tmp_path / "run")


def test_a_state_of_another_kind_is_refused(tmp_path):
    class Wrong(Indexed):
        def get_state(self):
            return object()

        def set_state(self, state):
            pass

    with pytest.raises(TypeError, match=r"Wrong\.get_state must return numbers, text, arrays"):
        Trainer(sequential()).fit(Wrong(), verbose=0, resume=tmp_path / "run")


def test_attributes_that_are_others_than_before_are_named(tmp_path):
    class Unseeded(Indexed):
        def __init__(self):
            super().__init__()
            self.order = np.random.default_rng().permutation(self.order)

    Trainer(sequential()).fit(Unseeded(), verbose=0, resume=tmp_path / "run")
    trainer = Trainer(sequential())
    trainer.fit(Unseeded(), epochs=2, verbose=0, resume=tmp_path / "run")
    assert "of the training data these attributes are others than before: order" in trainer.messages
