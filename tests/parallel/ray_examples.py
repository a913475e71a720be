"""Ray's `tensorflow_regression_example` with `Trainer(model).fit`, on two Ray workers of this machine.

    python -m tests.parallel.ray_examples directory

What it does is done here in its order, with a shard of a CSV file that Ray Data reads and `to_tf` batches,
in one `fit` an epoch. New are `join_cluster`, a seed, and `RayReport` in the place of
`ReportCheckpointCallback`, for which Ray loads Keras 2. Each worker writes what it has drawn.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

WORKERS = 2
COLUMNS = [f"x{i:03}" for i in range(20)]


def linear() -> Any:
    """Returns the model of the regression example."""
    import keras

    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(10), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((len(COLUMNS),)), *layers])
    model.compile(
        keras.optimizers.SGD(1e-3), keras.losses.mean_absolute_error, metrics=["mean_squared_error"]
    )
    return model


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


def main(directory: Path) -> None:
    import ray
    from ray.data.preprocessors import Concatenator
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    ray.init(num_cpus=WORKERS + 1)
    concatenator = Concatenator(columns=COLUMNS, output_column_name="x")
    trainer = TensorflowTrainer(
        train_regression,
        train_loop_config={"directory": str(directory)},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(storage_path=str(directory)),
        datasets={"train": concatenator.fit_transform(ray.data.read_csv(table(directory)))},
    )
    trainer.fit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
