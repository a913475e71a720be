"""What `tf.data` caches is that of the first pass, as by Keras, in memory and in a file, of one role or both.

So is a snapshot.

Keras only prefetches, so that it depends on time whether a short pass gets to the end. Eager steps take long
enough.
"""

from pathlib import Path

import pytest
import tensorflow as tf

from overlap_train import Trainer, ValidationPolicy
from tests.data.test_pipeline import forbidden
from tests.networks import arrays, assert_alike
from tests.seeds import set_random_seed
from tests.whole_fits.comparing import AHEAD, IN_STEP, halves, noisy, slices, waits
from tests.whole_fits.test_lengths_of_passes import network

X, Y = arrays(96)
CONTINUES = ValidationPolicy(on_change="continue")


def rows(count=96):
    return slices(X[:count], Y[:count])


def unknown():
    """Return shuffled rows, of which TensorFlow does not know how many there are."""
    return rows(80).filter(lambda x, y: y >= 0).shuffle(80)


def asserted(batches):
    return batches.apply(tf.data.experimental.assert_cardinality(5))


def drawn(count=80):
    return rows(count).map(noisy(tf.random.Generator.from_seed(5)))


def split(file):
    base = rows().cache(file)
    return base.skip(32).batch(16), base.take(32).batch(16)


def by_batches(file):
    base = rows().batch(16).cache(file)
    return base.skip(2), base.take(2)


def of_unknown_length(file):
    base = rows().filter(lambda x, y: x[0] < 1.0).cache(file)
    return base.skip(32).batch(16), base.take(32).batch(16)


def alone(make):
    return lambda file: (make(file), (X, Y))


def twice(make):
    return lambda file: (make(""), make(""))


# Of a file each returns the training and the validation data.
SOURCES = {
    "batches": twice(lambda _: asserted(unknown().batch(16).cache())),
    "rows": twice(lambda _: asserted(unknown().cache().batch(16))),
    "prefetched": twice(lambda _: asserted(unknown().batch(16).cache()).prefetch(2)),
    "file of rows": alone(lambda file: drawn().cache(file).batch(16)),
    "file of batches": alone(lambda file: drawn().batch(16).cache(file)),
    "file, a part of a batch": alone(lambda file: drawn(75).cache(file).batch(16)),
    "file, mapped": alone(lambda file: drawn().cache(file).batch(16).map(lambda x, y: (2 * x, y), 2)),
    "file, forbidden": alone(lambda file: forbidden(drawn().cache(file).batch(16))),
    "snapshot": alone(lambda file: rows(80).shuffle(80).batch(16).snapshot(file)),
    "split": split,
    "split batches": by_batches,
    "split of unknown length": of_unknown_length,
    "one name": lambda file: (rows().cache(file).batch(16), (rows().cache(file).batch(16),)),
}


# Behind one that changes the training it goes "back": batches are kept and come again.
POLICIES = {"ahead": AHEAD, "in step": IN_STEP, "continue": CONTINUES, "back": AHEAD}


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.by_default("snapshot-ahead", "rows-back", "file of batches-back")
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_it_is_made_by_the_first_pass_and_read_by_the_others(source, policy, tmp_path):
    found = []
    for ours in (False, True):
        model = network(run_eagerly=not ours)
        set_random_seed(3)
        (folder := tmp_path / str(ours)).mkdir()
        trainer = Trainer(model, validation=POLICIES[policy])
        train, validation = SOURCES[source](str(folder / "cache"))
        fit = trainer.fit if ours else model.fit
        given = {"validation_data": validation, "verbose": 0, "callbacks": [halves(1)] * (policy == "back")}
        histories = [dict(fit(train, **given, epochs=4).history)]
        histories.append(fit(train, **given, epochs=2, validation_freq=2).history)  # finds the whole file
        found.append((histories, sorted(each.name for each in Path(folder).iterdir()), model.get_weights()))
    assert_alike(found[1], found[0])
    assert policy != "ahead" or not waits(trainer)


def test_a_file_of_its_own_is_no_hindrance(tmp_path):
    train, _ = split(str(tmp_path / "training"))
    _, validation = split(str(tmp_path / "validation"))
    trainer = Trainer(network(), validation=AHEAD)
    trainer.fit(train, validation_data=validation, epochs=2, verbose=0)
    assert not waits(trainer)
