"""Callbacks as people write them see what they see under Keras, and change what they change there."""

import random
import re

import keras
import numpy as np
import pytest

from overlap_train import Trainer, ValidationPolicy
from tests.callbacks import people
from tests.networks import VALIDATION_ROWS, arrays, assert_same_history, assert_same_weights
from tests.pools import sequential

X, Y = arrays(64)
ARGUMENTS = dict(
    batch_size=16, epochs=5, verbose=0, shuffle=False, validation_data=arrays(VALIDATION_ROWS, 1)
)
# Neither Keras's own nor what differs from run to run by its nature.
LEFT_OUT = {"_model", "params", "start", "times", "drawn", "before", "path", "filepath"}
NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
CHANGING = (
    *("RateByEpoch", "WarmUpByEpoch", "StopsAtAccuracy", "OwnPlateau", "BestWeights"),
    "EvaluatesAsAnEpochBegins",
)
WATCHING = tuple(name for name in people.AHEAD if name not in CHANGING)
# Those that change nothing are called in one fit, and with each that does.
GROUPS = {"watching": WATCHING}
GROUPS |= {name: (name, *WATCHING[::4]) for name in CHANGING}
GROUPS |= {name: (name, *WATCHING[1::9]) for name in people.IN_STEP}
EVERYBODY = {**people.AHEAD, **people.IN_STEP}


def run(names, folder, fit):
    """Returns the model, and what the callbacks hold and have written."""
    people.LOSSES.clear()
    random.seed(3)
    callbacks = []
    for name in names:
        (folder / name).mkdir(parents=True)
        callbacks.append(EVERYBODY[name](folder / name))
    model = sequential(keras.optimizers.SGD(0.1))
    fit(model, callbacks=callbacks)
    files = [p for p in sorted(folder.rglob("*")) if p.suffix in (".txt", ".csv", ".json")]
    held = {
        name: {key: value for key, value in vars(callback).items() if key not in LEFT_OUT}
        for name, callback in zip(names, callbacks, strict=True)
    }
    written = {str(path.relative_to(folder)): path.read_text() for path in files}
    return model, {**held, **written, "global": list(people.LOSSES), "next draw": random.random()}


def by_keras(model, **more):
    model.fit(X, Y, **ARGUMENTS, **more)


def assert_same(actual, expected, where):
    if isinstance(expected, dict):
        assert list(actual) == list(expected), where
        for key, value in expected.items():
            assert_same(actual[key], value, f"{where} {key}")
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, where)
    elif isinstance(expected, (int, float, np.ndarray, np.generic)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5, err_msg=where)
    elif isinstance(expected, str):
        assert NUMBERS.sub("#", actual) == NUMBERS.sub("#", expected), where
        numbers = [[float(number) for number in NUMBERS.findall(text)] for text in (actual, expected)]
        np.testing.assert_allclose(*numbers, rtol=1e-3, atol=2e-3, err_msg=where)  # as they are rounded


@pytest.mark.parametrize("lag", [1, 2])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.by_default("WarmUp-1")
def test_a_fit_is_that_of_keras_and_runs_ahead_where_it_can(group, lag, tmp_path, capsys):
    expected, kept = run(GROUPS[group], tmp_path / "keras", by_keras)
    printed, trainers = capsys.readouterr().out, []

    def by_ours(model, **more):
        trainers.append(Trainer(model, validation=ValidationPolicy(max_lag=lag, overlap="always")))
        trainers[0].fit(X, Y, **ARGUMENTS, **more)

    model, ours = run(GROUPS[group], tmp_path / "ours", by_ours)
    assert_same_history(model.history.history, expected.history.history)
    assert_same_weights(model, expected)
    assert_same(capsys.readouterr().out, printed, "printed")
    assert_same(ours, kept, group)
    in_step = any(text.startswith("validating in step with the training:") for text in trainers[0].messages)
    assert in_step == (group in people.IN_STEP), trainers[0].messages


@pytest.mark.parametrize("validation", [None, arrays(VALIDATION_ROWS, 1)])
def test_the_line_of_an_epoch_shows_what_callbacks_put_into_the_logs(validation, capsys):
    lines = []
    for by in ("keras", "ours"):
        model, adds = sequential(keras.optimizers.SGD(0.1)), keras.callbacks.LambdaCallback()
        adds.on_epoch_end = lambda epoch, logs: print("ended") or logs.update(f1=0.25, seen=epoch + 1.0)
        fit = model.fit if by == "keras" else Trainer(model).fit
        fit(X, Y, epochs=2, validation_data=validation, callbacks=[adds], verbose=2)
        shown = (line for line in capsys.readouterr().out.splitlines() if re.search("ended|/step", line))
        lines.append([re.sub(r"(\d+m?u?s\S*|(loss|accuracy): [\d.]+)", "", line) for line in shown])
    assert lines[1] == lines[0]
    assert lines[0][-1].endswith("f1: 0.2500 - seen: 2.0000")
