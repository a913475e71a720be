"""What keeping the batches of a generator costs the training: kept for a rollback, against in step.

    python -m scripts.bench.keeping --repeats 5

Both train on the same batches with a ReduceLROnPlateau and one batch of validation. In step
(`keep_bytes=0`) nothing is kept. The seconds of the processors tell more than the clock where others use
the machine.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import keras
import numpy as np

import overlap_train

__all__ = ["SIZES", "measure"]

SIZES = {"small": ((32, 16), 400), "middle": ((64, 28, 28, 1), 200), "large": ((128, 64, 64, 3), 40)}
"""Of each kind of batch, the shape and the steps of an epoch."""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options = parser.parse_args()
    overlap_train.configure()
    print("| batches | bytes | in step, a step | kept, a step | cost by the clock | cost in processor time |")
    print("|---|---|---|---|---|---|")
    for size in options.sizes:
        shape, steps = SIZES[size]
        found: dict[str, list[tuple[float, float]]] = {"in step": [], "kept": []}
        for repeat in range(options.repeats):
            for way in list(found) if repeat % 2 else reversed(list(found)):
                found[way].append(measure(shape, steps, options.epochs, keep=way == "kept"))
        wall, cpu = (
            {way: statistics.median(pair[n] for pair in pairs) for way, pairs in found.items()}
            for n in range(2)
        )
        print(
            f"| {size} | {4 * np.prod(shape):,} | {wall['in step'] * 1e6:.0f} us "
            f"| {wall['kept'] * 1e6:.0f} us "
            f"| {wall['kept'] / wall['in step'] - 1:+.1%} | {cpu['kept'] / cpu['in step'] - 1:+.1%} |",
            flush=True,
        )


def measure(shape: tuple[int, ...], steps: int, epochs: int, *, keep: bool) -> tuple[float, float]:
    """Returns the seconds of a training step, by the clock and of all processors, without the first epoch.

    Args:
        shape: of a batch, the batch axis first.
        steps: of an epoch.
        epochs: that count.
        keep: whether batches are kept for a rollback.
    """
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input(shape[1:]), keras.layers.Flatten(), keras.layers.Dense(8)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    policy = overlap_train.ValidationPolicy(overlap="always", keep_bytes=1 << 30 if keep else 0)
    trainer, clock = overlap_train.Trainer(model, validation=policy), _Clock()
    trainer.fit(
        _batches(shape),
        steps_per_epoch=steps,
        epochs=epochs + 1,
        validation_data=next(_batches(shape)),
        callbacks=[clock, keras.callbacks.ReduceLROnPlateau("val_loss", min_delta=-1e9)],
        verbose=0,
    )
    if keep == any("in step" in message for message in trainer.messages):
        raise RuntimeError(f"it is not what was to be measured: {trainer.messages}")
    (first, last) = clock.ends[0], clock.ends[-1]
    return (last[0] - first[0]) / (steps * epochs), (last[1] - first[1]) / (steps * epochs)


def _batches(shape: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches whose memory is new each time, as those of a decoder are."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape).astype("float32"), rng.integers(0, 8, shape[0])
    for n in itertools.count():
        yield x + np.float32(n % 7), y


class _Clock(keras.callbacks.Callback):  # type: ignore[misc]
    """Notes when epochs end."""

    overlap_safe = True

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[tuple[float, float]] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.ends.append((time.monotonic(), time.process_time()))


if __name__ == "__main__":
    main()
