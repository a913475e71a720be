"""A plain PyTorch loop over the workloads, for those who have PyTorch installed beside TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from overlap_train.options.threads import available_cores
from scripts.bench.contenders import Contender, Outcome
from scripts.bench.decoding import DecodedBatches
from scripts.bench.tasks import Examples, Task
from scripts.bench.torch_networks import NETWORKS
from scripts.bench.workloads import Workload

__all__ = ["TorchCompiled", "TorchLoop"]


class _Rows:
    """Batches of arrays in memory, permuted for training, without a DataLoader's cost."""

    def __init__(self, x: Any, y: Any, batch_size: int, *, training: bool) -> None:
        self.x, self.y, self.batch_size, self.training = x, y, batch_size, training

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self.training:
            for rows in torch.randperm(len(self.x), device=self.x.device).split(self.batch_size):
                yield self.x[rows], self.y[rows]
        else:
            yield from zip(self.x.split(self.batch_size), self.y.split(self.batch_size), strict=True)


class _Decoded:
    """Batches of JPEG examples by way of a DataLoader, which decodes in a process for each core."""

    def __init__(self, batches: DecodedBatches, device: Any) -> None:
        self.batches, self.device = batches, device
        self.loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=available_cores())

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for x, y in self.loader:
            yield x.movedim(-1, 1).to(self.device), y.long().to(self.device)
        self.batches.on_epoch_end()


class TorchLoop(Contender):
    """Forward, backward, step, as a PyTorch user writes it."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = NETWORKS[workload.name]().to(self._device)
        self._optimizer = torch.optim.Adam(self._network.parameters(), eps=1e-7)  # as Keras's
        self._loss = torch.nn.BCEWithLogitsLoss() if workload.binary else torch.nn.CrossEntropyLoss()
        self._training = self._batches(task.train, training=True)
        self._validation = self._batches(task.validation, training=False)

    def train(self, epochs: int) -> None:
        for _ in range(epochs):
            self._train_epoch()
            self._validate()

    def outcome(self) -> Outcome:
        return Outcome(self._val_loss, self._val_accuracy)

    def _batches(self, examples: Examples, *, training: bool) -> _Rows | _Decoded:
        size = self.workload.batch_size
        if self.workload.decode is not None:
            batches = DecodedBatches(examples, size, training=training, workers=1)
            return _Decoded(batches, self._device)
        x = self._tensor(self.workload.scaled(examples.x))
        return _Rows(x, self._tensor(examples.y), size, training=training)

    def _tensor(self, array: npt.NDArray[Any]) -> Any:
        """Returns channels first, and whole numbers, which are tokens or classes, as PyTorch reads them."""
        if array.ndim == 4:
            array = np.ascontiguousarray(np.moveaxis(array, -1, 1))
        tensor = torch.from_numpy(array)
        return (tensor if tensor.is_floating_point() else tensor.long()).to(self._device)

    def _train_epoch(self) -> None:
        self._network.train()
        for x, y in self._training:
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(self._network(x), y).backward()
            self._optimizer.step()

    def _validate(self) -> None:
        self._network.eval()
        loss, correct, labels, rows = 0.0, 0, 0, 0
        with torch.inference_mode():
            for x, y in self._validation:
                logits = self._network(x)
                loss += float(self._loss(logits, y)) * len(y)
                right = (logits > 0) == (y > 0.5) if self.workload.binary else logits.argmax(-1) == y
                correct, labels, rows = correct + int(right.sum()), labels + right.numel(), rows + len(y)
        self._val_loss, self._val_accuracy = loss / rows, correct / labels


class TorchCompiled(TorchLoop):
    """The same compiled by `torch.compile`, images and filters with their channels last."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        super().__init__(workload, task, threads)
        self._network = torch.compile(self._network.to(memory_format=torch.channels_last))

    def _tensor(self, array: npt.NDArray[Any]) -> Any:
        tensor = super()._tensor(array)
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
