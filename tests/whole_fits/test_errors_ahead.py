"""What goes wrong in an epoch while an earlier one waits for its validation counts after that is delivered.

Under Keras the earlier epoch has been delivered by then. A callback that ended the training there has
prevented the error.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import arrays, assert_same_history, crossentropy
from tests.pools import pooled, sequential

X, Y = arrays(40)
VALIDATION = arrays(32, 1)
make_model = pooled(sequential)
FAILS = 2  # the first epoch, counted from 0, in which something goes wrong


class Broken(Exception):
    pass


class Rows(keras.utils.PyDataset):
    """Raises when the batches of one epoch are drawn, at its first or at a later one."""

    def __init__(self, at):
        super().__init__()
        self.epoch, self.at = 0, at

    def __len__(self):
        return 5

    def __getitem__(self, index):
        if self.epoch >= FAILS and index == self.at:
            raise Broken("no such row")
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

    def on_epoch_end(self):
        self.epoch += 1


class Once(Rows):
    """Raises once; who asks again gets the row."""

    def __getitem__(self, index):
        try:
            return super().__getitem__(index)
        except Broken:
            self.at = None
            raise


def generator():
    for number in range(5 * FAILS + 2):
        rows = slice(number % 5 * 8, number % 5 * 8 + 8)
        yield X[rows], Y[rows]
    raise Broken("no such row")


def dataset():
    """Divides by zero behind as many batches as two epochs have, and some."""
    rows = tf.data.Dataset.from_tensor_slices((X, Y)).repeat(FAILS + 1).take(40 * FAILS + 8)
    wrong = tf.data.Dataset.from_tensors((X[0], Y[0])).map(
        lambda x, y: (tf.debugging.check_numerics(x / 0.0, "wrong row"), y)
    )
    return rows.concatenate(wrong.repeat(32)).batch(8)


class Raises(keras.callbacks.Callback):
    def __init__(self, hook):
        super().__init__()
        self.epoch = -1
        setattr(self, hook, self._raise if hook == "on_epoch_begin" else self._in_epoch)
        if hook != "on_epoch_begin":
            self.on_epoch_begin = self._begin

    def _begin(self, epoch, logs=None):
        self.epoch = epoch

    def _raise(self, epoch, logs=None):
        if epoch == FAILS:
            raise Broken("hook")

    def _in_epoch(self, batch, logs=None):
        if self.epoch == FAILS and batch == 3:
            raise Broken("hook")


def schedule(epoch):
    return (0.1, 0.05)[epoch]


def pairs():
    return {"x": X, "y": Y, "batch_size": 8}


CASES = {
    "PyDataset, first batch": lambda: ({"x": Rows(0)}, []),
    "PyDataset, later": lambda: ({"x": Rows(3)}, []),
    "PyDataset, once": lambda: ({"x": Once(3)}, []),
    "generator": lambda: ({"x": generator(), "steps_per_epoch": 5}, []),
    "dataset": lambda: ({"x": dataset(), "steps_per_epoch": 5}, []),
    "schedule": lambda: (pairs(), [keras.callbacks.LearningRateScheduler(schedule)]),
    "schedule of nothing": lambda: (
        pairs(),
        [keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < FAILS else None)],
    ),
    "on_epoch_begin": lambda: (pairs(), [Raises("on_epoch_begin")]),
    "on_train_batch_end": lambda: (pairs(), [Raises("on_train_batch_end")]),
}


class Notes(keras.callbacks.Callback):
    """Keeps what it is told, and the weights that it sees."""

    overlap_safe = True

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append((epoch, sorted(logs), [w.copy() for w in self.model.get_weights()]))


class Stops(keras.callbacks.Callback):
    """Ends the training behind the last epoch in which nothing goes wrong."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == FAILS - 1:
            self.model.stop_training = True


class Slower(keras.callbacks.Callback):
    """Rolls each epoch that was trained ahead back."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (epoch + 2)


def run(make, trained, others):
    keras.utils.set_random_seed(4)
    model, notes = make_model(), Notes()
    arguments, callbacks = make()
    error = None
    try:
        trained(model).fit(
            **arguments,
            epochs=5,
            validation_data=VALIDATION,
            callbacks=[*callbacks, notes, *(other() for other in others)],
            verbose=0,
        )
    except Exception as raised:
        error = type(raised)
    return model, notes, error


def ahead(model):
    return Trainer(model, validation=ValidationPolicy(overlap="always", max_lag=1))


def each_case():
    """Yields every place of an error, alone and prevented; twice by default a rollback goes before it."""
    for case in CASES:
        for name, others in (("alone", ()), ("stopped", (Stops,)), ("rolled back", (Slower,))):
            often = others != (Slower,) or case in ("schedule", "PyDataset, once", "generator")
            yield pytest.param(case, others, id=f"{case}, {name}", marks=() if often else pytest.mark.nightly)


@pytest.mark.parametrize(("case", "others"), list(each_case()))
@pytest.mark.by_default("on_epoch_begin, stopped")
def test_the_epochs_before_it_are_delivered_as_under_keras(case, others):
    expected, its_notes, its_error = run(CASES[case], lambda model: model, others)
    model, notes, error = run(CASES[case], ahead, others)
    assert error is its_error
    assert error is not None or Stops in others
    assert_same_history(model.history.history, expected.history.history)
    assert [told[:2] for told in notes.seen] == [told[:2] for told in its_notes.seen]
    for (*_, ours), (*_, others_) in zip(notes.seen, its_notes.seen, strict=True):
        for one, other in zip(ours, others_, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    # Keras's step that lacked its batch has drawn from the seed of a dropout layer, or has not.
    for one, other in zip(model.trainable_variables, expected.trainable_variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


class Guarded(keras.Sequential):
    """Refuses a step that comes too late for its learning rate."""

    def train_step(self, data):
        late = self.optimizer.iterations >= 13
        fast = tf.convert_to_tensor(self.optimizer.learning_rate) > 0.05
        with tf.control_dependencies([tf.debugging.Assert(~tf.logical_and(late, fast), ["too fast"])]):
            return super().train_step(tf.nest.map_structure(tf.identity, data))


def noisy():
    for number in range(1000):
        rows = slice(number % 5 * 8, number % 5 * 8 + 8)
        yield X[rows] * np.float32(1 + 0.01 * number), Y[rows]


@pytest.mark.nightly
@pytest.mark.parametrize("make", [lambda: {"x": Rows(None)}, lambda: {"x": noisy(), "steps_per_epoch": 5}])
@pytest.mark.by_default("<lambda>1")
def test_a_step_that_a_delivery_prevents_does_not_lose_its_batches(make):
    """The guard fails in the epoch ahead, at the old learning rate, under which Keras never trains it."""
    histories = []
    for trained in (lambda model: model, ahead):
        keras.utils.set_random_seed(4)
        model = Guarded([keras.Input((12,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.1), crossentropy())
        plateau = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=99)
        arguments = {"validation_data": VALIDATION, "callbacks": [plateau], "verbose": 0}
        trained(model).fit(**make(), epochs=5, **arguments)
        histories.append(model.history.history)
        assert int(model.optimizer.iterations) == 25
    assert_same_history(histories[1], histories[0])


def test_what_a_validation_raises_comes_before_the_error_of_the_training_ahead():
    class Invalid(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            raise LookupError("validation rows")

    model = make_model()
    with pytest.raises(Exception, match="validation rows"):
        ahead(model).fit(
            X,
            Y,
            batch_size=8,
            epochs=3,
            validation_data=Invalid(),
            callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: (0.1,)[epoch])],
            verbose=0,
        )


@pytest.mark.nightly
def test_a_checkpoint_of_the_last_whole_epoch_is_there(tmp_path):
    model, path = make_model(), str(tmp_path / "best.weights.h5")
    saves = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    with pytest.raises(tf.errors.UnknownError, match="no such row"):
        ahead(model).fit(Rows(1), epochs=4, validation_data=VALIDATION, callbacks=[saves], verbose=0)
    saved, expected = make_model(), run(lambda: ({"x": Rows(1)}, []), lambda model: model, ())[1]
    saved.load_weights(path)
    for one, other in zip(saved.get_weights(), expected.seen[-1][2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
