"""`MultiModelScheduler` on the CPU: results, batching, back-pressure, errors, adding and removing."""

from __future__ import annotations

import random
import threading

import keras
import numpy as np
import pytest

from overlap_train.errors import QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.scheduling import POLICIES, Device, MultiModelScheduler, Platform, Policy, Transfer

# One CPU under two names: to TensorFlow the same, to the scheduler a CPU and a "GPU".
TWO = Platform(
    (Device("CPU:0", "cpu", slots=2), Device("cpu:0", "gpu")),
    {("CPU:0", "cpu:0"): Transfer(1e-5), ("cpu:0", "CPU:0"): Transfer(1e-5)},
)
ONE = Platform((Device("CPU:0", "cpu"),))


def small_model(seed=0, width=4):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(width, 3, padding="same")(inputs)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Add()([x, keras.layers.Conv2D(width, 3, padding="same")(y)])
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


def image(seed, count=1):
    return np.random.default_rng(seed).random((count, 8, 8, 3), "float32")


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"oracle"}))
# Where the others place pieces is tested in policies/.
@pytest.mark.by_default("paper", "heft")
def test_results_are_the_models_under_every_policy_layer_by_layer(policy):
    models = {f"m{i}": small_model(i) for i in range(2)}
    options = {"devices": TWO, "policy": policy, "segments": "layers", "profile": True}
    with MultiModelScheduler(models, **options) as scheduler:
        futures = [(n, i, scheduler.submit(n, image(i, 2))) for i in range(6) for n in models]
        for name, seed, future in futures:
            want = models[name](image(seed, 2), training=False)
            np.testing.assert_allclose(future.result(60), want, atol=1e-5)
        statistics = scheduler.statistics()
    assert sum(model.completed for model in statistics.models.values()) == 12
    if policy in ("gpu_only", "cpu_only"):
        idle = "CPU:0" if policy == "gpu_only" else "cpu:0"
        assert statistics.devices[idle].jobs == 0
    if policy == "paper":
        assert statistics.devices["cpu:0"].jobs == 12 * 2


class Blocker:
    """Stops the only worker inside a request until told to go on."""

    def __init__(self):
        self.started, self.gate = threading.Event(), threading.Event()

    def recorder(self):
        blocker = self

        class Recorder:
            def add(self, span):
                blocker.started.set()
                blocker.gate.wait(60)

        return Recorder()


def test_a_full_queue_blocks_refuses_and_recovers():
    blocker = Blocker()
    with MultiModelScheduler(
        {"m": small_model()}, devices=ONE, max_active=1, max_pending=2, recorder=blocker.recorder()
    ) as scheduler:
        first = scheduler.submit("m", image(0))
        assert blocker.started.wait(60)
        first.result(60)
        waiting = [scheduler.submit("m", image(i)) for i in range(3)]
        with pytest.raises(QueueFullError, match="2 requests for 'm' are waiting"):
            scheduler.submit("m", image(9), timeout_s=0)
        late = []
        thread = threading.Thread(target=lambda: late.append(scheduler.submit("m", image(5))))
        thread.start()
        blocker.gate.set()
        thread.join(60)
        for future in (*waiting, *late):
            assert future.result(60).shape == (1, 5)
        assert scheduler.statistics().models["m"].rejected == 1


def test_waiting_requests_are_batched_and_get_their_own_rows_back():
    blocker, model = Blocker(), small_model()
    with MultiModelScheduler(
        {"m": model}, devices=ONE, max_active=1, max_batch=8, recorder=blocker.recorder()
    ) as scheduler:
        scheduler.submit("m", image(99)).result(60)
        assert blocker.started.wait(60)
        sizes = [1, 2, 3, 1, 4, 1]
        futures = [scheduler.submit("m", image(i, n)) for i, n in enumerate(sizes)]
        blocker.gate.set()
        for i, (n, future) in enumerate(zip(sizes, futures, strict=True)):
            np.testing.assert_allclose(future.result(60), model(image(i, n)), atol=1e-5)
        statistics = scheduler.statistics().models["m"]
    assert statistics.completed == 7
    assert statistics.batches <= 4


def test_missed_deadlines_are_counted_and_still_answered():
    with MultiModelScheduler({"m": small_model()}, devices=ONE) as scheduler:
        assert scheduler.submit("m", image(0), deadline_s=0.0).result(60).shape == (1, 5)
        assert scheduler.submit("m", image(0), deadline_s=600).result(60).shape == (1, 5)
        statistics = scheduler.statistics().models["m"]
    assert statistics.missed == 1
    assert statistics.worst_lateness_s > 0


def test_models_come_and_go_while_others_run():
    with MultiModelScheduler({"a": small_model()}, devices=ONE) as scheduler:
        futures = [scheduler.submit("a", image(i)) for i in range(5)]
        scheduler.add("b", small_model(1))
        with pytest.raises(ValueError, match="'b' is in service"):
            scheduler.add("b", small_model(1))
        b = [scheduler.submit("b", image(i)) for i in range(5)]
        scheduler.remove("a")
        assert all(future.done() for future in futures)
        with pytest.raises(KeyError, match=r"no model is named 'a'; in service are \['b'\]"):
            scheduler.submit("a", image(0))
        assert all(future.result(60).shape == (1, 5) for future in b)
        scheduler.add("a", small_model(2))
        assert scheduler.submit("a", image(0)).result(60).shape == (1, 5)


def test_close_fails_what_is_left_and_leaves_no_thread():
    before = threading.active_count()
    scheduler = MultiModelScheduler({"m": small_model()}, devices=TWO, profile=False)
    futures = [scheduler.submit("m", image(i)) for i in range(20)]
    scheduler.close()
    scheduler.close()
    for future in futures:
        assert future.done()
        assert future.exception() is None or isinstance(future.exception(), SchedulerClosedError)
    with pytest.raises(SchedulerClosedError):
        scheduler.submit("m", image(0))
    assert threading.active_count() <= before


def test_leaving_with_an_error_does_not_wait():
    scheduler = MultiModelScheduler({"m": small_model()}, devices=ONE)

    def leave():
        with scheduler:
            scheduler.submit("m", image(0))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        leave()
    with pytest.raises(SchedulerClosedError):
        scheduler.submit("m", image(0))


@pytest.mark.parametrize(
    ("answers", "message"),
    [({"select": None}, "must return one of"), ({"admit": [(0, 0)]}, r"must, .* have no cycle")],
    ids=["no device", "a cycle"],
)
def test_a_policy_that_answers_nonsense_fails_its_requests(answers, message):
    class Own(Scattered):
        """One that answers what the test says."""

    for name, answer in answers.items():
        setattr(Own, name, lambda *_, answer=answer: answer)
    with MultiModelScheduler({"m": small_model()}, devices=ONE, policy=Own(), profile=False) as scheduler:
        future = scheduler.submit("m", image(0))
        with pytest.raises(SchedulingError, match=message):
            future.result(60)


def test_a_leaked_scheduler_warns():
    scheduler = MultiModelScheduler(devices=ONE)
    with pytest.warns(ResourceWarning, match="was not closed"):
        scheduler.__del__()
    scheduler.close()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([np.ones((1, 8, 8, 3)), np.ones((1, 8, 8, 3))], "takes 1 inputs, got 2"),
        (np.ones((0, 8, 8, 3)), "one batch dimension"),
        (np.float32(3), "one batch dimension"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_at_once(x, message):
    with (
        MultiModelScheduler({"m": small_model()}, devices=ONE) as scheduler,
        pytest.raises(ValueError, match=message),
    ):
        scheduler.submit("m", x)


class Scattered(Policy):
    """Every layer on a device drawn at random: the most crossings."""

    name = "scattered"

    def __init__(self):
        self._rng = random.Random(0)

    def select(self, request, index, places, board):
        return self._rng.choice(board.platform.devices)


def test_tensors_cross_between_devices_in_any_pattern():
    model = small_model()
    with MultiModelScheduler(
        {"m": model}, devices=TWO, policy=Scattered(), segments="layers", profile=False
    ) as scheduler:
        for i, future in [(i, scheduler.submit("m", image(i))) for i in range(20)]:
            np.testing.assert_allclose(future.result(60), model(image(i)), atol=1e-5)
        assert all(account.jobs for account in scheduler.statistics().devices.values())


@pytest.mark.parametrize("refuses", [False, True])
def test_zero_copy_reads_inputs_in_place_where_that_is_allowed(monkeypatch, refuses):
    import tensorflow as tf

    seen = []

    def as_tensor(array):
        seen.append(array)
        if refuses:
            raise ValueError("not aligned")
        return tf.constant(array)

    monkeypatch.setattr("overlap_train.scheduling.preparing.as_tensor", as_tensor)
    model, x = small_model(), image(0)
    with MultiModelScheduler({"m": model}, devices=ONE, zero_copy=True) as scheduler:
        np.testing.assert_allclose(scheduler.submit("m", x).result(60), model(x), atol=1e-5)
    assert seen[0] is x


def test_models_that_are_none_are_refused_before_a_thread_is_started():
    before = set(threading.enumerate())
    with pytest.raises(TypeError, match=r"models\['b'\] must be a keras.Model; got int"):
        MultiModelScheduler({"a": small_model(), "b": 3}, devices=ONE)
    assert set(threading.enumerate()) <= before
