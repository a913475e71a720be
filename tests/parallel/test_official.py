"""Programs of TensorFlow and Keras for several workers and replicas, with `Trainer(model).fit`."""

import functools
import importlib.util
import json
import pickle

import numpy as np
import pytest
import tensorflow as tf

from tests import interpreters
from tests.networks import assert_same_history
from tests.parallel import ray_examples
from tests.parallel.test_hosts import errors, finish, free_addresses, start_tasks
from tests.parallel.test_launchers import printed_by

KERAS_S = "keras.src.backend.tensorflow.distribute_test"
# Keras's test as it is, but for `fit`, which goes through `Trainer`.
ROUTED = f"""
import sys
import pytest
import keras
from overlap_train import install
from overlap_train import Trainer
calls = []
fit = Trainer.fit
Trainer.fit = lambda self, *args, **kwargs: (calls.append(self), fit(self, *args, **kwargs))[1]
install()
path = sys.modules.get("{KERAS_S}") or __import__("importlib").util.find_spec("{KERAS_S}").origin
code = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", sys.argv[1], "-c", "/dev/null", path])
assert len(calls) == 2, calls
sys.exit(code)
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_keras_s_test_of_replicas_passes(tmp_path):
    if importlib.util.find_spec(KERAS_S) is None:
        pytest.skip("needs a Keras that brings its tests")
    interpreters.run(["-c", ROUTED, str(tmp_path)], check=True, cwd=tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", [2, 3])
def test_the_tutorial_of_several_workers_runs(count, tmp_path):
    arguments = ["-m", "tests.parallel.tutorial_target", str(tmp_path)]
    codes = finish(tmp_path, start_tasks(arguments, {"worker": free_addresses(count)}, tmp_path))
    assert not any(codes), "\n".join(errors(tmp_path, index)[-3000:] for index in range(count))
    found = [json.loads((tmp_path / f"found{index}.json").read_text()) for index in range(count)]
    assert all(each["same"] for each in found)
    for each in found[1:]:
        assert each["history"] == found[0]["history"]
        assert each["sum"] == pytest.approx(found[0]["sum"], abs=1e-6)
    assert found[0]["history"]["loss"][-1] < found[0]["history"]["loss"][0]


def on_ray(name, directory):
    """Runs one of Ray's examples; returns the histories and batches of each worker."""
    pytest.importorskip("ray.train", reason="needs the extra [ray]")
    printed_by("-m", "tests.parallel.ray_examples", name, directory)
    found = [pickle.loads((directory / f"{rank}.pickle").read_bytes()) for rank in range(2)]
    assert found[0][0] == found[1][0]  # the histories
    return found


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ray_s_example_of_mnist_runs(tmp_path):
    (histories, _), _ = on_ray("mnist", tmp_path)
    expected = ray_examples.convolutional().fit(
        ray_examples.digits(), shuffle=False, epochs=3, steps_per_epoch=8, verbose=0
    )
    assert_same_history(histories[0], expected.history, 1e-5)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ray_s_example_of_regression_trains_each_worker_s_own_rows(tmp_path):
    """Each step's batch is what the workers have drawn for it: one device trains on the same."""
    (histories, first), (_, second) = on_ray("regression", tmp_path)
    model = ray_examples.linear()
    for epoch, history in enumerate(histories):
        batches = [
            tuple(np.concatenate(parts) for parts in zip(*pair, strict=True))
            for pair in zip(first[epoch], second[epoch], strict=True)
        ]
        rows = np.concatenate([x for x, _ in batches])
        assert rows.shape == np.unique(rows, axis=0).shape == (300, len(ray_examples.COLUMNS))
        assert 0 < sum(len(x) for x, _ in first[epoch]) < 300
        spec = tuple(tf.TensorSpec([None, *part.shape[1:]], part.dtype) for part in batches[0])
        data = tf.data.Dataset.from_generator(functools.partial(iter, batches), output_signature=spec)
        data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))
        expected = model.fit(data, shuffle=False, verbose=0).history
        assert_same_history(history, expected, 1e-5)
