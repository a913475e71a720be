"""Two Ray workers that fail together once, each with directories of its own: what Ray keeps is enough.

    python -m tests.parallel.ray_restart directory epochs [kills] [seed]

With a number of kills one of them is killed so often instead, at moments that the seed decides. Prints the
history of the training, and in how many runs of the workers it was made.
"""

import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
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
    rank = ray.train.get_context().get_world_rank()
    began = Path(config["directory"]) / f"began{rank}"
    runs = len(began.read_text().split()) if began.exists() else 0
    with began.open("a") as file:
        file.write("began\n")

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 3 and not runs and not config["kills"]:
                raise RuntimeError("once")

    # Not in the callback: a resumed fit puts back what that remembers.
    rng, ended = random.Random(f"{config['seed']} {runs}"), itertools.count(1)
    dies, last = runs < config["kills"] and rank == rng.randint(0, 1), rng.randint(1, 5)

    class Killed(keras.callbacks.Callback):
        on_all_hosts = True

        def on_epoch_end(self, epoch, logs=None):
            if next(ended) == last and dies:
                arguments = os.getpid(), signal.SIGKILL
                threading.Timer(rng.uniform(0, 0.3), os.kill, arguments).start()

    resume = tempfile.mkdtemp()  # of this worker and this run alone
    history = Trainer(model).fit(
        *arrays(),
        batch_size=32,
        epochs=config["epochs"],
        validation_data=arrays(VALIDATION_ROWS, 1),
        callbacks=[Fails(), Killed(), RayReport(resume)],
        resume=resume,
        verbose=0,
    )
    if rank == 0:
        (Path(config["directory"]) / "history.json").write_text(json.dumps(history.history))


def main(directory: str, epochs: int, kills: int = 0, seed: int = 0) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    trainer = TensorflowTrainer(
        train,
        train_loop_config={"directory": directory, "epochs": epochs, "kills": kills, "seed": seed},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=directory, failure_config=FailureConfig(max_failures=kills + 2)),
    )
    result = trainer.fit()
    runs = len((Path(directory) / "began0").read_text().split())
    history = json.loads((Path(directory) / "history.json").read_text())
    print(json.dumps({"runs": runs, "history": history, "last": result.metrics}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
