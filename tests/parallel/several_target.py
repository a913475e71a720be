"""Runs cases of `several_cases.py`, one after the other in this process, for `test_several.py`.

    python -m tests.parallel.several_target one|replicas|hosts N directory name...

Writes what came of each to a file, also where it was refused. Ends at the first that fails otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from overlap_train import Trainer
from overlap_train.parallel import join_cluster
from tests.differential import read_files
from tests.parallel.several_cases import CASES


def run_case(name: str, strategy, directory: Path, by_keras: bool) -> dict:
    case = CASES[name]
    directory.mkdir(parents=True)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = case.build()
    arguments = {"epochs": 2, "verbose": 0} | case.arguments(directory)
    try:
        if by_keras and case.by_keras:
            fit = model.fit
        else:
            policy = None if case.policy is None else case.policy()
            fit = Trainer(model, validation=policy).fit
            if case.resumes:
                arguments["resume"] = directory / "resume"
        history = fit(**arguments)
    except (ValueError, TypeError, RuntimeError) as error:
        steps = int(keras.ops.convert_to_numpy(model.optimizer.iterations))
        return {"error": type(error).__name__, "message": str(error), "steps": steps}
    variables = (*model.variables, *model.optimizer.variables)
    np.savez(directory / "weights.npz", *[np.asarray(keras.ops.convert_to_numpy(v)) for v in variables])
    files = [file for file in read_files(directory) if "board" not in file and "resume" not in file]
    return {"history": history.history, "epoch": history.epoch, "files": sorted(files)}


def main(kind: str, count: int, directory: Path, names: list[str]) -> None:
    index, strategy = 0, None
    if kind == "hosts":
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        strategy = join_cluster()
    elif kind == "replicas":
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * count
        )
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(count)])
    for name in names:
        own = directory / name / str(index)
        found = run_case(name, strategy, own, kind == "one")
        (own / "result.json").write_text(json.dumps(found, default=float))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
