"""The runner gives each worker its part and puts the parts together again."""

import threading

import pytest

from overlap_train._snapshot import Snapshot
from overlap_train._validation.evaluation import SnapshotEvaluator
from overlap_train._validation.pool import WorkerPool
from overlap_train._validation.runner import ValidationRunner
from tests.pools import sequential
from tests.validation.test_evaluation import X, Y, built, evaluator_of
from tests.whole_fits.comparing import slices


def test_batches_that_are_drawn_in_order_are_no_more_drawn_once_their_worker_has_failed(monkeypatch):
    """Else the training would wait for ever until there is room for the next one."""
    rows = slices(X, Y).batch(16).shuffle(5, seed=1)
    state, batches, evaluator = evaluator_of(sequential(), (rows, None, None))
    batches.in_order = True
    monkeypatch.setattr(evaluator, "evaluate", lambda *_: divmod(1, 0))
    with WorkerPool(1) as pool:
        runner = ValidationRunner(evaluator, batches, pool, lambda span: None, None)
        (future,) = runner.start(Snapshot(epoch=0, step=0, values=state.read()))
        drawing = threading.Thread(target=runner.draw_ahead, daemon=True)
        drawing.start()
        drawing.join(30)
        assert not drawing.is_alive()
        assert isinstance(future.exception(30), ZeroDivisionError)
        runner.close()


def test_the_evaluator_is_warmed_up_by_a_worker_and_a_failure_of_that_is_no_failure(monkeypatch):
    model = built()
    state, batches, evaluator = evaluator_of(model)
    warmed = threading.Event()

    def fails(evaluator, values):
        assert threading.current_thread().name.startswith("validation-")
        warmed.set()
        raise ValueError("a metric that cannot do without a batch")

    monkeypatch.setattr(SnapshotEvaluator, "warm_up", fails)
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    with WorkerPool(3) as pool:
        runner = ValidationRunner(evaluator, batches, pool, lambda span: None, state.read())
        assert warmed.wait(30)
        assert runner.evaluate(state.read()).metrics == pytest.approx(expected, rel=1e-5)


@pytest.mark.nightly
def test_each_device_is_prepared_once_before_its_first_part(monkeypatch, evaluated):
    model, state, batches, evaluator = evaluated
    spans, order = [], []
    warm_up, evaluate = evaluator.warm_up, evaluator.evaluate
    monkeypatch.setattr(evaluator, "warm_up", lambda values: (warm_up(values), order.append("warm")))
    monkeypatch.setattr(
        evaluator, "evaluate", lambda *arguments: (order.append("part"), evaluate(*arguments))[1]
    )
    with WorkerPool(3) as pool:
        runner = ValidationRunner(evaluator, batches, pool, spans.append, state.read(), devices=("CPU:0",))
        actual = runner.evaluate(state.read()).metrics
    assert order == ["warm", "part", "part", "part"]
    assert [span.name for span in spans] == ["prepare", "validate", "validate", "validate"]
    expected = model.evaluate(X, Y, verbose=0, return_dict=True)
    assert actual == pytest.approx(expected, rel=1e-5)
