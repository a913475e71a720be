"""A first signal ends a fit in order, a second one at once."""

import contextlib
import os
import signal
import threading
from unittest.mock import MagicMock

import keras
import pytest

from overlap_train import Trainer, install, routed, uninstall
from overlap_train._fit import interrupts
from overlap_train._fit.deliveries import Deliveries
from overlap_train._validation.step_validations import StepValidations
from overlap_train.errors import ValidationWorkerError
from overlap_train.records import StepValidation
from tests.networks import arrays
from tests.pools import sequential

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
VALIDATION = arrays(40, 1)


class Signal(keras.callbacks.Callback):
    """Sends signals to this process at the end of an epoch."""

    def __init__(self, epoch, *signals):
        super().__init__()
        self.epoch, self.signals = epoch, signals

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            for number in self.signals:
                os.kill(os.getpid(), number)


@pytest.fixture
def handlers():
    """Python's own handlers, also where Ctrl-C is ignored in the background or another test has left some."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def fit(model, *callbacks, epochs=50, **arguments):
    """Fits a model, or with a trainer, and calls callbacks."""
    data = dict(validation_data=VALIDATION, callbacks=list(callbacks), verbose=0)
    return model.fit(*arrays(), epochs=epochs, **data, **arguments)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_returns_the_partial_history(number, handlers):
    before = signal.getsignal(number)
    trainer = Trainer(sequential())
    history = fit(trainer, Signal(1, number))
    assert trainer.ended == history.ended == f"interrupted by {number.name}"
    assert history.epoch[:2] == [0, 1]
    assert 2 <= len(history.epoch) < 50
    assert any("delivering what is finished within 5 s; a second" in message for message in trainer.messages)
    assert len(history.history["val_loss"]) == len(history.epoch)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(
    ("number", "together_s", "ended"),
    [
        pytest.param(signal.SIGINT, 60.0, "failed", id="two Ctrl-C"),
        pytest.param(signal.SIGTERM, 60.0, "interrupted by SIGTERM", id="two SIGTERM at once are one"),
        pytest.param(signal.SIGTERM, 0.0, "failed", id="one SIGTERM later"),
    ],
)
def test_a_second_signal_ends_at_once(number, together_s, ended, handlers, monkeypatch):
    monkeypatch.setattr(interrupts, "_TOGETHER_S", together_s)
    trainer = Trainer(sequential())
    at_once = pytest.raises(KeyboardInterrupt, match=f"{number.name}, then {number.name}")
    with at_once if ended == "failed" else contextlib.nullcontext():
        fit(trainer, Signal(0, number, number))
    assert trainer.ended == ended


def test_results_from_inside_epochs_behind_one_that_is_given_up_are_not_delivered():
    deliveries, delivered = object.__new__(Deliveries), []
    results = [StepValidation(0, 3, {}), StepValidation(1, 6, {})]
    deliveries.stepwise = StepValidations(None, 3, delivered.append, _finished=results)
    deliveries.backlog = MagicMock(__len__=lambda self: 1)
    deliveries.backlog.oldest.snapshot.step = 4
    deliveries.give_up()
    deliveries.stepwise.release(None)
    assert delivered == results[:1]


def test_an_error_inside_an_epoch_comes_when_no_rollback_undoes_it_and_none_takes_it_back():
    deliveries, suite = object.__new__(Deliveries), MagicMock()
    suite.collect.side_effect = error = ValidationWorkerError("failed", epoch=1, shard=0)
    deliveries.stepwise = StepValidations(suite, 3, print, _pending=MagicMock(epoch=1))
    deliveries.backlog, deliveries.hosts = MagicMock(__len__=lambda self: 1), MagicMock(count=1)
    deliveries.backlog.oldest.epoch = 0
    deliveries.finish_step_validations()
    deliveries.backlog.oldest.epoch = 1
    with pytest.raises(ValidationWorkerError):
        deliveries.release_step_validations()
    assert not deliveries.take_back(error)


def test_a_second_signal_puts_the_handlers_back_before_it_raises(handlers):
    """What it raises may cut short the way to `__exit__`."""
    heard = interrupts.Interrupts().__enter__()
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="SIGINT, then SIGINT"):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not any(thread.name == "signals" for thread in threading.enumerate())
    heard.__exit__(None)


class Nests(keras.callbacks.Callback):
    """Trains another model in the first epoch, during which a signal comes."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.inner = Trainer(sequential())
            fit(self.inner, Signal(1, signal.SIGINT))


def test_a_fit_in_a_callback_of_another_ends_with_it(handlers):
    trainer, nests = Trainer(sequential()), Nests()
    fit(trainer, nests)
    assert trainer.ended == nests.inner.ended == "interrupted by SIGINT"
    assert 2 <= len(nests.inner.model.history.epoch) < 50
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


class Notes(keras.callbacks.Callback):
    """Notes the ends of epochs and of the training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(epoch)

    def on_train_end(self, logs=None):
        self.seen.append("end")


def interrupted(model, *callbacks, **arguments):
    """Fits a model whose callback sends SIGINT in its second epoch."""
    fit(model, *callbacks, Signal(1, signal.SIGINT), **arguments)


@pytest.mark.by_default("install")
@pytest.mark.parametrize("by", ["routed", "install"])
def test_a_routed_fit_raises_what_keras_raises_and_does_not_call_its_end(by, handlers):
    expected, notes = Notes(), Notes()
    with pytest.raises(KeyboardInterrupt):
        interrupted(sequential(), expected)
    with contextlib.ExitStack() as resources:
        resources.callback(uninstall)
        routing = install() if by == "install" else resources.enter_context(routed())
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            interrupted(sequential(), notes)
    assert expected.seen == [0, 1] == notes.seen[:2]
    assert "end" not in notes.seen
    assert routing.trainer.ended == "interrupted by SIGINT"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    routing.trainer.fit(*arrays(), verbose=0)


def test_a_routed_fit_that_was_interrupted_is_resumed(handlers, tmp_path):
    with pytest.raises(KeyboardInterrupt), routed(resume=tmp_path):
        interrupted(sequential(), Notes())
    notes = Notes()
    with routed(resume=tmp_path) as routing:
        fit(sequential(), notes, Signal(-1), epochs=5)
    assert any("resumed" in message for message in routing.trainer.messages)
    assert notes.seen == [0, 1, 2, 3, 4, "end"]


@pytest.mark.parametrize("error", [None, LookupError, SystemExit])
def test_a_handler_of_the_user_decides_in_a_routed_fit(error, handlers):
    calls = []

    def handle(number, frame):
        calls.append(number)
        if error is not None:
            raise error

    signal.signal(signal.SIGINT, handle)
    notes = Notes()
    with routed() as routing, contextlib.nullcontext() if error is None else pytest.raises(error):
        interrupted(sequential(), notes, epochs=4)
    assert calls == [signal.SIGINT]
    assert (notes.seen == [0, 1, 2, 3, "end"]) == (error is None)
    assert routing.trainer.ended == ("completed" if error is None else "interrupted by SIGINT")


@pytest.mark.parametrize("passes_on", [False, True])
def test_a_signal_that_ends_the_process_ends_it_behind_a_routed_fit(passes_on, handlers, monkeypatch):
    sent = []
    with interrupts.Interrupts(passes_on=passes_on) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        assert asked.received == "SIGTERM"
        monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    assert sent == ([(os.getpid(), signal.SIGTERM)] if passes_on else [])
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


class Installs(keras.callbacks.Callback):
    """Installs a handler in the second epoch and keeps the one before it."""

    before = None

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.before = signal.signal(signal.SIGINT, self.handle)

    def handle(self, number, frame):
        self.before(number, frame)


def test_a_handler_that_a_callback_installs_stays(handlers):
    installs = Installs()
    Trainer(sequential()).fit(*arrays(), epochs=3, callbacks=[installs], verbose=0)
    assert signal.getsignal(signal.SIGINT) == installs.handle
    assert installs.before is not signal.default_int_handler, "the fit's own"
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, installs.before)
    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        os.kill(os.getpid(), signal.SIGINT)


def test_the_handler_of_a_fit_that_is_over_ends_the_process_where_that_was_the_systems(handlers, monkeypatch):
    with interrupts.Interrupts():
        ours = signal.getsignal(signal.SIGTERM)
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    signal.signal(signal.SIGTERM, ours)
    ours(signal.SIGTERM, None)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_a_compiled_call_that_may_take_long_is_not_taken_for_one_that_waits(handlers):
    with interrupts.Interrupts() as asked:
        asked.expect(3600.0)
        assert 3000.0 < asked._listen(bytes([signal.SIGTERM])) <= 3600.0
        asked.heed()


def exit_code_of_a_child(what, *signals):
    """Return the exit code of a fork that waits for signals: -15 by SIGTERM, 5 by KeyboardInterrupt."""
    ready, tells = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            what()
            heard, hears = os.pipe()  # `signal.pause` would miss what comes just before it
            os.set_blocking(hears, False)
            signal.set_wakeup_fd(hears)
            while True:
                os.write(tells, b"1")
                os.read(heard, 1)
        except KeyboardInterrupt:
            os._exit(5)
        finally:
            os._exit(6)
    os.close(tells)  # or a child that has ended too soon would be waited for
    for number in signals:
        os.read(ready, 1)
        os.kill(child, number)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(ready)
    return code


def test_a_process_that_is_forked_during_a_fit_ends_by_sigterm(handlers):
    with interrupts.Interrupts() as asked, interrupts.Interrupts():
        assert exit_code_of_a_child(lambda: None, signal.SIGTERM) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, "of the fit, which goes on"
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.received == "SIGTERM"


def test_a_forked_process_has_the_handler_of_the_user(handlers):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    with interrupts.Interrupts():
        assert exit_code_of_a_child(lambda: None, signal.SIGTERM) == 7


def test_a_forked_process_leaves_the_first_ctrl_c_to_the_fit(handlers):
    with interrupts.Interrupts():
        assert exit_code_of_a_child(lambda: None, signal.SIGINT, signal.SIGINT) == 5
        assert exit_code_of_a_child(lambda: None, signal.SIGINT, signal.SIGTERM) == -signal.SIGTERM
