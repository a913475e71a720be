"""Random runs, each with Keras and with us: contracts C2 to C5 over what users combine.

The models are stock ones and those of `real_code.py`: state outside the model, losses, metrics and optimizers
of one's own, nested and vector logs, eager steps, `steps_per_execution`. `scripts/nightly.sh` runs 300 of
them, the default suite 6. A run that is validated in step must say why.
"""

import tempfile
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from overlap_train import ValidationPolicy
from tests.differential import assert_same_run, run_keras, run_ours
from tests.networks import arrays, functional, functional_data, sequential, subclassed
from tests.real_callbacks import CountBatches, ReadMetrics, TurnKnob
from tests.real_code import BUILDERS as REAL

pytestmark = [
    pytest.mark.filterwarnings("ignore:.* conditioned on metric"),  # of epochs without a validation
    pytest.mark.filterwarnings("ignore:Can save best model only"),
]
kc = keras.callbacks

BUILDERS = {
    "sequential": lambda: sequential(keras.optimizers.SGD(0.3, momentum=0.9)),
    "adam": lambda: sequential("adam"),
    "auc": lambda: sequential(
        "rmsprop", metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)]
    ),
    "functional": functional,
    "subclassed": lambda: subclassed(keras.optimizers.SGD(0.1)),
}
ALL = BUILDERS | REAL

callback_strategies = {
    "stop": st.builds(
        lambda patience, restore, delta: (
            lambda d: kc.EarlyStopping(
                "val_loss", patience=patience, restore_best_weights=restore, min_delta=delta
            )
        ),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([0.0, 0.01, 0.1]),
    ),
    "plateau": st.builds(
        lambda factor, patience, cooldown: (
            lambda d: kc.ReduceLROnPlateau(
                "val_loss", factor=factor, patience=patience, cooldown=cooldown, min_delta=0.02
            )
        ),
        st.sampled_from([0.1, 0.5]),
        st.integers(0, 1),
        st.integers(0, 1),
    ),
    "checkpoint": st.builds(
        lambda best, mode: (
            lambda d: kc.ModelCheckpoint(
                d / "{epoch}.weights.h5",
                monitor="val_loss",
                mode=mode,
                save_best_only=best,
                save_weights_only=True,
            )
        ),
        st.booleans(),
        st.sampled_from(["min", "max"]),
    ),
    "schedule": st.builds(
        lambda factor: lambda d: kc.LearningRateScheduler(lambda epoch, lr: lr * factor),
        st.sampled_from([0.5, 0.9, 1.0]),
    ),
    "csv": st.just(lambda d: kc.CSVLogger(str(d / "log.csv"))),
    "nan": st.just(lambda d: kc.TerminateOnNaN()),
    "lambda": st.just(lambda d: kc.LambdaCallback(on_epoch_end=lambda epoch, logs: None)),
    "knob": st.just(lambda d: TurnKnob()),
    "metrics": st.just(lambda d: ReadMetrics(d / "metrics.notes")),
    "batches": st.just(lambda d: CountBatches(d / "batches.notes")),
}


@st.composite
def runs(draw, builders=BUILDERS):
    rows = draw(st.integers(17, 140))
    return {
        "build": draw(st.sampled_from(sorted(builders))),
        "rows": rows,
        "validation_rows": draw(st.integers(1, 60)),
        "source": draw(st.sampled_from(["arrays", "arrays", "dataset", "repeated"])),
        "shuffle": draw(st.sampled_from([True, False, "batch"])),
        "batch_size": draw(st.integers(5, 40)),
        "epochs": draw(st.integers(1, 6)),
        "steps_per_epoch": draw(st.integers(1, 6)),
        "validation_freq": draw(st.sampled_from([1, 1, 1, 2])),
        "callbacks": [
            draw(callback_strategies[name])
            for name in draw(st.lists(st.sampled_from(sorted(callback_strategies)), unique=True, max_size=4))
        ],
        "policy": ValidationPolicy(
            workers=draw(st.integers(1, 7)), max_lag=draw(st.integers(0, 3)), overlap="always"
        ),
    }


def fit_arguments(run):
    """Returns positional data and keyword arguments, made anew for each of the two fits."""
    keras.utils.set_random_seed(7)  # TensorFlow mixes its global seed into that of a shuffle
    make = functional_data if run["build"] == "functional" else arrays
    x, y = make(run["rows"])
    arguments = dict(
        epochs=run["epochs"],
        validation_data=make(run["validation_rows"], 1),
        validation_freq=run["validation_freq"],
        validation_batch_size=run["batch_size"],
    )
    if run["source"] == "arrays":
        return (x, y), arguments | dict(batch_size=run["batch_size"], shuffle=run["shuffle"])
    dataset = tf.data.Dataset.from_tensor_slices((x, y))
    if run["shuffle"]:
        dataset = dataset.shuffle(50, seed=3)
    dataset = dataset.batch(run["batch_size"])
    if run["source"] == "repeated":
        return (dataset.repeat(),), arguments | dict(steps_per_epoch=run["steps_per_epoch"], shuffle=False)
    return (dataset,), arguments | dict(shuffle=False)


def check(run, builders=BUILDERS, place=lambda build: build):
    """Compares a run with Keras's; `place` says where our model is made, such as in a strategy's scope."""
    note(str({k: v for k, v in run.items() if k != "callbacks"}))
    build = builders[run["build"]]

    def callbacks(directory):
        return [make(directory) for make in run["callbacks"]]

    with tempfile.TemporaryDirectory() as a, tempfile.TemporaryDirectory() as b:
        data, arguments = fit_arguments(run)
        expected = run_keras(build, callbacks, Path(a), data, **arguments)
        data, arguments = fit_arguments(run)
        actual, trainer = run_ours(place(build), callbacks, Path(b), data, run["policy"], **arguments)
        # Rounding grows with the steps where learning is fast; 1e-5 is of the values, at their scale.
        assert_same_run(actual, expected, rtol=1e-5)
        if len(expected.epochs) < run["epochs"]:
            assert trainer.ended == "stopped"


# Shrinking a failed run takes hours; the run as it was drawn is printed.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
SETTINGS = dict(
    phases=PHASES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.mark.timeout(600)
@settings(max_examples=2, **SETTINGS)
@given(run=runs(ALL))
def test_any_run_equals_keras(run):
    check(run, ALL)


@pytest.mark.nightly
@pytest.mark.timeout(5400)
@settings(max_examples=80, **(SETTINGS | dict(derandomize=False)))
@given(run=runs(ALL))
def test_any_run_equals_keras_nightly(run):
    check(run, ALL)
