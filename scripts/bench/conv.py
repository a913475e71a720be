"""Convolutions next to tf.nn.conv2d, layer by layer and in whole steps; scripts/compare_conv.sh calls it.

Each network at each batch size, and each training step, is a process of its own (`conv_layers`,
`conv_training`). Their JSON and the journal go to the output directory.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench import children, command
from scripts.bench.publish import Cells, Finding

_NETWORKS, _BATCHES = ("unet", "vgg16", "resnet50"), ("1", "8")
_STEPS = ("unet:1", "unet:8", "vgg16:4", "mnist:128")
_QUICK_STEPS = ("unet:1", "mnist:128")
_WORDS = """\
Each layer's convolution, forward (with bias and ReLU) and both gradients, next to `tf.nn.conv2d`.
Contestants run in rounds, nine at least, each in a random order; a ratio is the median of the rounds'
ratios, above 1 is faster. `auto` is what the operation chooses by itself. A training step is forward,
backward and SGD on a batch that is there. The share of convolution in the stock step bounds what any
convolution can gain: 1 ÷ (1 - share)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what the journal does not hold; returns the exit status."""
    line = _command()
    options = line.parse(argv)
    output_dir = Path(options.output_dir)
    with line.journal(options) as journal:
        found = {}
        for key, job in jobs(quick=options.quick):
            found[key] = journal.once(key, functools.partial(children.run_module, *job))
            (output_dir / f"{key}.json").write_text(json.dumps(found[key], indent=1))
        line.show(finding(found), options, journal)
    return 0


def jobs(*, quick: bool) -> Iterator[tuple[str, list[str]]]:
    """Yields the name and the module with the arguments of each process."""
    for network in _NETWORKS[:1] if quick else _NETWORKS:
        for batch in _BATCHES[:1] if quick else _BATCHES:
            budget_s = "0.3" if quick else "1.0"
            yield f"{network}-{batch}", ["scripts.bench.conv_layers", network, batch, budget_s]
    for step in _QUICK_STEPS if quick else _STEPS:
        model, _, batch = step.partition(":")
        yield f"step-{model}-{batch}", ["scripts.bench.conv_training", model, batch]


def finding(found: dict[str, Any]) -> Finding:
    """Returns the page: what every process found, by its name."""
    layers = {key: value for key, value in found.items() if not key.startswith("step-")}
    steps = [value for key, value in found.items() if key.startswith("step-")]
    return Finding(
        question="How fast is the tiled convolution, layer by layer and in a step?",
        title="The tiled convolution next to `tf.nn.conv2d`",
        words=_WORDS,
        tables=[
            ("Layers of 3×3 and 64 channels or more", _layers(layers)),
            ("Training steps", _steps(steps)),
        ],
        data=found,
    )


def _layers(found: dict[str, Any]) -> Cells:
    directions = ("forward", "input_gradient", "filter_gradient")
    body = []
    for key, value in found.items():
        ours = [row["ratio"]["auto"] for row in value["rows"]]
        body.append((key, *(_mean(value["summary"].get(name)) for name in directions), f"{min(ours):.2f}"))
    head = ("network and batch, `auto`: mean (smallest)", *(name.replace("_", " ") for name in directions))
    return Cells((*head, "smallest of all layers"), tuple(body))


def _mean(entry: dict[str, float] | None) -> str:
    return "-" if entry is None else f"{entry['geometric_mean']:.2f} ({entry['minimum']:.2f})"


def _steps(found: Sequence[dict[str, Any]]) -> Cells:
    body = []
    for step in found:
        stock, ours = (step["milliseconds_quartiles"][name][1] for name in ("stock", "ours"))
        bound = step["amdahl_bound"]
        body.append(
            (
                f"{step['model']}, batch {step['batch']}",
                f"{stock:.1f}",
                f"{ours:.1f}",
                f"{step['ratio']:.2f}",
                f"{step['convolution_share']:.0%}",
                "-" if bound is None else f"{bound:.2f}",
            )
        )
    head = ("step", "stock, ms", "ours, ms", "times as fast", "share of convolution", "at most")
    return Cells(head, tuple(body))


def _command() -> command.Command:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="U-Net at batch 1 and two steps: a check, no figures"
    )
    return command.Command(
        parser, script="scripts/compare_conv.sh", series="convolution", output_dir="runs/conv"
    )


if __name__ == "__main__":
    sys.exit(command.run(main))
