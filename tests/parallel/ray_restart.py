"""Two Ray workers that fail together once, each with directories of its own: what Ray keeps is enough.

    python -m tests.parallel.ray_restart directory

Prints the history of the training, and in how many runs of the workers it was made.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path


def train(config):
    import keras
    import ray.train

    from overlap_train import Trainer
    from overlap_train.parallel import RayReport, join_cluster
    from tests.networks import VALIDATION_ROWS, arrays, sequential

    strategy = join_cluster()
    with strategy.scope():
        model = sequential("adam")
    began = Path(config["directory"]) / f"began{ray.train.get_context().get_world_rank()}"
    again = began.exists()
    with began.open("a") as file:
        file.write("began\n")

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3 and not again:
                raise RuntimeError("once")

    resume = tempfile.mkdtemp()  # of this worker and this run alone
    history = Trainer(model).fit(
        *arrays(),
        batch_size=32,
        epochs=6,
        validation_data=arrays(VALIDATION_ROWS, 1),
        callbacks=[Fails(), RayReport(resume)],
        resume=resume,
        verbose=0,
    )
    if ray.train.get_context().get_world_rank() == 0:
        (Path(config["directory"]) / "history.json").write_text(json.dumps(history.history))


def main(directory: str) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    trainer = TensorflowTrainer(
        train,
        train_loop_config={"directory": directory},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=directory, failure_config=FailureConfig(max_failures=2)),
    )
    result = trainer.fit()
    runs = len((Path(directory) / "began0").read_text().split())
    history = json.loads((Path(directory) / "history.json").read_text())
    print(json.dumps({"runs": runs, "history": history, "last": result.metrics}))


if __name__ == "__main__":
    main(sys.argv[1])
