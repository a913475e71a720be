"""What a step costs with and without XLA: `recurrent KIND UNITS ROWS LENGTH FEATURES`, all counts."""

import statistics
import sys
import time

import keras
import numpy as np

import overlap_train

_STEPS = 100


def main(kind: str, units: int, rows: int, length: int, features: int) -> None:
    overlap_train.configure()
    x = np.random.default_rng(0).normal(size=(_STEPS * rows, length, features)).astype("float32")
    y, trainers, times = np.arange(len(x)) % 2, [], ([], [])  # type: ignore[var-annotated]
    for jit in (False, True):
        layers = [getattr(keras.layers, kind)(units), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
        model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
        trainers.append(overlap_train.Trainer(model, execution=overlap_train.ExecutionPlan(jit=jit)))
    for trainer, seconds in 6 * [*zip(trainers, times, strict=True)]:
        began = time.perf_counter(), time.process_time()
        trainer.fit(x, y, batch_size=rows, verbose=0)
        seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    for name, (first, *others) in zip(("TensorFlow", "XLA"), times, strict=True):
        wall, cpu = (1000 / _STEPS * statistics.median(each) for each in zip(*others, strict=True))
        print(f"{name}: {wall:.2f} ms, {cpu:.2f} of CPU; first fit {first[0]:.1f} s")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
