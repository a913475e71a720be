"""A fit keeps its accounts however it ends, and one that has nothing to train only calls its callbacks."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from overlap_train import Trainer
from overlap_train._fit import run as module
from overlap_train._fit.course import Course, FitOutcome, Ledger
from overlap_train._fit.run import run_fit
from overlap_train.errors import HostLostError
from overlap_train.monitoring.recorder import Accounts, SpanRecorder
from tests import networks, pools
from tests.fit.requests import request_of
from tests.parallel.together import ThreadHost


class Told(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.hooks = []

    def on_train_begin(self, logs=None):
        self.hooks.append("train begins")

    def on_epoch_begin(self, epoch, logs=None):
        self.hooks.append("epoch begins")

    def on_train_end(self, logs=None):
        self.hooks.append(("train ends", logs))


def test_where_no_epoch_is_to_be_trained_nothing_is_built(monkeypatch):
    monkeypatch.setattr(module.FitBuilder, "build", lambda builder: pytest.fail("it was built"))
    trainer, told = Trainer(networks.sequential()), Told()
    weights = trainer.model.get_weights()
    history = trainer.fit(*networks.arrays(), initial_epoch=2, epochs=2, verbose=0, callbacks=[told])
    assert told.hooks == ["train begins", ("train ends", {})]
    assert (trainer.ended, history.ended, trainer.accounts) == ("completed", "completed", [])
    for before, after in zip(weights, trainer.model.get_weights(), strict=True):
        assert (before == after).all()


def test_a_fit_that_cannot_be_assembled_tells_nothing_of_the_one_before(tmp_path):
    trainer = Trainer(pools.sequential())
    trainer.fit(*networks.arrays(), batch_size=32, verbose=0)
    assert trainer.ended == "completed"
    rows = networks.drawn_in_python(*networks.arrays())
    with pytest.raises(ValueError, match="resume needs data"):
        trainer.fit(rows.batch(32), resume=tmp_path, verbose=0)
    assert (trainer.ended, trainer.accounts) == ("failed", [])


@pytest.mark.parametrize("verbose", [0, 2])
def test_the_table_of_the_epochs_is_shown_unless_silence_was_asked_for(verbose, capsys):
    trainer = Trainer(pools.sequential())
    trainer.fit(*networks.arrays(), batch_size=32, epochs=2, verbose=verbose)
    assert (repr(trainer.accounts) in capsys.readouterr().out) is bool(verbose)


class Fails:
    """A session that fails after an epoch."""

    ended = "completed"

    def __init__(self, error):
        self.error = error

    def run(self):
        raise self.error


@pytest.fixture
def run_session():
    """Returns a function that runs a session on so many hosts, and what came of it."""
    ledger, history, outcome = (
        Ledger(SpanRecorder(), Accounts(), Course(9, 0)),
        SimpleNamespace(),
        FitOutcome(),
    )
    ledger.accounts.begin(0)
    ledger.accounts.close(0)
    ledger.course.logs[0] = {"loss": 1.0}

    def run(session, hosts):
        request = SimpleNamespace(
            settings=SimpleNamespace(hosts=ThreadHost(hosts - 1, [None] * hosts, None)),
            model=SimpleNamespace(history=history),
        )
        module._run(session, request, SimpleNamespace(ledger=ledger), outcome)

    return run, outcome, history


LOST = (
    *(tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.InternalError),
    tf.errors.DeadlineExceededError,  # where the network between them is cut
)


@pytest.mark.parametrize("kind", LOST)
def test_a_host_that_has_gone_is_told_from_other_failures(run_session, kind):
    run, outcome, history = run_session
    error = kind(None, None, "connection reset")
    with pytest.raises(kind):
        run(Fails(error), 1)
    with pytest.raises(HostLostError, match="host 1 cannot go on, because another host has gone") as lost:
        run(Fails(error), 2)
    assert lost.value.__cause__ is error
    assert outcome.ended == history.ended == "failed"


@pytest.mark.parametrize("kind", LOST)
def test_a_host_that_goes_before_the_first_step_is_told_too(kind):
    error = kind(None, None, "deadline exceeded")
    with pytest.raises(HostLostError) as lost, module._NamingLostHosts(ThreadHost(0, [None, None], None)):
        raise error
    assert lost.value.__cause__ is error


def test_whatever_ends_a_fit_leaves_the_accounts_of_what_was_delivered(run_session):
    run, outcome, history = run_session
    with pytest.raises(ZeroDivisionError):
        run(Fails(ZeroDivisionError()), 2)
    assert [account.epoch for account in outcome.accounts] == [0]
    assert outcome.epoch_logs == {0: {"loss": 1.0}}
    run(SimpleNamespace(run=lambda: None, ended="stopped"), 1)
    assert outcome.ended == history.ended == "stopped"


def test_an_evaluator_serves_and_trains_nothing(monkeypatch):
    request = SimpleNamespace(settings=SimpleNamespace(serves=True))
    monkeypatch.setattr(module, "_serve", lambda asked: "stopped" if asked is request else None)
    outcome = FitOutcome()
    run_fit(request, outcome)
    assert (outcome.ended, outcome.accounts) == ("stopped", [])


def test_what_happens_in_a_fit_is_seen_while_it_runs():
    class Looks(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append((outcome.ended, list(outcome.messages)))

    seen, outcome = [], FitOutcome()
    request = request_of(Trainer(pools.sequential()), verbose=0, callbacks=[Looks()], batch_size=32)
    run_fit(request, outcome)
    ((ended, messages),) = seen
    assert ended == "failed"  # until it has ended
    assert messages == outcome.messages[: len(messages)] != []
    assert outcome.ended == "completed"


def test_an_evaluation_leaves_the_model_and_its_history_alone():
    model = pools.sequential()
    Trainer(model).fit(*networks.arrays(), batch_size=32, epochs=1, verbose=0)
    history, weights = model.history, model.get_weights()
    logs = Trainer(model).evaluate(*networks.arrays(40, 1), return_dict=True, verbose=0)
    assert logs.keys() == {"loss", "accuracy"}
    assert model.history is history
    for before, after in zip(weights, model.get_weights(), strict=True):
        assert (before == after).all()
