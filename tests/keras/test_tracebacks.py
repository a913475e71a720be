"""What is raised shows the user's lines; Keras's own `fit` is the measure."""

import gc
import traceback
import weakref

import keras
import pytest

from overlap_train import Trainer, ValidationPolicy
from overlap_train._keras.tracebacks import filtered
from overlap_train.errors import ValidationWorkerError
from tests.networks import arrays, crossentropy
from tests.pools import sequential

X, Y = arrays(32)


class Breaks(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise LookupError("in a callback")


def untraced():
    """Return a model whose validation has not been traced: a second trace raises something else in Keras."""
    model = sequential()
    model.compile("sgd", crossentropy())
    return model


def files_of(error):
    return [frame.filename.rsplit("/", 1)[-1] for frame in traceback.extract_tb(error.__traceback__)]


def of_users(error):
    return [file for file in files_of(error) if file.startswith("test_")]


def raised(call, *args, **kwargs):
    with pytest.raises(Exception) as info:
        call(*args, **kwargs)
    return info.value


@pytest.mark.by_default("lengths")
@pytest.mark.parametrize(
    "arguments",
    [{"validation_data": (X[:, :5], Y)}, {"callbacks": [Breaks()]}, {"sample_weight": Y[:3]}],
    ids=["shapes", "callback", "lengths"],
)
def test_a_fit_shows_the_lines_that_keras_shows(arguments):
    theirs = raised(untraced().fit, X, Y, verbose=0, **arguments)
    ours = raised(Trainer(untraced()).fit, X, Y, verbose=0, **arguments)
    assert type(ours) is type(theirs)
    assert of_users(ours) == of_users(theirs)
    assert len(files_of(ours)) <= 4, "the call, the decorator, the user's hook and where it was raised"


def test_all_is_shown_where_keras_is_asked_for_it():
    keras.config.disable_traceback_filtering()
    try:
        files = files_of(raised(Trainer(sequential()).fit, X, Y[:3], verbose=0))
    finally:
        keras.config.enable_traceback_filtering()
    assert {"trainer.py", "request.py"} <= set(files)


def test_the_cause_of_a_failed_validation_stays():
    def breaks(model):
        return {}["nothing"]

    policy = ValidationPolicy(functions={"breaks": breaks})
    error = raised(Trainer(sequential(), validation=policy).fit, X, Y, verbose=0)
    assert isinstance(error, ValidationWorkerError)
    assert isinstance(error.__cause__, KeyError)
    assert files_of(error.__cause__)[-1] == "test_tracebacks.py"


def test_no_frame_holds_what_was_raised():
    class Own(Exception):
        """One that can be looked for."""

    @filtered
    def fails():
        raise Own

    gc.disable()
    try:
        fails()
    except Own as error:
        raised_before = weakref.ref(error)
    finally:
        gc.enable()
    assert raised_before() is None
