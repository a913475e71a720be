"""A validation step of the user's own on two replicas: Keras's numbers on as many, and in step."""

from tests.training.replicas.two_cpus import on_two  # isort: skip  # before anything starts TensorFlow

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import CLASSES, FEATURES, arrays, assert_same_history, crossentropy, linear

X, Y = arrays(64)
VALIDATION = arrays(44, 1)  # the last batch is shorter


def row_losses(model, batch):
    x, y = batch
    return keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)


def by_count(model, batch):
    """As the guide of TensorFlow has it: divided by the rows of all replicas."""
    model.seen.update_state(tf.nn.compute_average_loss(row_losses(model, batch)))


def asking_the_others(model, batch):
    context = tf.distribute.get_replica_context()
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(row_losses(model, batch)))
    model.seen.update_state(total)


def of_the_share(model, batch):
    """Asks nothing, but what it computes is no mean over rows."""
    model.seen.update_state(tf.reduce_max(row_losses(model, batch)))


STEPS = [by_count, asking_the_others, of_the_share]


class Own(keras.Model):
    """Validates by `judge`, one of `STEPS`."""

    def __init__(self, judge):
        inputs = keras.Input((FEATURES,))
        super().__init__(inputs, keras.layers.Dense(CLASSES)(inputs))
        self.judge, self.seen = judge, keras.metrics.Sum(name="seen")

    def test_step(self, batch):
        self.judge(self, batch)
        return {"seen": self.seen.result()}


def build(judge):
    keras.utils.set_random_seed(1)

    def make():
        model = Own(judge)
        model.compile("sgd", crossentropy())
        return model

    return on_two(make)()


def dataset():
    return tf.data.Dataset.from_tensor_slices(VALIDATION).batch(16)


def fitted(fit, validation):
    data = {"validation_data": validation} | (
        {} if validation is not VALIDATION else {"validation_batch_size": 16}
    )
    return fit(X, Y, batch_size=32, epochs=2, shuffle=False, verbose=0, **data).history


@pytest.mark.parametrize("judge", STEPS)
@pytest.mark.parametrize("data", [dataset, pytest.param(lambda: VALIDATION, marks=pytest.mark.nightly)])
def test_a_fit_and_an_evaluate_give_keras_s_numbers(judge, data):
    expected, actual = build(judge), build(judge)
    trainer = Trainer(actual, validation=ValidationPolicy(workers=2))
    assert_same_history(fitted(trainer.fit, data()), fitted(expected.fit, data()))
    assert any("Own.test_step may count its replicas" in message for message in trainer.messages)
    wanted = expected.evaluate(dataset(), verbose=0, return_dict=True)
    assert Trainer(actual).evaluate(dataset(), verbose=0, return_dict=True) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize(
    "judge",
    [
        asking_the_others,
        *(pytest.param(s, marks=pytest.mark.nightly) for s in STEPS if s is not asking_the_others),
    ],
)
def test_the_trainer_s_own_step_too(judge):
    class Judging(Trainer):
        def validation_step(self, batch):
            judge(self.model, batch)
            return {"seen": self.model.seen.result()}

    expected, actual = build(judge), build(None)
    assert_same_history(fitted(Judging(actual).fit, VALIDATION), fitted(expected.fit, VALIDATION))


def test_keras_s_own_step_stays_beside_the_training():
    class Doubling(keras.Sequential):
        def compute_loss(self, *args, **options):
            return 2 * super().compute_loss(*args, **options)

    expected, actual = linear(kind=Doubling), on_two(lambda: linear(kind=Doubling))()
    trainer = Trainer(actual)
    assert_same_history(fitted(trainer.fit, VALIDATION), fitted(expected.fit, VALIDATION))
    assert not any("in step" in message for message in trainer.messages)
