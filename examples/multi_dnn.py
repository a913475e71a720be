"""Serves several networks at once from one process, with priorities and deadlines.

Run it:

    .venv/bin/python examples/multi_dnn.py
    .venv/bin/python examples/multi_dnn.py --networks MobileNetV2 DenseNet121 --size 96 --policy paper
    .venv/bin/python examples/multi_dnn.py --networks VGG16 --size 224 --one-at-a-time --cut 2
    .venv/bin/python examples/multi_dnn.py --deadline-ms 200 --on-late reject

The detector's requests are urgent and have a deadline; the others fill the time that is left. At the
end it prints what `statistics()` knows and writes a timeline for chrome://tracing or Perfetto, or a picture
of it: `--timeline=timeline.png`.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

from overlap_train.errors import DeadlineError
from overlap_train.monitoring import SpanRecorder, save_chrome_trace, save_timeline
from overlap_train.scheduling import MultiModelScheduler, SchedulerStatistics


def serve(
    models: dict[str, keras.Model],
    size: int,
    requests: int,
    deadline_s: float,
    timeline: SpanRecorder,
    *,
    on_late: str = "run",
    one_at_a_time: bool = False,
    **options: object,
) -> SchedulerStatistics:
    """Sends `requests` images to every model, the first model's with priority and a deadline.

    With `one_at_a_time` each waits for the one before, as from a camera.
    """
    images = np.random.default_rng(0).random((requests, 1, size, size, 3), dtype=np.float32)
    urgent = next(iter(models))
    with MultiModelScheduler(models, recorder=timeline, max_pending=2 * requests, **options) as scheduler:
        began_s = time.perf_counter()
        futures = []
        for image, name in itertools.product(images, models):
            timed = {"priority": 1, "deadline_s": deadline_s, "on_late": on_late} if name == urgent else {}
            try:
                futures.append(scheduler.submit(name, image, **timed))
            except DeadlineError as error:
                print(error)
                continue
            if one_at_a_time:
                futures[-1].exception()
        answered = sum(future.exception() is None for future in futures)
        print(f"{answered / (time.perf_counter() - began_s):.1f} requests/s")
        return scheduler.statistics()


def report(statistics: SchedulerStatistics) -> None:
    print(statistics)
    for name, device in statistics.devices.items():
        print(f"{name:16} {device.jobs:4} jobs, busy {device.busy_s:.2f} s")
    print(f"the scheduler's own time: {statistics.overhead:.2%} of the work")


def main(arguments: Sequence[str] | None = None) -> SchedulerStatistics:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["MobileNetV2", "MobileNetV3Small", "DenseNet121"])
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--requests", type=int, default=50, help="for each network")
    parser.add_argument("--policy", default="earliest_finish")
    parser.add_argument("--max-batch", type=int, help="default: what is measured to save time")
    parser.add_argument(
        "--one-at-a-time", action="store_true", help="send a request when the one before is done"
    )
    parser.add_argument("--cut", type=int, default=1, help="pieces in which a large layer can be run")
    parser.add_argument("--deadline-ms", type=float, default=500.0)
    parser.add_argument("--on-late", choices=("run", "drop", "reject"), default="run")
    parser.add_argument("--timeline", type=Path, default=Path("results/multi_dnn_timeline.json"))
    options = parser.parse_args(arguments)

    shape = (options.size, options.size, 3)
    models = {
        name: getattr(keras.applications, name)(weights=None, input_shape=shape) for name in options.networks
    }
    timeline = SpanRecorder()
    statistics = serve(
        models,
        options.size,
        options.requests,
        options.deadline_ms / 1e3,
        timeline,
        on_late=options.on_late,
        one_at_a_time=options.one_at_a_time,
        cut=options.cut,
        policy=options.policy,
        max_batch=options.max_batch,
    )
    report(statistics)
    write = save_chrome_trace if options.timeline.suffix == ".json" else save_timeline
    write(options.timeline, timeline.spans())
    print(f"timeline: {options.timeline}")
    return statistics


if __name__ == "__main__":
    # One thread for each function: the scheduler has a worker for each core. Before TensorFlow starts.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    main()
