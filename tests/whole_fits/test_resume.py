"""A fit that was killed or terminated, called again, ends as the unbroken one, inside epochs too."""

import functools
import os
import random
import signal
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from overlap_train.errors import CheckpointMismatchError
from tests.killing import Killed, Kills
from tests.networks import Outcome, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits import test_replay
from tests.whole_fits.comparing import VALIDATION, X, Y, counted, killed_and_resumed, layered, noisy, slices
from tests.whole_fits.test_replay import Indexed, callbacks, generator

ALWAYS = ValidationPolicy(overlap="always")
STEPS = 13  # of an epoch of 203 rows in batches of 16


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
    state_dict, load_state_dict = Speaks.get_state, Speaks.set_state


class Jitter:
    """An object of the user's, which no checkpoint holds, with the generator of another."""

    def __init__(self, rng):
        self.rng = rng

    def __call__(self, x):
        return x + self.rng.normal(scale=0.01, size=x.shape)


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


def rows():
    return slices().shuffle(len(X), seed=5).batch(16)


def drawn():
    return rows().map(noisy(tf.random.Generator.from_seed(5)))


def replayed(name):
    make, steps, shuffle = test_replay.SOURCES[name]
    return lambda: {"x": make(), "steps_per_epoch": steps, "shuffle": shuffle}


ARRAYS = {"x": X, "y": Y, "batch_size": 16}
PIPELINES = {
    "arrays": lambda: ARRAYS,
    "arrays by steps": lambda: ARRAYS | {"steps_per_epoch": 5},
    "pipeline": lambda: {"x": rows()},
    "endless pipeline": lambda: {"x": rows().repeat(), "steps_per_epoch": 5},
    "counted pipeline": lambda: {"x": rows().map(counted(tf.Variable(0))).prefetch(3)},
    "augmented pipeline": lambda: {"x": rows().map(layered()).prefetch(3)},
    "endless augmented pipeline": lambda: {"x": drawn().repeat().prefetch(3), "steps_per_epoch": 5},
}
PYTHON = {
    **{
        name: replayed(name)
        for name in ("generator", "in Keras's order", "in parts", "reshuffled", "augmented")
    },
    "speaks": lambda: {"x": Speaks(), "shuffle": True},
    **{kind.__name__: lambda kind=kind: {"x": kind(), "shuffle": False} for kind in (Spoken, Augments)},
}
SOURCES = PIPELINES | PYTHON


def fit(source, resume, kills=None, **more):
    random.seed(1)
    np.random.seed(2)
    trainer = Trainer(sequential(), validation=ALWAYS)
    given = {"epochs": 5, "validation_data": VALIDATION, "verbose": 0, **SOURCES[source](), **more}
    trainer.fit(**given, callbacks=[kills or Kills(), *callbacks()], resume=resume)
    return trainer


@functools.cache
def unbroken(source):
    return Outcome.of(fit(source, None).model)


def killings():
    for source in PIPELINES:
        yield from ((source, 2, 3), (source, 2, STEPS + 2))
    for source in PYTHON:
        step = 2 * {"generator": 4, "in parts": 3}.get(source, 12) + 3
        yield source, 2, step
        if source in ("in Keras's order", "in parts", "augmented"):
            yield source, None, step


@pytest.mark.parametrize(("source", "every_steps", "step"), list(killings()))
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.by_default("augmented pipeline-2-3", "generator-2-11", "speaks-2-27", "augmented-None-27")
def test_killed_the_same_call_goes_on_with_the_batches_of_the_unbroken_run(
    tmp_path, source, every_steps, step
):
    expected = unbroken(source)
    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=every_steps)
    trainer = killed_and_resumed(lambda kills: fit(source, policy, kills), step=step)
    if source in PIPELINES and step < STEPS:  # later ones may follow a delivery
        assert any(message.startswith("resumed inside epoch") for message in trainer.messages)
    assert_same_outcome(trainer.model, expected)


def test_behind_an_epoch_it_goes_on_too_and_behind_the_last_trains_nothing(tmp_path):
    fit("arrays", tmp_path, epochs=3)
    for _ in range(2):  # the second finds a finished fit
        assert_same_outcome(fit("arrays", tmp_path).model, unbroken("arrays"))


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def no_handler():
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.by_default("arrays by steps", "endless pipeline")
@pytest.mark.parametrize("source", PIPELINES)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.usefixtures("no_handler")
def test_a_terminated_fit_leaves_a_checkpoint_of_where_it_stood(tmp_path, source):
    expected = unbroken(source)
    stopped = fit(source, tmp_path, Kills(8, terminate))
    assert stopped.ended == "interrupted by SIGTERM"
    trainer = fit(source, tmp_path)
    where = "epoch 2, after 3" if "steps_per_epoch" in SOURCES[source]() else "epoch 1, after 8"
    assert f"resumed inside {where} of its steps" in trainer.messages
    assert_same_outcome(trainer.model, expected)


def test_a_handler_of_the_users_is_called_and_what_it_raises_comes_at_the_end(tmp_path):
    called = []

    def leave(number, frame):
        called.append(number)
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            fit("arrays", tmp_path, Kills(5, terminate))
        assert signal.getsignal(signal.SIGTERM) is leave
    finally:
        signal.signal(signal.SIGTERM, before)
    assert called == [signal.SIGTERM]
    assert_same_outcome(fit("arrays", tmp_path).model, unbroken("arrays"))


def train(resume, *callbacks, **policy):
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always", **policy))
    given = {"epochs": 4, "validation_data": VALIDATION, "verbose": 0}
    trainer.fit(**ARRAYS, **given, callbacks=list(callbacks), resume=resume)
    return trainer


def test_inside_an_epoch_none_is_written_while_another_one_waits_for_its_validation(tmp_path):
    """An evaluation waits until the fit is killed, unless it is open from the start."""
    gate = threading.Event()

    def gated(model):
        gate.wait(60)
        return float(np.sum(np.abs(model.get_weights()[0])))

    def end():
        gate.set()
        raise Killed

    def fit_gated(resume, *kills):
        plateau = keras.callbacks.ReduceLROnPlateau("val_gated", mode="min", factor=0.5, patience=1)
        return train(resume, *kills, plateau, functions={"gated": gated})

    policy = CheckpointPolicy(directory=tmp_path / "run", every_steps=4)
    with pytest.raises(Killed):
        fit_gated(policy, Kills(STEPS + 9, end))
    trainer = fit_gated(policy, Kills())
    assert "resumed inside epoch 1, after 12 of its steps" in trainer.messages
    assert_same_outcome(trainer.model, Outcome.of(fit_gated(None).model))


def test_it_works_beside_backup_and_restore(tmp_path):
    def fit_with_backup(kills):
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
        return train(tmp_path / "run", backup, kills)

    trainer = killed_and_resumed(fit_with_backup, epoch=2)
    assert_same_outcome(trainer.model, Outcome.of(train(None).model))


class Terminates(Kills):
    """Ends the fit as an epoch begins."""

    def __init__(self, begins):
        super().__init__()
        self._begins = begins

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._begins:
            terminate()


@pytest.mark.usefixtures("no_handler")
def test_terminated_before_an_epochs_first_step_its_metrics_are_its_own(tmp_path):
    def fit_to(epoch, resume):
        tells = keras.callbacks.LambdaCallback(on_train_end=ends.append)
        plateau = keras.callbacks.ReduceLROnPlateau("val_loss", patience=9)
        return train(resume, Terminates(epoch), tells, plateau)

    ends, policy = [], CheckpointPolicy(directory=tmp_path / "run", every_epochs=9)
    for _ in range(2):  # the second has nothing to go on with but what the first has left
        assert fit_to(2, policy).ended == "interrupted by SIGTERM"
    assert ends[1] == ends[0] != {}
    trainer = fit_to(-1, policy)
    assert "resumed inside epoch 3, after 0 of its steps" in trainer.messages
    assert_same_outcome(trainer.model, Outcome.of(fit_to(-1, None).model))


class Holds(Indexed):
    def __init__(self):
        super().__init__()
        self.lock = object()


class Unseeded(Indexed):
    def __init__(self):
        super().__init__()
        self.order = np.random.default_rng().permutation(self.order)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Holds, "takes these attributes of its data as they then are: lock"),
        (Unseeded, "of the training data these attributes are others than before: order"),
    ],
)
def test_what_cannot_be_stored_and_what_is_other_than_before_is_named(tmp_path, kind, said):
    for epochs in (1, 2):
        trainer = Trainer(sequential())
        trainer.fit(kind(), epochs=epochs, verbose=0, resume=tmp_path)
        if epochs == (1 if kind is Holds else 2):
            assert any(said in message for message in trainer.messages)


class Wrong(Indexed):
    def get_state(self):
        return object()

    def set_state(self, state):
        pass


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (test_replay.through_python, ValueError, "resume needs data whose position can be found again"),
        (Wrong, TypeError, r"Wrong\.get_state must return numbers, text, arrays"),
    ],
)
def test_data_whose_state_is_nowhere_or_of_another_kind_is_refused(tmp_path, make, error, said):
    with pytest.raises(error, match=said):
        Trainer(sequential()).fit(make(), verbose=0, resume=tmp_path)


def test_a_generator_that_ended_cannot_be_found_again(tmp_path):
    def short():
        made = generator()
        return (next(made) for _ in range(5))

    with pytest.warns(UserWarning, match="ran out"):
        Trainer(sequential()).fit(short(), steps_per_epoch=4, epochs=2, verbose=0, resume=tmp_path)
    with pytest.raises(CheckpointMismatchError, match="after a generator had ended"):
        Trainer(sequential()).fit(short(), steps_per_epoch=4, epochs=3, verbose=0, resume=tmp_path)
