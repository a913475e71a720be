"""Who draws first gets the first number: the training, its validation and its callbacks, as under Keras."""

import contextlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import EvaluationFunction, Trainer, ValidationPolicy
from overlap_train._data.array_feed import ArrayFeed
from overlap_train._data.iterator_feed import IteratorFeed
from overlap_train._fit.draws import follow_others, is_drawn_in_order
from overlap_train._inspection import reach
from overlap_train._keras.data import recognize
from tests.fit.python_data import Batches, X, Y, fit_both
from tests.fit.requests import request_of
from tests.networks import assert_same_history
from tests.pools import sequential
from tests.whole_fits.comparing import assert_as_keras, halves, slices, waits

ROWS = slices(X, Y)


def shuffled():
    return ROWS.shuffle(96, seed=3)


class Looks(keras.callbacks.Callback):
    """Draws from a dataset in a hook, as one that shows samples."""

    def __init__(self, dataset, hook="on_epoch_end"):
        super().__init__()
        self.dataset, self.seen = dataset, []
        setattr(self, hook, self.look)

    def look(self, *_, **__):
        self.seen.append([batch[0][0, 0].numpy().item() for batch in self.dataset.take(1)])


class Stops(keras.callbacks.Callback):
    """Ends the training in a way that is not told before."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            if self.error is not None:
                raise self.error
            self.model.stop_training = True


def split(dataset):
    return dataset.take(64).batch(16), dataset.skip(64).batch(16)


def through_a_function(base):
    train = tf.data.Dataset.range(2).flat_map(lambda _: base.skip(64)).batch(16)
    # Of data of unknown size Keras makes one step more (docs/semantics.md).
    return train.apply(tf.data.experimental.assert_cardinality(4)), base.take(64).batch(16)


# Each makes the training and the validation data of one dataset.
MAKES = {
    "split": split,
    "kept": lambda base: split(base.cache()),
    "through_a_function": through_a_function,
    "in_a_tuple": lambda base: (base.skip(64).batch(16), (base.take(64).batch(16),)),
    "with_none": lambda base: (base.skip(64).batch(16), (base.take(64).batch(16), None)),
    "in_a_list": lambda base: (base.skip(64).batch(16), [base.take(64).batch(16)]),
}


def both(make, *, callbacks=lambda data: [], epochs=4, raises=None):
    """Fits with Keras and with us, then both once more with Keras; returns the trainer."""

    def run(trained):
        keras.utils.set_random_seed(5)
        train, validation = make()
        model, used = getattr(trained, "model", trained), callbacks((train, validation))
        given = {"validation_data": validation, "shuffle": False, "verbose": 0}
        with pytest.raises(raises) if raises is not None else contextlib.nullcontext():
            trained.fit(train, callbacks=used, epochs=epochs, **given)
        first = dict(model.history.history), model.get_weights()
        again = model.fit(train, epochs=1, **given).history
        return first, again, [callback.seen for callback in used if isinstance(callback, Looks)]

    return assert_as_keras(run, build=lambda: sequential("sgd"))


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.by_default("in_a_tuple", "with_none")
def test_two_pipelines_of_one_shuffle(make):
    trainer = both(lambda: MAKES[make](shuffled()))
    assert not any("in step" in message for message in trainer.messages)


CHANGING = {
    "slows": lambda: halves(1),
    "stops": Stops,
    "loses patience": lambda: keras.callbacks.EarlyStopping(patience=0),
}


@pytest.mark.parametrize("callback", CHANGING)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.by_default("split-slows", "with_none-loses patience")
@pytest.mark.nightly
def test_two_pipelines_of_one_shuffle_where_the_training_goes_back_or_ends(make, callback):
    trainer = both(lambda: MAKES[make](shuffled()), callbacks=lambda data: [CHANGING[callback]()], epochs=6)
    assert any("in step" in message for message in trainer.messages)


def test_two_pipelines_of_one_shuffle_and_callbacks_that_neither_change_nor_end_the_training():
    def callbacks(_):
        rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1))
        return [rate, keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: print(epoch))]

    trainer = both(lambda: split(shuffled()), callbacks=callbacks)
    assert not any("in step" in message for message in trainer.messages)


def apart():
    return shuffled().batch(16), ROWS.shuffle(96, seed=7).batch(16)


@pytest.mark.nightly
@pytest.mark.parametrize("hook", ["on_epoch_end", "on_epoch_begin", "on_train_batch_begin", "on_test_end"])
@pytest.mark.by_default("on_epoch_end")
def test_a_callback_that_looks_at_the_training_data(hook):
    trainer = both(apart, callbacks=lambda data: [Looks(data[0], hook)])
    assert any("may look at data" in m or "must not run" in m for m in trainer.messages)


def request(data):
    return request_of(Trainer(sequential()), x=data, y=None)


def test_a_function_that_looks_at_the_training_data():
    def trained(lag):
        keras.utils.set_random_seed(5)
        data = shuffled().batch(16)
        function = EvaluationFunction(lambda model: model.evaluate(data.take(1), verbose=0)[0])
        policy = ValidationPolicy(overlap="always", max_lag=lag, functions={"drawn": function})
        trainer = Trainer(sequential("sgd"), validation=policy)
        trainer.fit(data, epochs=3, shuffle=False, verbose=0)
        return trainer

    in_step, ahead = trained(0), trained(1)
    assert_same_history(ahead.model.history.history, in_step.model.history.history)
    assert any("the evaluation function 'drawn' may look" in message for message in ahead.messages)


def test_a_callback_that_says_that_it_does_not_or_holds_other_data_is_run_ahead_of():
    asked = request(data := apart()[0])
    safe = Looks(data)
    safe.overlap_safe = True
    assert list(follow_others(asked, [Looks(data)]))
    others = [safe, Looks(ROWS.shuffle(9)), keras.callbacks.History()]
    assert not list(follow_others(asked, others))


@pytest.mark.nightly
@pytest.mark.parametrize("error", [None, KeyError("mine")])
@pytest.mark.by_default("error1")
def test_after_a_fit_that_ended_early_the_shuffles_stand_where_keras_leaves_them(error):
    both(apart, callbacks=lambda data: [Stops(error)], epochs=6, raises=error and KeyError)


class FollowsLoss(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.last = 0.0

    def on_epoch_end(self, epoch, logs=None):
        self.last = logs["val_loss"]


def adversarial(model, follows=None):
    return lambda rows: rows + 0.5 * np.sign(np.asarray(model(rows)))[:, :1]


def shifted(held, read):
    return lambda rows: rows + float(np.mean(read(held)))


# What the rows of Python's data are made from, by its name.
SOURCES = {
    "outputs": adversarial,
    "one layer": lambda model, follows: shifted(model.layers[0], lambda layer: layer.get_weights()[0]),
    "epochs": lambda model, follows: shifted(
        model, lambda of: 0.1 * len(of.history.epoch if of.history else ())
    ),
    "rate": lambda model, follows: shifted(model.optimizer, lambda optimizer: 5 * optimizer.learning_rate),
    "last loss": lambda model, follows: shifted(follows, lambda follows: follows.last),
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("source", "role"),
    # Of what each step changes Keras's own prefetch sees something else each time.
    [
        *((source, "validation") for source in SOURCES),
        *((s, "training") for s in ("epochs", "rate", "last loss")),
    ],
)
@pytest.mark.by_default("rate-training")
def test_python_that_makes_batches_from_what_the_training_changes(source, role):
    def arguments(model):
        follows = FollowsLoss()
        asking = Batches(3, SOURCES[source](model, follows))
        slows = keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10.0)
        data = (
            {"x": X[:48], "y": Y[:48], "validation_data": asking}
            if role == "validation"
            else {"x": asking, "validation_data": (X[:48], Y[:48])}
        )
        return data | {"callbacks": [slows, follows]}

    messages = fit_both(arguments, rtol=1e-4).messages
    assert any("in step" in message for message in messages)


def test_python_that_asks_another_model_is_drawn_beside_the_training():
    model, teacher = sequential("sgd"), sequential("sgd")
    feed = ArrayFeed(recognize(X, Y))
    assert is_drawn_in_order(feed, Batches(3, adversarial(model)), model)
    assert not is_drawn_in_order(feed, Batches(3, adversarial(teacher)), model)
    assert not is_drawn_in_order(feed, (X, Y), model)
    assert not is_drawn_in_order(feed, model.weights[0], model), "an array, which is read once"
    one = shuffled().batch(16)
    looking = Batches(3, lambda rows: rows + next(iter(one))[0][0, 0].numpy())
    assert is_drawn_in_order(IteratorFeed(recognize(one)), looking, model)


def test_python_that_reaches_more_than_is_looked_through_is_not_run_ahead_of(monkeypatch):
    monkeypatch.setattr(reach, "_MOST_OBJECTS", 100)
    rows = [[number] for number in range(1000)]
    data = Batches(3, lambda batch: batch + rows[0])
    (reason,) = follow_others(request(data), [keras.callbacks.History()])
    assert "can get hold of more objects than are looked through" in reason.sentence


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_python_that_asks_a_variable_which_only_the_step_writes_is_drawn_in_order(make):
    variable = make(0.0)
    handle = (variable.value if make is keras.Variable else variable).handle
    asked = ArrayFeed(recognize(X, Y)), Batches(3, lambda rows: rows + variable.numpy()), sequential("sgd")
    assert is_drawn_in_order(*asked, [types.SimpleNamespace(handle=handle)])
    assert not is_drawn_in_order(*asked)


SCALE = tf.Variable(2.0, name="scale")
NOISE = keras.layers.GaussianNoise(0.1, seed=3)
GENERATOR = tf.random.Generator.from_seed(3)


class Sets(keras.callbacks.Callback):
    """May set whatever it is given."""

    def __init__(self, held=None, hook=None):
        super().__init__()
        self.held = held
        if hook is not None:
            self.on_epoch_end = hook


class SetsGlobally(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        SCALE.assign_add(1.0)


def scaled():
    return ROWS.map(lambda x, y: (SCALE * x, y)).batch(8)


def noisy():
    return ROWS.batch(8).map(lambda x, y: (NOISE(x, training=True), y))


def drawn():
    return ROWS.map(lambda x, y: (x + GENERATOR.normal(tf.shape(x)), y)).batch(8)


def reset(epoch, *_):
    GENERATOR.reset_from_seed(7)
    return 0.1


SETTING = {
    "named": (scaled, SetsGlobally),
    "held": (scaled, lambda: Sets([{"of": (SCALE,)}], lambda epoch, logs=None: SCALE.assign_add(1.0))),
    "by a schedule": (drawn, lambda: keras.callbacks.LearningRateScheduler(reset)),
    "a seed": (
        noisy,
        lambda: Sets(NOISE, lambda epoch, logs=None: NOISE.seed_generator.state.assign([1, epoch])),
    ),
}


@pytest.mark.parametrize("case", SETTING)
@pytest.mark.by_default("a seed")
def test_a_callback_that_sets_what_the_pipeline_reads(case):
    data, make = SETTING[case]

    def arguments(_):
        SCALE.assign(2.0)
        GENERATOR.reset_from_seed(3)
        NOISE.seed_generator.state.assign([3, 0])
        return {"x": data(), "validation_data": (X, Y), "callbacks": [make()]}

    assert waits(fit_both(arguments)) == (data is not scaled)  # what it writes to


def test_a_callback_that_cannot_get_hold_of_what_the_pipeline_writes_to_is_run_ahead_of():
    asked = request(noisy())
    assert not list(follow_others(asked, [Sets(SCALE)]))
    for held in (NOISE, NOISE.seed_generator, NOISE.seed_generator.state, keras.Sequential([NOISE])):
        assert list(follow_others(asked, [Sets([held])]))
    assert list(follow_others(asked, [Sets(noisy())]))


def test_a_table_that_a_callback_may_change_is_waited_for():
    table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 0)
    asked = request(ROWS.map(lambda x, y: (x, table.lookup(tf.cast(y, tf.int32)))).batch(8))
    (reason,) = follow_others(asked, [Sets()])
    assert "uses what a callback may set" in str(reason)
    assert not list(follow_others(asked, [keras.callbacks.EarlyStopping()]))
