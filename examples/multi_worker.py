"""Trains MNIST on several hosts, or on several processes of this machine in one command.

Run from the repository root, after scripts/setup.sh:

    .venv/bin/python examples/multi_worker.py --hosts=2
    .venv/bin/python examples/multi_worker.py --hosts=2 --evaluator

With `TF_CONFIG` set, as by examples/multi_worker.slurm, this process is one of the hosts. Otherwise it starts
--hosts processes of itself on free ports of this machine, with --evaluator one more that validates for them
through a directory, and waits for all.

A process that SIGTERM or Ctrl-C has stopped ends with exit code 75, so that Kubernetes or Slurm starts it
again instead of taking the training for completed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

# EX_TEMPFAIL of sysexits.h, "the user is invited to retry"; 0 would say that the training is completed.
INTERRUPTED = 75

FLAGS = flags.FLAGS
flags.DEFINE_integer("hosts", 2, "Processes to start on this machine if TF_CONFIG is not set.", lower_bound=1)
flags.DEFINE_bool("evaluator", False, "Start one more process, which validates while the others train.")
flags.DEFINE_string("run_dir", None, "Where the evaluator and the others meet; all of them see it.")
flags.DEFINE_integer("epochs", 3, "Epochs to train at most.", lower_bound=1)
flags.DEFINE_integer("batch_size", 128, "Images in a batch, of all hosts together.", lower_bound=2)
flags.DEFINE_integer("rows", None, "Number of images to train on; all by default.", lower_bound=1)
flags.DEFINE_string("data_dir", None, "A directory that tensorflow-datasets prepared; it must hold MNIST.")
flags.DEFINE_string("resume", None, "A directory for checkpoints, which the chief can reach.")


def train() -> int:
    """Train as one of the hosts; return the exit code."""
    import keras

    import overlap_train
    from overlap_train.models.mnist_cnn import mnist_cnn
    from overlap_train.models.mnist_data import load_mnist
    from overlap_train.parallel import join_cluster

    strategy = join_cluster()
    keras.utils.set_random_seed(0)  # the same order of the images on all hosts
    digits = load_mnist(FLAGS.data_dir)
    with strategy.scope():
        model = mnist_cnn(from_uint8=True)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"])
    policy = overlap_train.ValidationPolicy(evaluator=FLAGS.run_dir)
    history = overlap_train.Trainer(model, validation=policy).fit(
        digits.x_train[: FLAGS.rows],
        digits.y_train[: FLAGS.rows],
        batch_size=FLAGS.batch_size,
        epochs=FLAGS.epochs,
        validation_data=(digits.x_test[: FLAGS.rows], digits.y_test[: FLAGS.rows]),
        callbacks=[keras.callbacks.EarlyStopping("val_loss", patience=3)],
        resume=FLAGS.resume,
        verbose=2,
    )
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    for value in history.history.get("val_accuracy", [])[-1:]:  # none if it was interrupted before
        print(f"{task['type']} {task['index']}: val_accuracy {value:.4f}")
    return INTERRUPTED if history.ended.startswith("interrupted") else 0


def start_hosts(count: int, run_dir: str | None) -> int:
    """Starts processes of this program as the hosts; returns the worst exit code.

    Args:
        count: hosts that train.
        run_dir: where they meet an evaluator, which is started too; None starts none.
    """
    listeners = [socket.create_server(("localhost", 0)) for _ in range(count + bool(run_dir))]
    addresses = [f"localhost:{listener.getsockname()[1]}" for listener in listeners]
    for listener in listeners:
        listener.close()
    cluster = {"worker": addresses[:count]} | ({"evaluator": addresses[count:]} if run_dir else {})
    processes = []
    for kind, index in ((kind, index) for kind, hosts in cluster.items() for index in range(len(hosts))):
        config = {"cluster": cluster, "task": {"type": kind, "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
        command = [sys.executable, *sys.argv, *([f"--run_dir={run_dir}"] if run_dir else [])]
        processes.append(subprocess.Popen(command, env=environment))
    return max(abs(process.wait()) for process in processes)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments: {' '.join(argv[1:])}")
    if "TF_CONFIG" in os.environ:
        sys.exit(train())
    with tempfile.TemporaryDirectory() as folder:
        run_dir = (FLAGS.run_dir or folder) if FLAGS.evaluator else None
        sys.exit(start_hosts(FLAGS.hosts, run_dir))


if __name__ == "__main__":
    app.run(main)
