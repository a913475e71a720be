"""One host of a small training, for `test_hosts.py`, which starts it once or twice.

    python -m tests.parallel.hosts_target '{"hosts": 2, ...}' directory

The first argument is a JSON object of what varies, the second a directory for what comes of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from overlap_train import CheckpointPolicy, EvaluatorPolicy, Trainer, ValidationPolicy
from overlap_train.parallel import join_cluster
from tests.networks import arrays, looking_up, sequential
from tests.parallel import several_cases


def slowed(dataset, seconds: float):
    """Makes each batch of a dataset take so long."""

    def wait(x, y):
        time.sleep(seconds)  # the hazard itself
        return x, y

    def slowly(x, y):
        x_out, y_out = tf.numpy_function(wait, [x, y], [x.dtype, y.dtype])
        return tf.ensure_shape(x_out, x.shape), tf.ensure_shape(y_out, y.shape)

    return dataset.map(slowly)


def made_by_python(source: str, x, y):
    """Returns data whose Python draws: orders from a generator of its own, and noise from NumPy's."""

    class Drawing(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.generator = np.random.default_rng(3)
            self.order = np.arange(len(x))

        def __len__(self):
            return -(-len(x) // 32)

        def __getitem__(self, index):
            rows = self.order[index * 32 : (index + 1) * 32]
            return x[rows] + np.random.normal(0, 0.1, x[rows].shape).astype("float32"), y[rows]

        def on_epoch_end(self):
            self.order = self.generator.permutation(len(x))

    def endless():
        drawing = Drawing()
        for number in itertools.count():
            yield drawing[number % len(drawing)]

    return (Drawing(), {}) if source == "drawing pydataset" else (endless(), {"steps_per_epoch": 5})


def own_batches(case: dict, x, y, index: int):
    """Returns what one host of several passes of the rows that they share; one alone passes what all do.

    `own_rows` says how many of the rows each host has, and `own_batch` in batches of how many.
    """
    ends = np.cumsum([0, *case["own_rows"]])
    parts = [slice(*pair) for pair in itertools.pairwise(ends)]
    weights = np.linspace(0.5, 1.5, len(x), dtype="float32")
    sizes = case["own_batch"]
    # As long as the longest host's, which all hosts know beforehand.
    count = max(-(-n // size) for n, size in zip(case["own_rows"], sizes, strict=True))
    if case["hosts"] > 1:
        own, size = parts[index], sizes[index]
        data = x[own], y[own], weights[own]
        if case.get("source") == "pydataset":
            return several_cases.Rows(data, size), None, {"shuffle": False}
        if case.get("source") == "arrays":
            return *data[:2], {"sample_weight": data[2], "batch_size": size, "shuffle": False}
        rows = tf.data.Dataset.from_tensor_slices(data)
        rows = rows.shuffle(64, seed=index + 1) if case.get("own_order") else rows
        return rows.batch(size), None, {}

    def batches():
        for number in range(count):
            taken = np.concatenate(
                [
                    np.arange(part.start, part.stop)[number * size : (number + 1) * size]
                    for part, size in zip(parts, sizes, strict=True)
                ]
            )
            yield x[taken], y[taken], weights[taken]

    spec = [tf.TensorSpec([None, *a.shape[1:]], a.dtype) for a in (x, y, weights)]
    whole = tf.data.Dataset.from_generator(batches, output_signature=tuple(spec))
    return whole.apply(tf.data.experimental.assert_cardinality(count)), None, {}


def build_callbacks(case: dict, directory: Path) -> list:
    kc = keras.callbacks
    callbacks = [
        kc.EarlyStopping(
            "val_loss",
            patience=case.get("patience", 2),
            min_delta=case.get("min_delta", 0.02),
            restore_best_weights=True,
        ),
        kc.ModelCheckpoint(directory / "best.weights.h5", save_best_only=True, save_weights_only=True),
        kc.CSVLogger(str(directory / "log.csv")),
    ]
    if "plateau" in case:
        callbacks.append(kc.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.05))
    if "schedule" in case:
        callbacks.append(kc.LearningRateScheduler(lambda epoch, lr: lr * 0.9))
    return callbacks


def everywhere(case: dict, directory: Path, index: int):
    """Returns a callback that notes on each host what it is called with, and may do something on one."""

    class Everywhere(keras.callbacks.Callback):
        on_all_hosts = True

        def on_train_begin(self, logs=None):
            (directory / f"everywhere{index}.txt").write_text("begin\n")

        def on_epoch_end(self, epoch, logs=None):
            with (directory / f"everywhere{index}.txt").open("a") as file:
                file.write(f"{epoch} {sorted(logs)} {logs['val_loss']:.6g}\n")

    class Acting(Everywhere):
        def on_train_batch_end(self, batch, logs=None):
            if [index, batch, len(self.model.history.epoch)] == case["acts_at"]:
                if case.get("acts") == "is killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise RuntimeError("on this host alone")

    return Acting() if "acts_at" in case else Everywhere()


def tell(case: dict):
    """Returns a callback that says on standard output that an epoch has ended."""

    class Telling(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"epoch {epoch}", flush=True)
            if case.get("hold_at") == epoch:
                sys.stdin.readline()
            if case.get("raise_at") == epoch:
                raise RuntimeError("a callback of the user's own")

    class Arming(Telling):
        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            if epoch == case["arm_at"]:
                self.on_train_batch_end = lambda batch, logs=None: print(self.model.optimizer.iterations)

    return Arming() if "arm_at" in case else Telling()


def build_model(case: dict):
    if case.get("model") == "unseeded":  # sequential() sets a seed
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(4)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model
    if case.get("model") == "own step":
        return several_cases.compiled(several_cases.OwnTrainStep, metrics=None)()
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam": lambda: keras.optimizers.Adam(0.01),
        "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.02),
    }
    if case.get("model") == "looking_up":
        return looking_up(optimizers[case["optimizer"]]())
    return sequential(optimizers[case.get("optimizer", "adam")]())


def main(case: dict, directory: Path) -> None:
    evaluator = case.get("evaluator", False)
    own_rows = {"own_rows": True} if "own_rows" in case else {}
    strategy = join_cluster(**own_rows) if case["hosts"] > 1 or evaluator else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = build_model(case)
    task = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0, "type": ""}}'))["task"]
    index = case["hosts"] if task["type"] == "evaluator" else task["index"]
    x, y = arrays(case.get("rows", 203), case.get("seeds", [0] * 5)[index])
    data = {"batch_size": case.get("batch_sizes", [32] * 5)[index]}
    if case.get("source") in ("dataset", "unseeded dataset"):
        seed = 3 if case["source"] == "dataset" else None
        x, y = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(203, seed=seed).batch(32), None
        data = {"shuffle": False}
    if case.get("source") == "random dataset":
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(32)
        x, y = rows.map(lambda x, y: (x + tf.random.uniform(tf.shape(x)), y)), None
        data = {"shuffle": False}
    if case.get("source") in ("drawing pydataset", "drawing generator"):
        (x, data), y = made_by_python(case["source"], x, y), None
    if "own_rows" in case:
        x, y, data = own_batches(case, x, y, index)
    if "batch_takes_s" in case:
        x = slowed(x, case["batch_takes_s"][index])
    meeting = EvaluatorPolicy(directory / "shared", wait_s=60) if evaluator else None
    lag, every = case.get("max_lag", 1), case.get("validated_every")
    policy = ValidationPolicy(max_lag=lag, workers=2, evaluator=meeting, every_steps=every)
    resume = CheckpointPolicy(directory / "checkpoints", every_steps=case.get("written_every"))
    trainer = Trainer(model, validation=policy)
    validation = {"validation_data": arrays(case.get("validation_rows", 91), 1), "validation_batch_size": 10}
    if "validation_shards" in case:  # the slip of a program whose hosts have their own rows
        rows = tf.data.Dataset.from_tensor_slices(validation["validation_data"])
        validation = {"validation_data": rows.shard(case["validation_shards"], index).batch(10)}
    history = trainer.fit(
        x,
        y,
        **{**data, **case.get("fit", {})},
        epochs=case.get("epochs", 8),
        **validation,
        callbacks=[*build_callbacks(case, directory), everywhere(case, directory, index), tell(case)],
        verbose=0,
        resume=resume if case.get("resume") and index in case.get("resume_on", [index]) else None,
    )
    np.savez(
        directory / f"final{index}.npz",
        **{str(i): np.asarray(v) for i, v in enumerate((*model.variables, *model.optimizer.variables))},
    )
    spans, accounts = trainer.recorder.spans(), trainer.accounts
    evaluation = trainer.evaluate(*arrays(91, 1), batch_size=10, verbose=0, return_dict=True)
    outcome = {
        "validated_by": sorted({span.thread for span in spans if span.name == "validate"}),
        "messages": list(trainer.messages),
        "inside": [(each.step, dict(each.metrics)) for each in trainer.step_validations],
        "hidden": [(account.hidden_s, account.validated_s) for account in accounts],
        "slow": [account.slow_host for account in accounts],
        "history": {"epoch": history.epoch, "evaluation": list(evaluation.values()), **history.history},
    }
    for name, value in outcome.items():
        (directory / f"{name}{index}.json").write_text(json.dumps(value))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
