"""Beside which callbacks a training runs ahead: on arrays, and on data that Python makes."""

import contextlib
import itertools

import keras
import pytest
from tqdm.keras import TqdmCallback

from overlap_train import EpochOnly
from tests.callbacks import people
from tests.fit.test_build import Fit
from tests.networks import arrays

kc = keras.callbacks
X, Y = arrays()


def batches():
    for start in itertools.cycle(range(0, len(X), 32)):
        yield X[start : start + 32], Y[start : start + 32]


DATA = {"arrays": {}, "generator": {"x": batches(), "y": None, "steps_per_epoch": 3, "batch_size": None}}
# Of each, whether it runs ahead on arrays and on a generator, whose batches no user's callback may change.
VERDICTS = {
    "none": (lambda folder: None, True, True),
    "EarlyStopping": (lambda folder: kc.EarlyStopping(patience=2), True, True),
    "ModelCheckpoint": (lambda folder: kc.ModelCheckpoint(folder / "m.keras"), True, True),
    "ModelCheckpoint, steps": (
        lambda folder: kc.ModelCheckpoint(folder / "m.keras", save_freq=5),
        False,
        False,
    ),
    "ReduceLROnPlateau": (lambda folder: kc.ReduceLROnPlateau(), True, True),
    "LearningRateScheduler": (lambda folder: kc.LearningRateScheduler(lambda epoch: 0.9**epoch), True, True),
    "CSVLogger": (lambda folder: kc.CSVLogger(folder / "log.csv"), True, True),
    "TensorBoard": (lambda folder: kc.TensorBoard(folder), True, True),
    "TensorBoard, batches": (lambda folder: kc.TensorBoard(folder, update_freq=2), False, False),
    "TerminateOnNaN": (lambda folder: kc.TerminateOnNaN(), True, True),
    "LambdaCallback": (lambda folder: kc.LambdaCallback(on_epoch_end=lambda e, logs: None), True, False),
    "tqdm": (lambda folder: TqdmCallback(disable=True), True, True),
    "tqdm, batches": (lambda folder: TqdmCallback(verbose=2, disable=True), True, True),
    "a list of losses": (people.AHEAD["LossHistory"], True, False),
    "a timer of epochs": (people.AHEAD["EpochTimes"], True, False),
    "a print each n batches": (people.AHEAD["PrintsEvery"], True, False),
    "predictions after an epoch": (people.AHEAD["Confusion"], True, False),
    "a stop at a loss": (people.AHEAD["StopsAtAccuracy"], True, False),
    "a rate for an epoch": (people.AHEAD["RateByEpoch"], True, False),
    "a rate for each batch": (people.IN_STEP["WarmUp"], False, False),
    "weights after each batch": (people.IN_STEP["Gradients"], False, False),
    "EpochOnly of those": (lambda folder: EpochOnly(people.IN_STEP["Gradients"](folder)), True, False),
}


@pytest.mark.parametrize("data", DATA)
def test_a_training_runs_ahead_or_says_why_not(data, tmp_path):
    found = {}
    with contextlib.ExitStack() as resources:
        one = Fit(resources, overlap="always", **DATA[data])
        kept = one.builder.build().training
        for name, (make, *_) in VERDICTS.items():
            callback = make(tmp_path)
            one.builder._callbacks.callbacks[:] = [] if callback is None else [callback]
            parts = one.builder.build(kept)
            found[name] = parts.deliveries.backlog.max_lag > 0
            assert found[name] is (not parts.reasons)
    assert found == {name: ahead[list(DATA).index(data)] for name, (_, *ahead) in VERDICTS.items()}
