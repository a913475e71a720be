"""Who runs what when two networks share a CPU and a GPU: a run of the scheduler on its virtual clock."""

from __future__ import annotations

from svg import line, picture, rect, text

from overlap_train.scheduling import Device, Platform, Transfer
from overlap_train.scheduling.graph import REQUEST, Layer, LayerGraph, Port, Work
from overlap_train.scheduling.simulation import Arrival, simulate

# Kind of layer: milliseconds on the GPU and on a CPU core. Examples, of no machine in particular.
_MS = {"conv": (2.0, 6.0), "norm": (0.8, 1.0), "dense": (1.2, 5.0)}
_NETWORKS = {"detector": "conv norm conv norm conv norm", "classifier": "conv conv dense dense"}
_KINDS = {"detector": "train", "classifier": "validate", "detector again": "third"}
_POLICIES = {
    "gpu_only": "everything waits for the GPU",
    "paper": "convolutions on the GPU, the rest on the CPU",
    "earliest_finish": "where the request is done first (the default)",
}
_LANES = ("GPU", "CPU core 1", "CPU core 2")
_LEFT, _SCALE, _ROW = 118, 27.5, 26


def drawing() -> str:
    parts = [
        text(16, 26, "Three requests at once: detector, classifier, detector", kind="head"),
        text(
            16,
            46,
            "Simulated by overlap_train.scheduling with made-up times for each layer.",
            kind="small faint",
        ),
    ]
    y = 74.0
    for policy, says in _POLICIES.items():
        parts += _chart(policy, says, y)
        y += 3 * _ROW + 48
    return picture(
        880,
        y + 16,
        "What a GPU and two CPU cores run under the policies gpu_only, paper and earliest_finish, and when "
        "each ends.",
        *parts,
        *_legend(y - 2),
    )


def run(policy: str):
    """Return the simulation of three requests that arrive together, under a policy."""
    platform = Platform(
        (Device("CPU", "cpu", slots=2), Device("GPU", "gpu")),
        {("CPU", "GPU"): Transfer(0.0002), ("GPU", "CPU"): Transfer(0.0002)},
    )
    graphs = {name: _graph(name, kinds.split()) for name, kinds in _NETWORKS.items()}
    order = ("detector", "classifier", "detector")
    return simulate([Arrival(graphs[name]) for name in order], platform, policy, _true_s)


def _true_s(layer: Layer, device: Device) -> float:
    return _MS[layer.work.kind][device.kind == "cpu"] / 1000


def _graph(name: str, kinds: list[str]) -> LayerGraph:
    layers = [
        Layer(f"{kind}_{index}", Work(kind), (Port(index - 1 if index else REQUEST),))
        for index, kind in enumerate(kinds)
    ]
    return LayerGraph(layers, [Port(len(kinds) - 1)], name=name)


def _chart(policy: str, says: str, y: float) -> list[str]:
    result = run(policy)
    end_ms = result.makespan_s * 1000
    parts = [text(16, y, policy, kind="name"), text(_LEFT + 30, y, says, kind="small")]
    top = y + 10
    for index, lane in enumerate(_LANES):
        parts.append(rect("lane", _LEFT, top + index * _ROW, 744, _ROW - 3, radius=2))
        parts.append(text(16, top + index * _ROW + 16, lane, kind="small"))
    parts += [_bar(job, slot, top) for job, slot in _slots(result.jobs)]
    x = _LEFT + end_ms * _SCALE
    parts += [line((x, top - 4), (x, top + 3 * _ROW)), text(x + 6, y, f"{end_ms:.1f} ms", kind="small")]
    return parts


def _slots(jobs):
    """Yield each job with its lane; jobs of the CPU take the core that is free."""
    free = [0.0, 0.0]
    for job in sorted(jobs, key=lambda job: (job.start_s, job.end_s)):
        if job.device == "GPU":
            yield job, 0
            continue
        core = next(core for core, until in enumerate(free) if until <= job.start_s + 1e-12)
        free[core] = job.end_s
        yield job, 1 + core


def _bar(job, lane: int, top: float) -> str:
    kind = list(_KINDS.values())[job.request]
    x, width = _LEFT + job.start_s * 1000 * _SCALE, (job.end_s - job.start_s) * 1000 * _SCALE
    title = f"{job.network}, {job.layer}: {job.start_s * 1000:.1f} to {job.end_s * 1000:.1f} ms"
    y = top + lane * _ROW + 2
    bar = rect(kind, x, y, width, _ROW - 7, radius=2, title=title)
    return bar + text(
        x + width / 2, y + 14, job.layer.split("_")[0] if width > 34 else "", anchor="middle", kind="small"
    )


def _legend(y: float) -> list[str]:
    parts, x = [], 16.0
    for name, kind in _KINDS.items():
        parts += [rect(kind, x, y - 12, 26, 15, radius=2), text(x + 34, y, name, kind="small")]
        x += 150
    return parts
