"""Measures what several hosts hide of their validations, and how far their numbers are from one device's.

    python -m scripts.bench.hosts --publish

The hosts are processes of this machine and share its cores. Each round runs every setting once, another one
first each time, so that all see the same load.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import re
import socket
import statistics
import sys
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.bench import children, command
from scripts.bench.journal import Journal
from scripts.bench.publish import Cells, Finding
from scripts.bench.workloads import WORKLOADS

Case = dict[str, Any]

_ONE = "one host"
_HIDING: dict[str, Case] = {
    _ONE: {"overlap": "always"},
    "two hosts": {"hosts": 2},
    "four hosts": {"hosts": 4},
    "two hosts, an evaluator": {"hosts": 2, "evaluator": True},
}
_NUMBERS: dict[str, Case] = {
    "one device": {},
    "one device, each batch's rows in reverse": {"reverse": True},
    "two replicas of one process": {"replicas": 2},
    "two hosts": {"hosts": 2},
}
_SHORT: Case = {"workload": "text", "rows": 3200, "validation_rows": 1600, "batch_size": 32, "epochs": 6}
_EPOCHS = 40
_LONG: Case = {"workload": "mlp", "rows": 2048, "validation_rows": 512, "batch_size": 32, "plan": "keras"}
_TIMEOUT_S = 900.0
_NEUTRAL = re.compile(r"plan: |each epoch is validated .*while|epoch \d+: the others waited")  # no warnings
_WORDS = """\
All hosts are processes of one machine and share its cores. Hidden are those seconds of a validation in which
training calls ran: medians of the rounds, in the epochs before the last, behind which no training follows.
Seconds are the chief's: of its share of the validation, or with an evaluator from the snapshot to the arrival
of the result. The tables of differences compare the losses of long trainings, relatively and at most."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and prints its tables; returns 0."""
    line = _command()
    options = line.parse(argv)
    with line.journal(options) as journal:
        hidden = _hidden(options, journal)
        losses = {name: _losses(name, journal) for name in options.long.split()}
        line.show(_finding(hidden, losses), options, journal)
    return 0


def _hidden(options: argparse.Namespace, journal: Journal) -> dict[str, list[Any]]:
    """Returns what each round of each setting came to."""
    found: dict[str, list[Any]] = {name: [] for name in _HIDING}
    for number in range(options.rounds):
        names = list(_HIDING)
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            case = {**_SHORT, **_HIDING[name]}
            found[name].append(journal.once(f"{name}/{number}", functools.partial(_run, case)))
            print(f"{name}:", *_sums(found[name][-1]), found[name][-1]["warned"], flush=True)
    return found


def _losses(name: str, journal: Journal) -> dict[str, list[float]]:
    """Returns the losses of a long training in each setting, of each epoch and of its validation."""
    optimizer, _, activation = name.partition("-")
    shared = {**_LONG, "optimizer": optimizer, "activation": activation or "relu", "epochs": _EPOCHS}
    found = {}
    for setting, case in _NUMBERS.items():
        work = functools.partial(_run, {**shared, **case})
        found[setting] = journal.once(f"{name}/{setting}", work)["losses"]
    return found


def _run(case: Case) -> Any:
    """Trains in as many processes as a case has hosts; returns what the chief says."""
    hosts, apart = case.get("hosts", 1), bool(case.get("evaluator"))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as sockets:
        listening = [
            sockets.enter_context(socket.create_server(("localhost", 0))) for _ in range(hosts + apart)
        ]
        addresses = [f"localhost:{each.getsockname()[1]}" for each in listening]
        sockets.close()
        cluster = {"worker": addresses[:hosts]} | ({"evaluator": addresses[hosts:]} if apart else {})
        tasks = [{"type": kind, "index": n} for kind, those in cluster.items() for n in range(len(those))]
        argument = json.dumps({**case, "run_dir": folder if apart else None})

        def run(task: Case) -> Any:
            config = json.dumps({"cluster": cluster, "task": task}) if len(tasks) > 1 else "{}"
            return children.run_module(
                "scripts.bench.hosts",
                "--child",
                argument,
                log=Path(folder) / f"{task['type']}{task['index']}.log",
                timeout_s=_TIMEOUT_S,
                environment={"TF_CONFIG": config},
            )

        with ThreadPoolExecutor(len(tasks)) as threads:
            chief, *_ = threads.map(run, tasks)  # which raises what any of them did
        return chief


def _child(case: Case) -> Any:
    """Trains as one of the hosts; returns the seconds, messages and losses of its `fit`."""
    import keras
    import tensorflow as tf

    from overlap_train import ExecutionPlan, Trainer, ValidationPolicy
    from overlap_train.parallel import join_cluster

    strategy: Any = None
    if "replicas" in case:
        cpu, parts = tf.config.list_physical_devices("CPU")[0], case["replicas"]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * parts)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(parts)])
    elif json.loads(os.environ["TF_CONFIG"]):
        strategy = join_cluster()
    keras.utils.set_random_seed(0)
    workload = WORKLOADS[case["workload"]]
    task = workload.load(Path(), case["rows"], case["validation_rows"])
    x, y = task.train.x, task.train.y
    if case.get("reverse"):
        x, y = (a.reshape(-1, case["batch_size"], *a.shape[1:])[:, ::-1].reshape(a.shape) for a in (x, y))
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = workload.network()
        for layer in model.layers[:-1] if "activation" in case else ():
            layer.activation = keras.activations.get(case["activation"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(case.get("optimizer", "adam"), loss, metrics=["accuracy"])
    plain = ExecutionPlan(kernels="keras", batch_splits=1, jit=False)
    policy = ValidationPolicy(evaluator=case["run_dir"], overlap=case.get("overlap", "auto"))
    trainer = Trainer(model, validation=policy, execution=plain if case.get("plan") == "keras" else None)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", UserWarning)
        history = trainer.fit(
            x,
            y,
            batch_size=case["batch_size"],
            epochs=case["epochs"],
            shuffle=False,
            validation_data=(task.validation.x, task.validation.y),
            verbose=0,
        ).history
    return {
        "seconds": [[a.trained_s, a.validated_s, a.hidden_s] for a in trainer.accounts],
        "warned": [*trainer.messages, *(str(each.message) for each in warned)],
        "losses": [
            value for pair in zip(history["loss"], history["val_loss"], strict=True) for value in pair
        ],
    }


def _sums(run: Any) -> tuple[float, float, float]:
    """Returns the seconds validated and hidden before the last epoch, and the hidden part."""
    validated, hidden = (sum(epoch[place] for epoch in run["seconds"][:-1]) for place in (1, 2))
    return validated, hidden, hidden / validated


def _differences(losses: Sequence[float], expected: Sequence[float], epochs: int) -> float:
    pairs = list(zip(losses, expected, strict=True))[: 2 * epochs : 2]  # without those of the validations
    return max(abs(own - other) / abs(other) for own, other in pairs)


def _finding(hidden: Any, losses: dict[str, Any]) -> Finding:
    """Returns the page: what is hidden, and how far apart the numbers are."""
    medians = {
        name: [statistics.median(values) for values in zip(*map(_sums, runs), strict=True)]
        for name, runs in hidden.items()
        if runs
    }
    rows = []
    for name, (validated, seconds, part) in medians.items():
        parts = " ".join(f"{_sums(run)[2]:.2f}" for run in hidden[name])
        warned = sum(_NEUTRAL.match(text) is None for run in hidden[name] for text in run["warned"])
        ratio = part / medians[_ONE][2]
        rows.append((name, *(f"{x:.2f}" for x in (validated, seconds, part, ratio)), parts, str(warned)))
    head = ("setting", "validated s", "hidden s", "hidden part", "÷ one host's", "in each round", "warnings")
    tables = [("What is hidden", Cells(head, tuple(rows)))] if rows else []
    until = (1, 8, _EPOCHS)
    for optimizer, found in losses.items():
        one, *others = found
        pairs = [(name, one) for name in others] + [(others[-1], others[-2])]
        body = tuple(
            (
                f"{name} and {other}",
                *(f"{_differences(found[name], found[other], epochs):.1e}" for epochs in until),
            )
            for name, other in pairs
        )
        headings = ("compared", *(f"until epoch {epochs}" for epochs in until))
        tables.append((f"Differences with {optimizer}", Cells(headings, body)))
    return Finding(
        question="How much of a validation do several hosts hide, and how far are they from one device?",
        title="Several hosts",
        words=_WORDS,
        tables=tables,
        data={"hidden": hidden, "losses": losses},
    )


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5, help="of what is hidden; none with 0")
    parser.add_argument(
        "--long",
        default="sgd adam adam-tanh",
        help="optimizers of the long trainings, perhaps with an activation",
    )
    return command.Command(
        parser, script="python -m scripts.bench.hosts", series="hosts", output_dir="results/hosts"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(_child(json.loads(sys.argv[2]))))
    else:
        sys.exit(command.run(main))
