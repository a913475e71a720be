"""Hazards of unequal contests: a system that learns nothing, sees other data, or keeps no score."""

import time
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

from scripts.bench import child, machine, tasks
from scripts.bench.copies import copy_seconds
from scripts.bench.decoding import DecodedBatches
from scripts.bench.records import RunSpec
from scripts.bench.systems import DEFAULT_SYSTEMS, SYSTEMS, System
from scripts.bench.workloads import WORKLOADS

FULL_NETWORKS = {name: workload.network for name, workload in WORKLOADS.items()}


@pytest.fixture(autouse=True)
def small_workloads(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    photos = replace(WORKLOADS["input-bound"], quick_sizes=(64, 33), network=tiny_photo_network)
    monkeypatch.setitem(WORKLOADS, "input-bound", photos)
    monkeypatch.setitem(WORKLOADS, "mlp", replace(WORKLOADS["mlp"], quick_sizes=(1_280, 330)))


def tiny_photo_network():
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(2)])


def run(workload, system, cache_dir, threads=2):
    record, begin_s, end_s = child.train(RunSpec(workload, system, threads, 0, 2, True, str(cache_dir)))
    assert end_s - begin_s == pytest.approx(record.wall_s)
    return record


@pytest.mark.parametrize("system", DEFAULT_SYSTEMS)
@pytest.mark.by_default("keras-numpy", "paper", "overlap-sync", "train-only")
def test_each_system_trains_validates_and_keeps_score(system, tmp_path):
    record = run("mlp", system, tmp_path)
    assert record.wall_s > 0
    assert record.cpu_s > 0
    assert record.peak_rss_bytes > 50 << 20
    # Ten classes by chance are 0.1; three epochs on 1,280 examples come well above that.
    assert 0.25 < record.val_accuracy < 1.0
    assert 0.0 < record.val_loss < 2.3


def test_trainer_is_timed_for_as_many_validations_as_trainings(tmp_path):
    contender = SYSTEMS["overlap"].load()(
        WORKLOADS["mlp"], WORKLOADS["mlp"].task(tmp_path, quick=True), threads=2
    )
    window = contender.measure(2)
    spans = contender.trainer.recorder.spans()
    inside = [span for span in spans if window.begin_s <= span.start_s and span.end_s <= window.end_s]
    assert {span.epoch for span in inside if span.name == "train"} == {1, 2}
    assert {span.epoch for span in spans if span.name == "validate"} == {1, 2}
    assert any(note.startswith("plan: ") for note in contender.outcome().notes)


def test_a_whole_run_is_timed_from_before_the_system_is_built(tmp_path, monkeypatch):
    built_s, contender = [], SYSTEMS["overlap"].load()
    monkeypatch.setattr(contender, "__init__", _noted(contender.__init__, built_s))
    spec = RunSpec("mlp", "overlap", 2, 0, 2, True, str(tmp_path), whole=True)
    record, begin_s, end_s = child.train(spec)
    assert begin_s <= built_s[0] < end_s
    assert end_s - begin_s == pytest.approx(record.wall_s)
    assert record.hidden_s is not None


def _noted(method, times_s):
    def noted(*args, **kwargs):
        times_s.append(time.monotonic())
        return method(*args, **kwargs)

    return noted


def test_papers_scheme_scores_the_weights_that_its_epoch_ended_with(tmp_path):
    workload = replace(WORKLOADS["mlp"], quick_sizes=(1_280, 320))
    contender = SYSTEMS["paper"].load()(workload, workload.task(tmp_path, quick=True), threads=2)
    contender.measure(2)
    outcome = contender.outcome()
    # Parts of equal size, so that the plain average is the right one.
    validation = contender.task.validation
    loss, accuracy = contender.model.evaluate(validation.x, validation.y, verbose=0)
    assert outcome.val_loss == pytest.approx(loss, rel=1e-4)
    assert outcome.val_accuracy == pytest.approx(accuracy)
    assert outcome.copy_s > 0


@pytest.mark.parametrize("system", ["keras-numpy", "keras-tfdata-tuned", "overlap"])
@pytest.mark.by_default("overlap")
def test_decoded_images_reach_every_kind_of_system(system, tmp_path):
    assert run("input-bound", system, tmp_path).val_accuracy is not None


# Each of the two is run above, and test_parity.py shows that neither changes the numbers.
@pytest.mark.nightly
def test_same_seed_gives_the_synchronous_and_the_overlapped_trainer_the_same_result(tmp_path):
    overlapped, synchronous = (run("mlp", name, tmp_path) for name in ("overlap", "overlap-sync"))
    assert overlapped.val_loss == pytest.approx(synchronous.val_loss, rel=1e-5)
    assert overlapped.val_accuracy == pytest.approx(synchronous.val_accuracy)


def test_raw_and_scaled_inputs_mean_the_same_to_a_network():
    workload = WORKLOADS["mnist"]
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 1), np.uint8)
    keras.utils.set_random_seed(0)
    scaled = workload.model().predict(workload.scaled(pixels), verbose=0)
    keras.utils.set_random_seed(0)
    raw = workload.model(from_raw=True).predict(pixels, verbose=0)
    np.testing.assert_allclose(raw, scaled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["teacher", "scenes", "sequences", "photos"])
def test_made_up_data_is_the_same_each_time_and_has_no_empty_class(name, tmp_path):
    first, second = (getattr(tasks, name)(tmp_path, 40, 20) for _ in range(2))
    assert (len(first.train), len(first.validation)) == (40, 20)
    np.testing.assert_array_equal(first.train.x, second.train.x)
    np.testing.assert_array_equal(first.validation.y, second.validation.y)
    assert len(np.unique(first.train.y)) >= 2
    assert "MNIST" not in first.source


def test_digits_are_read_once_and_repeated_to_the_size_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tasks, "load_mnist", lambda: tasks_digits())
    first = tasks.mnist(tmp_path, 100, 50)
    monkeypatch.setattr(tasks, "load_mnist", lambda: pytest.fail("read again"))
    larger = tasks.mnist(tmp_path, 4_000, 50)
    np.testing.assert_array_equal(larger.train.x[:100], first.train.x)
    np.testing.assert_array_equal(larger.train.x[1_500:1_600], first.train.x)
    assert first.source == larger.source


def tasks_digits():
    from overlap_train.models.mnist_data import load_mnist

    return load_mnist(download_timeout_s=0)


def test_systems_that_cannot_run_say_why():
    absent = System("x", "needs a module that nobody has", "contenders.Paper", needs=("no_such_module",))
    assert absent.obstacle(WORKLOADS["mnist"]) == "no_such_module not installed"
    assert "no network for text" in SYSTEMS["overlap-accelerated"].obstacle(WORKLOADS["text"])
    assert SYSTEMS["overlap"].obstacle(WORKLOADS["input-bound"]) is None


def test_a_divided_gpu_is_left_out_where_there_is_none(monkeypatch):
    split = SYSTEMS["overlap-split-gpu"]
    monkeypatch.setattr(machine, "gpu_names", list)
    assert split.obstacle(WORKLOADS["mlp"]) == "it needs a GPU, and this machine has none"
    monkeypatch.setattr(machine, "gpu_names", lambda: ["a card"])
    assert split.obstacle(WORKLOADS["mlp"]) is None


def test_pillow_decodes_as_tensorflow_does(tmp_path):
    """The cut in the middle; their resampling filters differ a little."""
    workload = WORKLOADS["input-bound"]
    examples = workload.task(tmp_path, quick=True).validation
    batches = DecodedBatches(examples, 32, training=False, workers=1)
    assert len(batches) == 2
    x, y = batches[1]
    assert (x.shape, x.dtype) == ((1, 32, 32, 3), np.float32)
    assert y == examples.y[32:]
    expected = workload.decode(tf.constant(examples.x[32]), False)
    assert np.abs(x[0] - expected).mean() < 0.01


def test_each_pass_of_decoded_images_has_another_order_and_all_of_them(tmp_path):
    examples = WORKLOADS["input-bound"].task(tmp_path, quick=True).train
    batches = DecodedBatches(replace(examples, y=np.arange(len(examples))), 24, training=True, workers=1)
    passes = []
    for _ in range(2):
        passes.append(np.concatenate([batches[index][1] for index in range(len(batches))]).tolist())
        batches.on_epoch_end()
    assert passes[0] != passes[1]
    assert [sorted(rows) for rows in passes] == [list(range(len(examples)))] * 2


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_pytorch_has_each_network_with_as_many_weights(workload, tmp_path):
    pytest.importorskip("torch", reason="needs PyTorch")
    from scripts.bench.torch_networks import NETWORKS

    counted = sum(parameter.numel() for parameter in NETWORKS[workload]().parameters())
    extra = 4 * 32 if workload == "text" else 0  # PyTorch's LSTM adds two biases where Keras has one
    assert counted - extra == sum(np.prod(v.shape) for v in FULL_NETWORKS[workload]().trainable_variables)


def test_copies_are_timed_for_each_number_of_workers():
    one_s, two_s = copy_seconds(WORKLOADS["mlp"], [1, 2], repeats=1)
    assert one_s > 0
    assert two_s > 0


def test_unknown_job_is_refused():
    with pytest.raises(ValueError, match="no job is called 'dance'"):
        child.main(["child", '{"job": "dance"}'])
