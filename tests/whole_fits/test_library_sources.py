"""Hugging Face's and Grain's data overlaps, rolls back and resumes as arrays do."""

import random

import keras
import numpy as np
import pytest

from overlap_train import CheckpointPolicy, Trainer, ValidationPolicy
from tests.killing import Kills
from tests.networks import Outcome, assert_same_history, assert_same_outcome, assert_same_weights, sequential
from tests.whole_fits import comparing, library_sources
from tests.whole_fits.comparing import VALIDATION, goes_back, waits
from tests.whole_fits.library_sources import INSTALLED, SOURCES
from tests.whole_fits.test_replay import callbacks

pytestmark = [
    pytest.mark.skipif(not SOURCES, reason="lacks datasets and grain"),
    pytest.mark.filterwarnings("ignore:::(datasets|grain|fsspec|multiprocess|dill).*"),
]
RESUMABLE = [name for name, (_, _, resumable) in SOURCES.items() if resumable]
needs_datasets = pytest.mark.skipif(not INSTALLED["datasets"], reason="lacks datasets")


def arguments(make, steps, epochs):
    random.seed(1)
    np.random.seed(2)
    return dict(
        x=make(), epochs=epochs, steps_per_epoch=steps, shuffle=False, validation_data=VALIDATION, verbose=0
    )


@pytest.mark.parametrize("lag", [1, 3])
@pytest.mark.parametrize("source", SOURCES)
def test_a_rollback_gives_the_numbers_of_keras(source, lag):
    make, steps, _ = SOURCES[source]
    expected = sequential()
    expected.fit(**arguments(make, steps, 8), callbacks=callbacks())
    trainer = Trainer(sequential(), validation=ValidationPolicy(max_lag=lag, overlap="always"))
    trainer.fit(**arguments(make, steps, 8), callbacks=callbacks())
    assert not waits(trainer)
    assert goes_back(trainer)
    assert_same_history(trainer.model.history.history, expected.history.history)
    assert_same_weights(trainer.model, expected)


def fit(make, steps, resume, kills=None):
    trainer = Trainer(sequential(), validation=ValidationPolicy(overlap="always"))
    trainer.fit(**arguments(make, steps, 5), callbacks=[kills or Kills(), *callbacks()], resume=resume)
    return trainer


def assert_goes_on(make, steps, directory, every_steps):
    policy = CheckpointPolicy(directory=directory, every_steps=every_steps)
    step = 2 * (steps or 12) + 3
    trainer = comparing.killed_and_resumed(lambda kills: fit(make, steps, policy, kills), step=step)
    assert_same_outcome(trainer.model, Outcome.of(fit(make, steps, None).model))


@pytest.mark.parametrize("every_steps", [2, None])
@pytest.mark.parametrize("source", RESUMABLE)
def test_killed_it_goes_on_to_the_result_of_the_unbroken_run(tmp_path, source, every_steps):
    make, steps, _ = SOURCES[source]
    assert_goes_on(make, steps, tmp_path / "run", every_steps)


@needs_datasets
@pytest.mark.parametrize("source", ["hugging face in order", "hugging face shuffled"])
def test_a_callback_that_may_do_anything_overlaps_with_rows_that_are_looked_up(source):
    calls = [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)]
    keras.utils.set_random_seed(1)
    explained = Trainer(sequential()).explain(
        SOURCES[source][0](), validation_data=VALIDATION, callbacks=calls
    )
    assert explained.in_step is None


@needs_datasets
@pytest.mark.parametrize("name", ["collated", "transformed"])
def test_functions_of_the_user_that_make_rows_are_not_resumed(tmp_path, name):
    with pytest.raises(ValueError, match="resume needs data whose position can be found again"):
        Trainer(sequential()).fit(getattr(library_sources, name)(), verbose=0, resume=tmp_path / "run")
