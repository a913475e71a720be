"""`MultiModelScheduler` on the CPU: `submit(name, x)` gives what `models[name](x)` gives, or says why not."""

import contextlib
import random
import threading
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf

from overlap_train.errors import DeadlineError, QueueFullError, SchedulerClosedError, SchedulingError
from overlap_train.models.alexnet import alexnet
from overlap_train.scheduling import Device, MultiModelScheduler, Platform, Transfer, preparing
from overlap_train.scheduling.policy import POLICIES
from overlap_train.scheduling.segments import single_layers
from tests.scheduling.graphs import CLOSE, Anywhere

kl = keras.layers
ONE = Platform((Device("CPU:0", "cpu"),))
# One CPU under two names: to TensorFlow the same, to the scheduler a CPU and a "GPU".
TWO = Platform(
    (Device("CPU:0", "cpu", slots=2), Device("cpu:0", "gpu")),
    {("CPU:0", "cpu:0"): Transfer(1e-5), ("cpu:0", "CPU:0"): Transfer(1e-5)},
)
X = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")


def functional(outputs, kind=keras.Model):
    inputs = keras.Input((4,))
    return kind(inputs, outputs(inputs))


class Calibrated(keras.Model):
    def call(self, inputs, training=None):
        return keras.ops.softmax(super().call(inputs, training=training) / 10.0)


class Shifted(keras.Sequential):
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs) + 5.0


def of_images():
    return keras.Sequential(
        [keras.Input((None, None, 3)), kl.Conv2D(3, 5, strides=2), kl.GlobalMaxPooling2D()]
    )


def of_words():
    words = keras.Input((), dtype="string")
    return keras.Model(words, kl.StringLookup(vocabulary=["a", "b"], output_mode="one_hot")(words))


def to_words():
    numbers = keras.Input((2,), dtype="int64")
    return keras.Model(numbers, kl.StringLookup(vocabulary=["a", "b"], invert=True)(numbers))


def of_words_that_are_numbers():
    words = keras.Input((), dtype="string")
    return keras.Model(words, kl.Lambda(lambda w: tf.strings.to_number(w), output_shape=())(words))


class Fewer(keras.Model):
    def call(self, inputs):
        return {"first": super().call(inputs)[:, :1], "nothing": None}


def of_tokens():
    tokens = keras.Input((5,), dtype="int32")
    return keras.Model(tokens, kl.LSTM(3)(kl.Embedding(10, 4, mask_zero=True)(tokens)))


def training_passes_on():
    """A layer that is called for training makes those behind it train too."""
    return functional(lambda x: kl.BatchNormalization()(kl.BatchNormalization()(x, training=True) * 3.0))


CASES = {
    "own-call": (lambda: functional(kl.Dense(3), Calibrated), X),
    "own-sequence": (lambda: Shifted([keras.Input((4,)), kl.Dense(3)]), X),
    "own-outputs": (lambda: functional(kl.Dense(3), Fewer), X),
    "masks": (of_tokens, np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]], "int32")),
    "trains": (training_passes_on, X),
    "one-in-a-list": (lambda: functional(lambda x: [kl.Dense(2)(x)]), X),
    "nested": (lambda: functional(lambda x: {"b": (kl.Dense(2)(x), x), "a": [kl.Dense(1)(x)]}), X),
    "a-number": (lambda: functional(lambda x: [x * keras.ops.sum(kl.Dense(2)(x)), keras.ops.max(x)]), X),
    "images": (of_images, np.ones((2, 9, 11, 3), "float32")),
    "words": (of_words, np.array(["a", "z", "b"])),
    "to-words": (to_words, np.array([[0, 1], [2, 1]])),
    "numbers-in-words": (of_words_that_are_numbers, np.array(["1.5", "7"])),
}


@pytest.mark.parametrize(("make", "x"), CASES.values(), ids=CASES.keys())
def test_a_request_is_a_call(make, x, monkeypatch):
    monkeypatch.setattr(preparing, "choose_segments", lambda graph, *_: single_layers(graph))
    model = make()
    with MultiModelScheduler(devices=ONE) as scheduler:
        scheduler.add("m", model)
        got = scheduler.submit("m", x).result(60)
    want = model(x if x.dtype.kind == "U" else tf.constant(x))
    keras.tree.assert_same_structure(got, want)
    for left, right in zip(keras.tree.flatten(got), keras.tree.flatten(want), strict=True):
        if right is None:
            assert left is None
            continue
        right = right.numpy()
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        if left.dtype == object:
            assert left.tolist() == right.tolist()
        else:
            np.testing.assert_allclose(left, right, atol=CLOSE)


def test_a_list_that_a_subclassed_model_returns_stays_a_list():
    class Lists(keras.Model):
        def call(self, x):
            return [x * 2.0]

    with MultiModelScheduler(devices=ONE) as scheduler:
        scheduler.add("m", Lists(), input_specs=(tf.TensorSpec((None, 4)),))
        (got,) = scheduler.submit("m", X).result(60)
    np.testing.assert_allclose(got, X * 2.0)


@pytest.mark.parametrize("fold", [False, True])
def test_a_model_that_writes_in_inference_is_as_it_was_when_it_is_taken_into_service(fold):
    model = functional(lambda x: kl.Dropout(0.5)(kl.BatchNormalization()(x, training=True), training=True))
    before = [np.array(variable) for variable in model.variables]
    with MultiModelScheduler(devices=ONE, fold=fold) as scheduler:
        scheduler.add("m", model)
        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(variable, value)
        scheduler.submit("m", X).result(60)
    assert not np.array_equal(model.variables[-1], before[-1])  # the seed has moved on, as under Keras


def test_a_dtype_that_custom_code_would_see_is_refused():
    with MultiModelScheduler({"m": functional(kl.Dense(3), Calibrated)}, devices=ONE) as scheduler:
        with pytest.raises(TypeError, match=r"takes float32, got uint8"):
            scheduler.submit("m", X.astype("uint8"))
        assert scheduler.submit("m", X.astype("float64")).result(60).shape == (3, 3)


def test_an_output_for_the_whole_batch_is_of_its_own_request():
    model = functional(keras.ops.sum)
    with MultiModelScheduler(devices=ONE, max_batch=9) as scheduler:
        scheduler.add("m", model)
        futures = [scheduler.submit("m", X * n) for n in range(4)]
        for n, future in enumerate(futures):
            np.testing.assert_allclose(future.result(60), X.sum() * n, rtol=1e-4, atol=1e-4)


PAPERS = ("AlexNet", "VGG16", "ResNet152", "DenseNet201")
TEN_MORE = (
    *("MobileNetV2", "EfficientNetB0", "NASNetMobile", "Xception", "InceptionV3", "InceptionResNetV2"),
    *("ConvNeXtTiny", "ResNet50V2", "MobileNetV3Small", "VGG19"),
)
# The smallest images that these take, and for the paper's what all four take.
SIZES = dict.fromkeys((*PAPERS, "NASNetMobile"), 64)
SIZES |= {"Xception": 75, "InceptionV3": 80, "InceptionResNetV2": 80}


IN_PIECES = ("AlexNet", "VGG16", "ResNet50V2", "InceptionV3")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "cut"), [*((name, 1) for name in (*PAPERS, *TEN_MORE)), *((name, 3) for name in IN_PIECES)]
)
@pytest.mark.by_default("AlexNet-1")
@pytest.mark.timeout(1800)
def test_a_network_split_equals_its_whole_under_every_policy(name, cut, every_layer_is_cut):
    """In pieces on images so large that there is something to cut."""
    keras.utils.set_random_seed(0)
    size = SIZES.get(name, 32) if cut == 1 else 128
    if name == "AlexNet":
        model = alexnet((size, size, 3), 10)
    else:
        model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=10)
    # Those that rescale by themselves expect bytes' range.
    high = 255 if name.startswith(("EfficientNet", "MobileNetV3", "ConvNeXt")) else 1
    x = np.random.default_rng(0).random((2, size, size, 3), "float32") * np.float32(high)
    want = model(x, training=False).numpy()
    for policy in sorted(POLICIES):
        options = {"policy": policy, "cut": cut}
        with MultiModelScheduler({name: model}, devices=TWO, **options) as scheduler:
            for future in [scheduler.submit(name, x) for _ in range(2)]:
                np.testing.assert_allclose(future.result(300), want, atol=CLOSE, err_msg=policy)


# Batching, back-pressure, errors, adding and removing.


def small_model(seed=0, width=4):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(width, 3, padding="same")(inputs)
    y = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    x = keras.layers.Add()([x, keras.layers.Conv2D(width, 3, padding="same")(y)])
    return keras.Model(inputs, keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x)))


def image(seed, count=1):
    return np.random.default_rng(seed).random((count, 8, 8, 3), "float32")


class Blocker:
    """A recorder that stops the only worker inside a request until told to go on."""

    def __init__(self):
        self.started, self.gate = threading.Event(), threading.Event()

    def add(self, span):
        self.started.set()
        self.gate.wait(60)


def test_a_full_queue_blocks_refuses_and_recovers():
    blocker = Blocker()
    with MultiModelScheduler({"m": small_model()}, devices=ONE, max_pending=2, recorder=blocker) as scheduler:
        first = scheduler.submit("m", image(0))
        assert blocker.started.wait(60)
        first.result(60)
        waiting = [scheduler.submit("m", image(i)) for i in range(4)]  # of which two have begun
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
    with MultiModelScheduler({"m": model}, devices=ONE, max_batch=8, recorder=blocker) as scheduler:
        scheduler.submit("m", image(99)).result(60)
        assert blocker.started.wait(60)
        sizes = [1, 2, 3, 1, 4, 1]
        futures = [scheduler.submit("m", image(i, n)) for i, n in enumerate(sizes)]
        blocker.gate.set()
        for i, (n, future) in enumerate(zip(sizes, futures, strict=True)):
            np.testing.assert_allclose(future.result(60), model(image(i, n)), atol=CLOSE)
        statistics = scheduler.statistics().models["m"]
    assert statistics.completed == 7
    assert statistics.batches <= 5


def test_a_late_request_is_counted_and_answered_or_refused_or_dropped():
    with MultiModelScheduler({"m": small_model()}, devices=ONE) as scheduler:
        assert scheduler.submit("m", image(0), deadline_s=0.0).result(60).shape == (1, 5)
        with pytest.raises(DeadlineError, match="would be done after") as refused:
            scheduler.submit("m", image(0), deadline_s=1e-9, on_late="reject")
        assert 1e-9 < refused.value.predicted_s < 10.0
        dropped = scheduler.submit("m", image(0), deadline_s=1e-9, on_late="drop")
        assert isinstance(dropped.exception(60), DeadlineError)
        admitted = scheduler.submit("m", image(0), deadline_s=600, on_late="reject")
        assert admitted.result(60).shape == (1, 5)
        for options in ({"on_late": "drop"}, {"on_late": "wait", "deadline_s": 1.0}):
            with pytest.raises(ValueError, match="on_late"):
                scheduler.submit("m", image(0), **options)
        statistics = scheduler.statistics().models["m"]
    assert (statistics.refused, statistics.dropped) == (1, 1)
    assert (statistics.met, statistics.missed) == (1, 1)
    assert 0 < statistics.latency_p50_s <= statistics.latency_p95_s <= statistics.latency_p99_s
    assert statistics.worst_lateness_s > 0


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_future_ends_once_whatever_fails_is_late_or_closed():
    """A layer fails at random, models come and go."""
    rng, ended = random.Random(0), Counter()
    left = 10_000

    class Unreliable(Anywhere):
        def select(self, request, index, places, board):
            return None if self._rng.random() < 0.05 else super().select(request, index, places, board)

    def submit(scheduler, number):
        name = rng.choice("ab")
        options = {
            "deadline_s": rng.choice((1e-4, 1e-3, 0.1)),
            "on_late": rng.choice(("run", "drop", "reject")),
        }
        options |= {"priority": rng.randint(-1, 1), "timeout_s": rng.choice((0, 0.001, None))}
        try:
            future = scheduler.submit(name, image(0, rng.randint(1, 3)), **options)
        except SchedulingError:
            ended[number] += 1
            return None
        except KeyError:  # the model is not there
            ended[number] += 1
            return None
        future.add_done_callback(lambda _: ended.update([number]))
        return future

    models, number = {"a": small_model(0), "b": small_model(1)}, 0
    while number < left:
        batch = min(1000, left - number)
        with MultiModelScheduler(models, devices=TWO, policy=Unreliable(number), max_batch=2) as scheduler:
            futures = []
            for _ in range(batch):
                futures.append(submit(scheduler, number))
                number += 1
                if rng.random() < 0.01:
                    scheduler.remove("b")
                    scheduler.add("b", models["b"])
            if rng.random() < 0.5:
                scheduler.close()
        assert all(future is None or future.done() for future in futures)
    assert sorted(ended) == list(range(left))
    assert set(ended.values()) == {1}


def test_runs_next_to_others_are_measured_with_every_core_at_work(monkeypatch):
    most, running, lock = [0], [0], threading.Lock()

    def counted(self, inputs, call=preparing._Compiled.__call__):
        with lock:
            running[0] += 1
            most[0] = max(*most, *running)
        try:
            threading.Event().wait(1e-3)  # or one could end before another begins
            return call(self, inputs)
        finally:
            with lock:
                running[0] -= 1

    monkeypatch.setattr(preparing._Compiled, "__call__", counted)
    with MultiModelScheduler({"m": small_model()}, devices=[Device("CPU:0", slots=3)], max_batch=1):
        assert most == [3]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool")]


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


@pytest.mark.parametrize("raises", [False, True])
def test_what_is_left_fails_at_the_end_and_no_thread_stays(raises):
    before = threading.active_count()
    scheduler = MultiModelScheduler({"m": small_model()}, devices=TWO)
    with pytest.raises(RuntimeError, match="mine") if raises else contextlib.nullcontext(), scheduler:
        futures = [scheduler.submit("m", image(i)) for i in range(20)]
        if raises:
            raise RuntimeError("mine")
        scheduler.close()
    scheduler.close()
    for future in futures:
        assert future.done()
        assert future.exception() is None or isinstance(future.exception(), SchedulerClosedError)
    with pytest.raises(SchedulerClosedError):
        scheduler.submit("m", image(0))
    assert threading.active_count() <= before


NONSENSE = {
    "no device": ("select", None, "must return one of"),
    "a name": ("select", "cpu", r"Own\.select must return one of the platform's devices, .*; got"),
    "a number": ("select", 0, "must return one of"),
    "a device of another platform": ("select", Device("elsewhere"), "must return one of"),
}


@pytest.mark.parametrize(("method", "answer", "message"), NONSENSE.values(), ids=NONSENSE)
def test_a_policy_that_answers_nonsense_fails_its_requests(method, answer, message):
    class Own(Anywhere):
        """One that answers what the test says."""

    setattr(Own, method, lambda *_: answer)
    with MultiModelScheduler({"m": small_model()}, devices=ONE, policy=Own()) as scheduler:
        future = scheduler.submit("m", image(0))
        with pytest.raises(SchedulingError, match=message):
            future.result(60)


def test_a_leaked_scheduler_warns():
    scheduler = MultiModelScheduler(devices=ONE)
    with pytest.warns(ResourceWarning, match="was not closed"):
        scheduler.__del__()
    scheduler.close()


@pytest.mark.parametrize("refuses", [False, True])
def test_zero_copy_reads_inputs_in_place_where_that_is_allowed(monkeypatch, refuses):
    seen = []

    def as_tensor(array):
        seen.append(array)
        if refuses:
            raise ValueError("not aligned")
        return tf.constant(array)

    monkeypatch.setattr("overlap_train.scheduling.preparing.as_tensor", as_tensor)
    model, x = small_model(), image(0)
    with MultiModelScheduler({"m": model}, devices=ONE, zero_copy=True) as scheduler:
        np.testing.assert_allclose(scheduler.submit("m", x).result(60), model(x), atol=CLOSE)
    assert seen[0] is x


def test_models_that_are_none_are_refused_before_a_thread_is_started():
    before = set(threading.enumerate())
    with pytest.raises(TypeError, match=r"models\['b'\] must be a keras.Model; got int"):
        MultiModelScheduler({"a": small_model(), "b": 3}, devices=ONE)
    assert set(threading.enumerate()) <= before
