"""Programs of TensorFlow and Keras for several workers and replicas, with `Trainer(model).fit`."""

import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests import interpreters
from tests.networks import assert_same_history
from tests.parallel import ray_examples
from tests.parallel.test_hosts import Host, errors, finish, free_ports

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
@pytest.mark.parametrize("workers", [2, 3])
def test_the_tutorial_of_several_workers_runs(workers, tmp_path):
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(workers)]}
    processes = []
    for index in range(workers):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        arguments = ["-m", "tests.parallel.tutorial_target", str(tmp_path)]
        processes.append(Host(arguments, environment, tmp_path / f"errors{index}.txt"))
    codes = finish(tmp_path, processes)
    assert not any(codes), "\n".join(errors(tmp_path, index)[-3000:] for index in range(workers))
    found = [json.loads((tmp_path / f"found{index}.json").read_text()) for index in range(workers)]
    assert all(each["same"] for each in found)
    for each in found[1:]:
        assert each["history"] == found[0]["history"]
        assert each["sum"] == pytest.approx(found[0]["sum"], abs=1e-6)
    assert found[0]["history"]["loss"][-1] < found[0]["history"]["loss"][0]


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_ray_s_example_of_regression_trains_each_worker_s_own_rows(tmp_path):
    """Each step's batch is what the workers have drawn for it: one device trains on the same."""
    pytest.importorskip("ray.train", reason="needs the extra [ray]")
    command = [sys.executable, "-m", "tests.parallel.ray_examples", str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    (histories, first), (others, second) = (
        pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(2)
    )
    assert histories == others
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
