"""Pipelines whose functions draw, count, or read what validations and callbacks write, in Keras's order."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.networks import Outcome, assert_same_history, assert_same_outcome
from tests.pools import sequential
from tests.whole_fits.comparing import (
    AHEAD,
    IN_STEP,
    SHORT_CALLS,
    VALIDATION,
    AtEpoch,
    X,
    Y,
    assert_as_keras,
    counted,
    goes_back,
    in_turn,
    killed_and_resumed,
    layered,
    noisy,
    slices,
    waits,
)

Dataset = tf.data.Dataset
POLICIES = {"ahead": AHEAD, "in step": IN_STEP, "by default": ValidationPolicy()}


def shuffled():
    return slices().shuffle(len(X), seed=3)


def held():
    return slices(*VALIDATION)


def within(dataset, rows=X.shape[0]):
    """Return a pipeline that captures a dataset, of which it says how many batches there are."""
    known = tf.data.experimental.assert_cardinality(-(-rows // 4))
    return Dataset.range(1).flat_map(lambda i: dataset).batch(4).apply(known)


def generator():
    return tf.random.Generator.from_seed(5)


# What a pipeline draws by itself; each function returns arguments of `fit`.


def by_layers():
    layers = keras.layers.GaussianNoise(0.5, seed=3), keras.layers.Dropout(0.3, seed=4)
    return {"x": shuffled().batch(4).map(layered(*layers)).prefetch(16)}


def by_a_generator():
    return {"x": shuffled().map(noisy(generator())).batch(4).prefetch(16)}


def by_a_count():
    return {"x": shuffled().batch(4).map(counted(tf.Variable(0))).prefetch(16)}


def without_an_end():
    return {"x": shuffled().repeat().batch(4).map(layered()).prefetch(4), "steps_per_epoch": 30}


def counted_in_steps():  # each epoch ends with a pass, and begins the next
    return by_a_generator() | {"steps_per_epoch": -(-len(X) // 4)}


DRAWN = [by_layers, by_a_generator, by_a_count, without_an_end, counted_in_steps]

# What functions of pipelines draw from other datasets, iterators or global generators.


def calls(draw):
    return {"callbacks": [AtEpoch(lambda *_: draw())]}


def a_captured_shuffle():
    # Not ended early: the order that was drawn ahead by then is lost, as of all that draw late.
    return {"x": within(slices().shuffle(len(X), seed=3)), "callbacks": halving()[:1]}


def a_captured_generator():
    return {"x": within(slices().map(noisy(generator())))}


def a_variable_that_a_callback_sets():
    scale = tf.Variable(1.0)
    return {"x": within(slices().map(lambda x, y: (scale * x, y))), **calls(lambda: scale.assign_add(1.0))}


def a_validation_that_draws():
    data = within(held().map(noisy(generator())), len(VALIDATION[1]))
    return {"x": X, "y": Y, "validation_data": data, "callbacks": []}


def one_generator_for_both():
    draws = noisy(generator())
    data = within(held().map(draws), len(VALIDATION[1]))
    return {"x": slices().map(draws).batch(4), "validation_data": data, "callbacks": []}


def the_global_generator():
    tf.random.set_global_generator(tf.random.Generator.from_seed(7))
    data = slices().map(noisy(tf.random.get_global_generator())).batch(4)
    return {"x": data, **calls(lambda: tf.random.get_global_generator().normal([3]))}


def the_global_seeds_of_keras():
    data = slices().batch(4).map(lambda x, y: (x + keras.random.normal((x.shape[1],)), y))
    return {"x": data, **calls(lambda: keras.random.normal((3,)))}


def a_cache_of_draws():
    return {"x": slices().map(noisy(generator())).cache().batch(4)}


def sevenths():
    return iter(Dataset.random(seed=3).map(lambda i: tf.cast(i % 7, X.dtype)))


def added(dataset, iterator):
    return dataset.batch(4).map(lambda x, y: (x + next(iterator), y))


def one_iterator_for_both():
    iterator = sevenths()
    return {"x": added(slices(), iterator), "validation_data": added(held(), iterator), "callbacks": []}


def one_choice_for_both():  # which no stage names as its input
    which = Dataset.range(2).shuffle(2, seed=3).repeat(len(X))
    rows = Dataset.choose_from_datasets([slices(), slices()], which)
    data = rows.apply(tf.data.experimental.assert_cardinality(2 * len(X))).batch(7)
    return {"x": data, "validation_data": data, "callbacks": []}


def one_old_shuffle_for_both():  # whose stages are wrapped up, and say nothing of shuffling anew
    data = tf.compat.v1.data.Dataset.from_tensor_slices((X, Y)).shuffle(len(X), 2).batch(7)
    return {"x": data, "validation_data": data, "validation_steps": 2, "callbacks": []}


def an_iterator_and_rollbacks():
    return {"x": added(slices(), sevenths())}


CAPTURED = [a_captured_shuffle, a_captured_generator, a_variable_that_a_callback_sets, one_choice_for_both]
CAPTURED += [a_validation_that_draws, one_generator_for_both, one_iterator_for_both, one_old_shuffle_for_both]
CAPTURED += [an_iterator_and_rollbacks, the_global_generator, the_global_seeds_of_keras, a_cache_of_draws]


def halving():
    return [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=3, min_delta=10.0),
    ]


def keeps_the_best():
    return keras.callbacks.EarlyStopping("val_loss", patience=9, restore_best_weights=True)


def looks():
    return AtEpoch(lambda callback, epoch: callback.model.get_weights())


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", [*DRAWN, *CAPTURED])
def test_a_rollback_an_early_end_and_the_next_fit_draw_as_by_keras(program, policy):
    def run(trained):
        keras.utils.set_random_seed(3)
        given = {"validation_data": VALIDATION, "verbose": 0, "callbacks": halving(), **program()}
        first = dict(trained.fit(**given, epochs=8).history)
        if "steps_per_epoch" in given:  # of one that goes on Keras has fetched any number ahead when it ends
            return first, None
        return first, trained.fit(**given | {"epochs": 2, "callbacks": []})

    assert_as_keras(run, POLICIES[policy], execution=SHORT_CALLS)


@functools.cache
def kept_by_keras(program):
    model = sequential()
    model.fit(**program(), epochs=4, validation_data=VALIDATION, callbacks=[keeps_the_best()], verbose=0)
    return Outcome.of(model)


@pytest.mark.nightly
@pytest.mark.parametrize("callback", [keeps_the_best, looks])
@pytest.mark.parametrize("program", DRAWN)
def test_callbacks_that_look_at_the_model_leave_alone_what_the_pipeline_draws(program, callback):
    trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
    trainer.fit(**program(), epochs=4, validation_data=VALIDATION, callbacks=[callback()], verbose=0)
    assert not waits(trainer)
    assert not goes_back(trainer)
    assert_same_outcome(trainer.model, kept_by_keras(program))


@pytest.mark.nightly
@pytest.mark.parametrize("program", DRAWN)
def test_a_checkpoint_holds_what_had_been_drawn_by_its_epoch(program, tmp_path):
    def fit(kills):
        trainer = Trainer(sequential(), validation=AHEAD, execution=SHORT_CALLS)
        given = {"validation_data": VALIDATION, "callbacks": [keeps_the_best(), kills], "verbose": 0}
        trainer.fit(**program(), **given, epochs=4, resume=tmp_path)
        return trainer

    trainer = killed_and_resumed(fit, epoch=2)
    assert "resumed after epoch 2" in trainer.messages
    assert_same_outcome(trainer.model, kept_by_keras(program))


class Both(keras.Model):
    """Has a layer that draws in the data's pipeline and in itself."""

    def __init__(self):
        super().__init__()
        self.noise, self.dense = keras.layers.GaussianNoise(0.5), keras.layers.Dense(4)

    def call(self, x, training=False):
        return self.dense(self.noise(x, training=training))


def test_a_layer_that_draws_for_the_data_and_the_model_is_in_step():
    model = Both()
    model.compile("sgd", "mse")
    data = shuffled().batch(4).map(lambda x, y: (model.noise(x, training=True), x[:, :4]))
    trainer = Trainer(model, validation=AHEAD)
    trainer.fit(data, epochs=1, validation_data=(X, X[:, :4]), verbose=0)
    assert any("writes to variables of the model" in message for message in trainer.messages)


def scaled_by_a_file(path):
    return held().batch(16).map(lambda x, y: (x * tf.strings.to_number(tf.io.read_file(path)), y))


def lines_of_a_file(path):
    lines = tf.data.TextLineDataset(path).map(lambda line: tf.strings.to_number(line)).repeat()
    return tf.data.Dataset.zip(held().batch(16), lines).map(lambda rows, scale: (rows[0] * scale, rows[1]))


class Notes(keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path, self.count = path, 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1
        with open(self.path, "w") as file:
            file.write(f"{self.count}")


@pytest.mark.parametrize("read", [scaled_by_a_file, lines_of_a_file])
@pytest.mark.parametrize("write", ["epochs", "batches"])
def test_a_validation_reads_what_callbacks_write_to_files_as_under_keras(read, write, tmp_path):
    path = str(tmp_path / "scale")

    def run(trained):
        (tmp_path / "scale").write_text("1")
        rises = AtEpoch(lambda callback, epoch: (tmp_path / "scale").write_text(f"{epoch + 2}"))
        callbacks = [rises if write == "epochs" else Notes(path)]
        trained.fit(
            X, Y, epochs=4, validation_data=read(path), validation_steps=3, callbacks=callbacks, verbose=0
        )

    assert not waits(assert_as_keras(run, AHEAD, IN_STEP, execution=SHORT_CALLS))


# What the validation or a callback writes to as well: both sets of data, what a callback does, the variable.


def reset_by_a_callback():
    count = tf.Variable(0)
    return slices().batch(16).map(counted(count)), VALIDATION, lambda *_: count.assign(0), count


def a_generator_of_both():
    draws = noisy(drawn := generator())
    data = slices().batch(16).shuffle(9, seed=2).map(draws)
    return data, held().batch(16).map(draws), lambda *_: None, drawn.state


def a_layer_of_both():
    noise = keras.layers.GaussianNoise(0.5, seed=3)
    data, validation = (rows.batch(16).map(layered(noise)) for rows in (slices(), held()))
    return data, validation, lambda *_: None, noise.seed_generator.state.value


def an_assertion_that_fails():
    """The validation draws until it has counted to eight."""
    drawn, count = generator(), tf.Variable(0)

    def fails_once(x, y):
        with tf.control_dependencies([tf.debugging.assert_none_equal(count.assign_add(1), 8)]):
            return x + drawn.normal(tf.shape(x)), y

    alone = tf.data.Options()
    alone.experimental_optimization.inject_prefetch = False
    data = slices().batch(16).map(noisy(drawn))
    return data, held().batch(16).map(fails_once).with_options(alone), lambda *_: None, drawn.state


WRITTEN = [reset_by_a_callback, a_generator_of_both, a_layer_of_both]


class Failed(RuntimeError):
    """What a callback raises."""


def raising(act):
    def acts_and_raises(callback, epoch):
        act()
        if epoch == 1:
            raise Failed

    return AtEpoch(acts_and_raises)


@pytest.mark.parametrize("make", [*WRITTEN, an_assertion_that_fails])
@pytest.mark.by_default("an_assertion_that_fails")
def test_what_was_written_before_a_callback_or_a_validation_raised_is_that_of_keras(make):
    def run(trained):
        data, validation, act, variable = make()
        with pytest.raises((Failed, tf.errors.InvalidArgumentError)):
            trained.fit(data, epochs=4, validation_data=validation, callbacks=[raising(act)], verbose=0)
        left = np.array(variable)
        return left, trained.fit(data, epochs=2, validation_data=validation, verbose=0)

    (expected, then), (actual, ours_then), _ = in_turn(run, execution=SHORT_CALLS)
    np.testing.assert_array_equal(actual, expected)
    assert_same_history(ours_then.history, then.history)
