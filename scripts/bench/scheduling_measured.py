"""Measured here: several networks at once on the CPU, ours and what users would run instead.

Each contender runs in a process of its own, since threads are set once for a process. The processes live side
by side and take turns, so that a slow minute of the machine hits all. Each answers `submit(name)` with a
future. OpenVINO and ONNX Runtime take part where they are installed (extra `bench`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from overlap_train.options.threads import available_cores
from scripts.bench.children import ENDS_WITH_PARENT

CONTENDERS = {
    "thread_each": "a thread for each network, tf.function, TensorFlow's default threads",
    "thread_each_batched": "the same, each thread taking up to four of its requests at a time",
    "openvino": "OpenVINO f32, for each network a stream and a thread for each core",
    "openvino_batched": "OpenVINO f32, a thread for each network, each taking up to four of its requests",
    "onnxruntime": "ONNX Runtime, a session and a thread for each network, all cores for each call",
    "onnxruntime_batched": "ONNX Runtime, one core for each call, each thread taking up to four requests",
    "ours": "MultiModelScheduler with its defaults, one intra-op thread for each function",
    "ours_unfolded": "the same with fold=False",
}
LOADS = (0.5, 0.7, 0.9)
_MAX_BATCH = 4
_DEADLINE = 4.0  # times the cost of a request
_Serve = Callable[[str], "Future[Any]"]


def available(name: str) -> bool:
    """Whether what a contender needs is installed."""
    needs = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "tf2onnx")}.get(
        name.partition("_")[0], ()
    )
    return all(importlib.util.find_spec(package) is not None for package in needs)


def networks(size: int) -> dict[str, Any]:
    """The paper's four networks, for `[N, size, size, 3]`."""
    import keras

    from overlap_train.models.alexnet import alexnet

    shape = (size, size, 3)
    applications = keras.applications
    return {
        "ResNet152": applications.ResNet152(weights=None, input_shape=shape),
        "VGG16": applications.VGG16(weights=None, input_shape=shape),
        "DenseNet201": applications.DenseNet201(weights=None, input_shape=shape),
        "AlexNet": alexnet(shape),
    }


def measure(
    *,
    size: int,
    requests: int,
    repeats: int,
    contenders: Sequence[str],
    workload: str = "",
    promises: int = 0,
) -> dict[str, Any]:
    """Run `requests` single images through each network, `repeats` times for each contender in turn.

    Then each contender gets Poisson arrivals at the shares `LOADS` of its own capacity, and the workload of a
    file in Band's format; ours gets `promises` requests with deadlines, or as many as in a repeat.
    """
    children: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in filter(available, contenders):
            children[name] = _start(name, size, requests)
            _read(children[name])  # one by one, as what a busy machine measures is no ground to choose by
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in children}
        for _ in range(repeats):
            for name, child in children.items():
                rows[name].append(_ask(child, "saturate"))
        found = {name: _summary(name, row, requests) for name, row in rows.items()}
        for name, child in children.items():
            row, per_s = found[name], found[name]["requests_per_s"]
            row["latencies"] = {f"{x:.0%}": _ask(child, "poisson", per_s=x * per_s) for x in LOADS}
            if name.startswith("ours"):
                row["deadlines"] = _ask(child, "deadlines", per_s=0.7 * per_s, count=promises or 4 * requests)
            if workload:
                row["workload"] = _ask(child, "band", path=str(Path(workload).resolve()))
            row["memory_mib"] = _ask(child, "memory")
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    return found


def _summary(name: str, rows: list[dict[str, Any]], requests: int) -> dict[str, Any]:
    seconds = [row["seconds"] for row in rows]
    return {
        "what": CONTENDERS[name],
        "marked": "measured here",
        "seconds": seconds,
        "cpu_seconds": [row["cpu_seconds"] for row in rows],
        "requests_per_s": 4 * requests / float(np.median(seconds)),
        "overhead": max((row.get("overhead", 0.0) for row in rows), default=0.0),
        "checksum": rows[-1]["checksum"],
    }


def _start(name: str, size: int, requests: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "scripts.bench.scheduling_measured", name, str(size), str(requests)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        preexec_fn=ENDS_WITH_PARENT,
    )


def _ask(child: subprocess.Popen[str], what: str, **options: Any) -> Any:
    assert child.stdin is not None
    child.stdin.write(json.dumps({"what": what, **options}) + "\n")
    child.stdin.flush()
    return _read(child)["answer"]


def _read(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith('{"answer'):
            result: dict[str, Any] = json.loads(line)
            return result
    raise RuntimeError(f"a contender ended with code {child.wait()}; see its messages above")


class _Threads:
    """A thread for each of a network's functions, which takes its waiting requests in batches."""

    def __init__(self, runs: Mapping[str, Sequence[Callable[[Any], Any]]], image: Any, batch: int) -> None:
        self._image, self._batch = image, batch
        self._queues: dict[str, queue.SimpleQueue[Future[Any]]] = {name: queue.SimpleQueue() for name in runs}
        for name, functions in runs.items():
            for run in functions:
                threading.Thread(target=self._work, args=(self._queues[name], run), daemon=True).start()

    def submit(self, name: str) -> Future[Any]:
        future: Future[Any] = Future()
        self._queues[name].put(future)
        return future

    def _work(self, waiting: queue.SimpleQueue[Future[Any]], run: Callable[[Any], Any]) -> None:
        while True:
            taken = [waiting.get()]
            with contextlib.suppress(queue.Empty):
                while len(taken) < self._batch:
                    taken.append(waiting.get_nowait())
            outputs = run(np.concatenate([self._image] * len(taken)))
            for row, future in zip(outputs, taken, strict=True):
                future.set_result(row[None])


def _tensorflow(models: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, list[Callable[[Any], Any]]]:
    import tensorflow as tf

    def function(model: Any) -> Callable[[Any], Any]:
        spec = tf.TensorSpec((None, *shape), tf.float32)
        traced = tf.function(lambda x: model(x, training=False), autograph=False).get_concrete_function(spec)
        return lambda x: traced(tf.constant(x)).numpy()

    return {name: [function(model)] for name, model in models.items()}


def _as_saved_model(model: Any, folder: Path) -> Path:
    model.export(folder, format="tf_saved_model", verbose=False)
    return folder


def _as_onnx(model: Any, folder: Path) -> Path:
    """With the weights in files of their own; in one file, tf2onnx takes more than 16 GiB for VGG16."""
    import tensorflow as tf
    import tf2onnx

    for name, value in {"object": object, "product": np.prod}.items():  # of NumPy 1
        if not hasattr(np, name):
            setattr(np, name, value)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32)
    call = tf.function(lambda x: model(x, training=False), autograph=False)
    network, weights = tf2onnx.convert.from_function(call, [spec], opset=17, large_model=True)
    folder.mkdir()
    for file, content in weights.name_to_tensor_data.items():
        (folder / file).write_bytes(content)
    (folder / "model.onnx").write_bytes(network.SerializeToString())
    return folder / "model.onnx"


@contextlib.contextmanager
def _exported(models: Mapping[str, Any], export: Callable[[Any, Path], Path]) -> Iterator[dict[str, Path]]:
    """Each model in files that another runtime reads."""
    with tempfile.TemporaryDirectory() as folder:
        yield {name: export(model, Path(folder, name)) for name, model in models.items()}


def _openvino(name: str, models: Mapping[str, Any], image: Any) -> _Serve:
    import openvino

    core, batched = openvino.Core(), name.endswith("_batched")
    streams = 1 if batched else available_cores()
    config = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": str(streams)}
    with _exported(models, _as_saved_model) as paths:
        compiled = {
            key: core.compile_model(openvino.convert_model(path), "CPU", config)
            for key, path in paths.items()
        }

    # Networks that several threads start at a time stand still (openvino#24509).
    starting = threading.Lock()

    def run_of(network: Any) -> Callable[[Any], Any]:
        request = network.create_infer_request()

        def run(x: Any) -> Any:
            with starting:
                request.start_async({0: x}, share_inputs=True)
            request.wait()
            return request.get_output_tensor(0).data.copy()

        return run

    runs = {key: [run_of(network) for _ in range(streams)] for key, network in compiled.items()}
    return _Threads(runs, image, _MAX_BATCH if batched else 1).submit


def _onnxruntime(name: str, models: Mapping[str, Any], image: Any) -> _Serve:
    import onnxruntime

    options, batched = onnxruntime.SessionOptions(), name.endswith("_batched")
    options.intra_op_num_threads = 1 if batched else available_cores()
    with _exported(models, _as_onnx) as paths:
        sessions = {
            key: onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            for key, path in paths.items()
        }

    def runs_of(session: Any) -> Callable[[Any], Any]:
        name = session.get_inputs()[0].name
        return lambda x: session.run(None, {name: x})[0]

    runs = {key: [runs_of(session)] for key, session in sessions.items()}
    return _Threads(runs, image, _MAX_BATCH if batched else 1).submit


class _Contender:
    """Runs in a process of its own."""

    def __init__(self, name: str, size: int, requests: int) -> None:
        import keras

        keras.utils.set_random_seed(0)
        models = networks(size)
        self._names, self._requests = list(models), requests
        self._scheduler: Any = None
        self._image = image = np.random.default_rng(0).random((1, size, size, 3), dtype=np.float32)
        if name.startswith("ours"):
            from overlap_train.scheduling import MultiModelScheduler

            self._scheduler = MultiModelScheduler(models, fold=name == "ours", max_pending=100 * requests)
            self._submit: _Serve = lambda key: self._scheduler.submit(key, image)
        elif name.startswith(("openvino", "onnxruntime")):
            self._submit = (_openvino if name.startswith("openvino") else _onnxruntime)(name, models, image)
        else:
            batch = _MAX_BATCH if name.endswith("_batched") else 1
            self._submit = _Threads(_tensorflow(models, image.shape[1:]), image, batch).submit
        self.saturate()

    def _answer(self, name: str) -> Any:
        return self._submit(name).result()

    def saturate(self) -> dict[str, Any]:
        """All requests at once."""
        before, began_s, began_cpu_s = self._own_s(), time.perf_counter(), time.process_time()
        futures = [(key, self._submit(key)) for _ in range(self._requests) for key in self._names]
        sums = {key: float(future.result()[0, :10].sum()) for key, future in futures}
        found = {"checksum": sum(sums.values()), "seconds": time.perf_counter() - began_s}
        own_s, busy_s = (after - first for after, first in zip(self._own_s(), before, strict=True))
        return found | {
            "cpu_seconds": time.process_time() - began_cpu_s,
            "overhead": own_s / busy_s if busy_s else 0.0,
        }

    def _own_s(self) -> tuple[float, float]:
        if self._scheduler is None:
            return 0.0, 0.0
        accounts = self._scheduler.statistics().devices.values()
        return sum(account.overhead_s for account in accounts), sum(account.busy_s for account in accounts)

    def poisson(self, per_s: float) -> dict[str, float]:
        """Requests at random, for the networks in turn; latencies in seconds."""
        rng = np.random.default_rng(1)
        names = [self._names[n % len(self._names)] for n in range(4 * self._requests)]
        return self._arrive(list(zip(np.cumsum(rng.exponential(1 / per_s, len(names))), names, strict=True)))

    def band(self, path: str) -> dict[str, float]:
        """A workload in Band's format: each network again and again after its period."""
        config = json.loads(Path(path).read_text())
        until_s, arrivals = config.get("running_time_ms", 10_000) / 1e3, []
        for model in config["models"]:
            name, period_s = Path(model["graph"]).stem, model.get("period_ms", 0) / 1e3
            if name not in self._names:
                raise ValueError(f"{path}: no network is named {name!r}; there are {self._names}")
            if not period_s:
                raise ValueError(f"{path}: {name!r} needs a period_ms; streams without one are not replayed")
            slo_s = model.get("slo_us", 0) / 1e6 or None
            for begins_s in np.arange(0.0, until_s, period_s):
                arrivals += [(begins_s, name, slo_s)] * model.get("batch_size", 1)
        return self._arrive(sorted(arrivals, key=lambda arrival: arrival[0]))

    def _arrive(self, arrivals: Sequence[tuple[Any, ...]]) -> dict[str, float]:
        ended_s, began_s = [0.0] * len(arrivals), time.perf_counter()
        futures = []

        def note(number: int, _: Any) -> None:
            ended_s[number] = time.perf_counter() - began_s

        for number, (at_s, name, *_) in enumerate(arrivals):
            time.sleep(max(began_s + at_s - time.perf_counter(), 0.0))
            future = self._submit(name)
            future.add_done_callback(functools.partial(note, number))
            futures.append(future)
        for future in futures:
            future.result()
        latencies = [end_s - at_s for end_s, (at_s, *_) in zip(ended_s, arrivals, strict=True)]
        found = {f"p{share}_s": float(np.percentile(latencies, share)) for share in (50, 95, 99)}
        slos = [(s, slo[0]) for s, (_, _, *slo) in zip(latencies, arrivals, strict=True) if slo and slo[0]]
        return found | ({"met": float(np.mean([s <= slo for s, slo in slos]))} if slos else {})

    def deadlines(self, per_s: float, count: int) -> dict[str, Any]:
        """Poisson arrivals, each to be done in four times its cost; what is refused counts for nothing."""
        from overlap_train.errors import DeadlineError

        scheduler, rng, cost_s = self._scheduler, np.random.default_rng(2), {}
        assert scheduler is not None
        for name in self._names:
            times = [_timed(functools.partial(self._answer, name)) for _ in range(5)]
            cost_s[name] = float(np.median(times))
        before = scheduler.statistics().models
        for number in range(count):
            time.sleep(rng.exponential(1 / per_s))
            name = self._names[number % len(self._names)]
            with contextlib.suppress(DeadlineError):
                scheduler.submit(name, self._image, deadline_s=_DEADLINE * cost_s[name], on_late="reject")
        scheduler.drain()
        after = scheduler.statistics().models
        counts = {
            key: sum(getattr(after[name], key) - getattr(before[name], key) for name in after)
            for key in ("met", "missed", "refused")
        }
        return counts | {"cost_error": float(np.mean([model.cost_error for model in after.values()]))}

    def memory(self) -> float:
        """The most that the process has held, in MiB."""
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def _timed(call: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def _child(name: str, size: int, requests: int) -> None:
    if name.startswith("ours"):
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
    contender = _Contender(name, size, requests)
    print(json.dumps({"answer": name}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(contender, order.pop("what"))(**order)
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
