"""A plain PyTorch loop over the MNIST network, for those who have PyTorch installed beside TensorFlow."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from overlap_train.benchmark.contenders import Contender, Outcome
from overlap_train.benchmark.tasks import Examples, Task
from overlap_train.benchmark.workloads import Workload

__all__ = ["TorchLoop"]


class TorchLoop(Contender):
    """Arrays in memory, permuted each epoch, as a PyTorch user writes it without a DataLoader's cost."""

    def __init__(self, workload: Workload, task: Task, threads: int) -> None:
        """Prepares network and tensors.

        Raises:
            ValueError: the workload is another than MNIST's; its network exists for that one only.
        """
        torch: Any = importlib.import_module("torch")

        if not workload.name.startswith("mnist"):
            raise ValueError(f"the PyTorch loop has no network for the workload {workload.name!r}")
        super().__init__(workload, task, threads)
        self._torch = torch
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._network = _cnn(torch).to(self._device)
        self._optimizer = torch.optim.Adam(self._network.parameters(), eps=1e-7)  # as Keras's
        self._loss = torch.nn.CrossEntropyLoss()
        self._train = self._tensors(task.train)
        self._validation = self._tensors(task.validation)

    def train(self, epochs: int) -> None:
        for _ in range(epochs):
            self._train_epoch()
            self._validate()

    def outcome(self) -> Outcome:
        return Outcome(self._val_loss, self._val_accuracy)

    def _tensors(self, examples: Examples) -> tuple[Any, Any]:
        images = np.moveaxis(self.workload.scaled(examples.x), -1, 1)
        torch = self._torch
        return (
            torch.from_numpy(np.ascontiguousarray(images)).to(self._device),
            torch.from_numpy(examples.y.astype(np.int64)).to(self._device),
        )

    def _train_epoch(self) -> None:
        x, y = self._train
        self._network.train()
        for rows in self._torch.randperm(len(x), device=self._device).split(self.workload.batch_size):
            self._optimizer.zero_grad(set_to_none=True)
            self._loss(self._network(x[rows]), y[rows]).backward()
            self._optimizer.step()

    def _validate(self) -> None:
        x, y = self._validation
        self._network.eval()
        loss, correct = 0.0, 0
        with self._torch.inference_mode():
            for start in range(0, len(x), self.workload.batch_size):
                part = slice(start, start + self.workload.batch_size)
                logits = self._network(x[part])
                loss += float(self._loss(logits, y[part])) * len(y[part])
                correct += int((logits.argmax(-1) == y[part]).sum())
        self._val_loss, self._val_accuracy = loss / len(x), correct / len(x)


def _cnn(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64 * 5 * 5, 10),
    )
