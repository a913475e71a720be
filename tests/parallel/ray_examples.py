"""Ray's TensorFlow examples with `Trainer(model).fit`, each on two Ray workers of this machine.

    python -m tests.parallel.ray_examples mnist|regression directory

What they do is done here in their order: `tensorflow_mnist_example` with a shuffled, endless dataset of all
digits on each worker, `tensorflow_regression_example` with a shard of a CSV file that Ray Data reads and
`to_tf` batches, in one `fit` an epoch. New are `join_cluster`, a seed, and `RayReport` in the place of
`ReportCheckpointCallback`, for which Ray loads Keras 2. Each worker writes what it has drawn.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

WORKERS = 2
COLUMNS = [f"x{i:03}" for i in range(20)]


def dense(units: int, *layers: Any) -> Any:
    import keras

    return keras.Sequential([*layers, keras.layers.Dense(10), keras.layers.Dense(units)])


def linear() -> Any:
    """Returns the model of the regression example."""
    import keras

    keras.utils.set_random_seed(1)
    model = dense(1, keras.Input((len(COLUMNS),)))
    model.compile(
        keras.optimizers.SGD(1e-3), keras.losses.mean_absolute_error, metrics=["mean_squared_error"]
    )
    return model


def convolutional() -> Any:
    """Returns the model of the MNIST example."""
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    inputs = [keras.Input((28, 28)), layers.Reshape((28, 28, 1)), layers.Conv2D(4, 3, activation="relu")]
    model = dense(10, *inputs, layers.Flatten())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss, metrics=["accuracy"])
    return model


def digits() -> Any:
    """Returns an endless shuffled dataset, the same on all workers."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 512)
    x = (rng.random((512, 28, 28)) * 0.2 + y[:, None, None] / 20).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(512).repeat().batch(16 * WORKERS)


def noted(dataset: Any, drawn: list[Any]) -> Any:
    """Returns a dataset whose batches are noted as they are drawn."""
    import tensorflow as tf

    def note(x: Any, y: Any) -> Any:
        drawn.append((x, y))
        return x, y

    def through(x: Any, y: Any) -> Any:
        parts = tf.numpy_function(note, [x, y], [x.dtype, y.dtype])
        return tuple(tf.ensure_shape(part, old.shape) for part, old in zip(parts, (x, y), strict=True))

    return dataset.map(through)


def train_mnist(config: dict[str, Any]) -> None:
    from overlap_train import Trainer
    from overlap_train.parallel import RayReport, join_cluster

    with join_cluster().scope():
        model = convolutional()
    history = Trainer(model).fit(
        digits(), shuffle=False, epochs=3, steps_per_epoch=8, callbacks=[RayReport()], verbose=0
    )
    write(config, [history.history], [])


def train_regression(config: dict[str, Any]) -> None:
    import ray.train

    from overlap_train import Trainer
    from overlap_train.parallel import RayReport, join_cluster

    with join_cluster(own_rows=True).scope():
        model = linear()
    shard = ray.train.get_dataset_shard("train")
    histories, drawn = [], []
    for _ in range(3):
        drawn.append([])
        batches = noted(shard.to_tf("x", "y", batch_size=32), drawn[-1])
        histories.append(
            Trainer(model).fit(batches, shuffle=False, callbacks=[RayReport()], verbose=0).history
        )
    write(config, histories, drawn)


def write(config: dict[str, Any], histories: list[Any], drawn: list[Any]) -> None:
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    (Path(config["directory"]) / f"{rank}.pickle").write_bytes(pickle.dumps((histories, drawn)))


def table(directory: Path, rows: int = 300) -> str:
    """Writes the CSV file."""
    import numpy as np

    values = np.random.default_rng(0).normal(size=(rows, len(COLUMNS) + 1)).round(4)
    header = ",".join([*COLUMNS, "y"])
    path = directory / "regression.csv"
    np.savetxt(path, values, "%.4f", ",", header=header, comments="")
    return str(path)


def main(name: str, directory: Path) -> None:
    import ray
    from ray.data.preprocessors import Concatenator
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    ray.init(num_cpus=WORKERS + 1)
    datasets = {}
    if name == "regression":
        concatenator = Concatenator(columns=COLUMNS, output_column_name="x")
        datasets["train"] = concatenator.fit_transform(ray.data.read_csv(table(directory)))
    trainer = TensorflowTrainer(
        {"mnist": train_mnist, "regression": train_regression}[name],
        train_loop_config={"directory": str(directory)},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=str(directory)),
        datasets=datasets,
    )
    trainer.fit()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
