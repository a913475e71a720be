"""Data and evaluation functions that start processes: every fit ends, and leaves no process behind.

Each fit runs in a process of its own, in which a hang ends with the stacks of all threads.
"""

import contextlib
import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests import forked
from tests.networks import assert_same_history, sequential

STEPS = 6
QUIET = {"verbose": 0, "shuffle": False}


def batch(number):
    x = np.random.default_rng(number).normal(size=(4, 12)).astype("float32")
    return x, np.full(4, number % 4)


class Batches(keras.utils.PyDataset):
    """Made by two processes. `at` does what it is told to at one of them."""

    def __init__(self, length=STEPS, at=None, do=None, **options):
        super().__init__(**{"workers": 2, "use_multiprocessing": True, "max_queue_size": 2} | options)
        self.length, self.at, self.do = length, at, do

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index == self.at:
            self.do()
        return batch(index)


def from_a_pool():
    while True:
        with multiprocessing.Pool(2) as pool:
            yield from pool.imap(batch, range(STEPS))


def from_an_executor():
    while True:
        with ProcessPoolExecutor(2) as executor:
            yield from executor.map(batch, range(STEPS))


def with_a_pool(model):
    with multiprocessing.Pool(2) as pool:
        return {"norm": sum(pool.map(np.sum, [variable.numpy() for variable in model.weights]))}


def with_an_executor(model):
    predicted = model.predict(batch(0)[0], verbose=0)
    with ProcessPoolExecutor(2) as executor:
        return {"norm": sum(executor.map(np.sum, predicted))}


def require_no_child():
    """Fails if this process has a child, alive or not awaited."""
    with contextlib.suppress(ChildProcessError):
        left = os.waitpid(-1, os.WNOHANG)
        pytest.fail(f"a process was left behind: {multiprocessing.active_children()} {left}")


def fits(times):
    """Fits data of two processes, validated by two more, as often as that; compares the first with Keras."""
    expected = sequential().fit(Batches(), validation_data=Batches(), epochs=2, **QUIET)
    for number in range(times):
        history = Trainer(sequential()).fit(Batches(), validation_data=Batches(), epochs=2, **QUIET)
        require_no_child()
        if number == 0:
            assert_same_history(history.history, expected.history)


def fits_of_every_kind():
    data = [
        {"x": Batches(length=20), "steps_per_epoch": 3, "validation_steps": 2},
        {"x": Batches(workers=1), "validation_data": Batches(use_multiprocessing=False)},
        {"x": np.zeros((8, 12)), "y": np.zeros(8)},
    ]
    for arguments in data:
        functions = {"pool": with_a_pool, "executor": with_an_executor}
        trainer = Trainer(sequential(), validation=ValidationPolicy(functions=functions))
        history = trainer.fit(**{"validation_data": Batches(), "epochs": 2, **QUIET} | arguments)
        assert {"val_loss", "val_pool_norm", "val_executor_norm"} <= history.history.keys()
        require_no_child()
    trainer.explain(Batches(), validation_data=Batches())
    require_no_child()
    for _ in range(2):
        trainer.evaluate(Batches(), verbose=0)
        require_no_child()


def fits_of_a_generator(make):
    """Closes them, as no fit does, nor one of Keras's: an open executor keeps this process from ending."""
    for _ in range(2):
        training, validation = make(), make()
        steps = {"steps_per_epoch": STEPS, "validation_steps": STEPS}
        Trainer(sequential()).fit(training, validation_data=validation, epochs=3, **steps, **QUIET)
        training.close()
        validation.close()
        require_no_child()


class Raises(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise LookupError("given")


def fail():
    raise LookupError("given")


def die():
    os._exit(3)


def hang():
    time.sleep(1000)


def fits_that_fail():
    long = {"length": 50, "max_queue_size": 1}
    cases = [
        ("given", {"x": Batches(**long), "callbacks": [Raises()]}),  # behind it a worker waits for room
        ("given", {"x": Batches(**long, at=4, do=hang), "callbacks": [Raises()]}),
        ("given", {"x": Batches(at=4, do=fail)}),
        ("given", {"x": Batches(), "validation_data": Batches(at=4, do=fail)}),
        (r"worker process of the PyDataset died \(exit code 3\)", {"x": Batches(at=4, do=die)}),
        (r"worker process of the PyDataset died", {"x": Batches(), "validation_data": Batches(at=4, do=die)}),
    ]
    for said, arguments in cases:
        with pytest.raises(Exception, match=said):
            Trainer(sequential()).fit(**arguments, epochs=3, **QUIET)
        require_no_child()
    with pytest.raises(Exception, match="given"):
        Trainer(sequential()).evaluate(Batches(at=4, do=fail), verbose=0)
    require_no_child()


def an_interrupted_fit(number):
    """Sends a signal to the whole group of this process, as a terminal does."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sends = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: os.killpg(0, number) if epoch == 1 else None
    )
    trainer = Trainer(sequential())
    slow = Batches(length=1000)
    history = trainer.fit(slow, steps_per_epoch=20, epochs=1000, callbacks=[sends], **QUIET)
    assert trainer.ended == f"interrupted by {number.name}"
    assert len(history.epoch) >= 2
    require_no_child()


CASES = {
    "5 fits": (fits, 5),
    "of every kind": (fits_of_every_kind,),
    "that fail": (fits_that_fail,),
    "from a pool": (fits_of_a_generator, from_a_pool),
    "from an executor": (fits_of_a_generator, from_an_executor),
    "interrupted": (an_interrupted_fit, signal.SIGINT),
    "terminated": (an_interrupted_fit, signal.SIGTERM),
}


@pytest.mark.timeout(300)
@pytest.mark.by_default("from an executor", "terminated")
@pytest.mark.parametrize("case", CASES)
def test_each_fit_ends_and_leaves_no_process(case, tmp_path):
    forked.run(*CASES[case], said=tmp_path / "said", limit_s=150)
