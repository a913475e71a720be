"""The workloads' networks in PyTorch, layer for layer those of `models/`. Imported where PyTorch is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from scripts.bench import tasks

__all__ = ["NETWORKS"]


def _mnist_cnn() -> nn.Module:
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


def _mlp(features: int = tasks.TEACHER_FEATURES) -> nn.Module:
    return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _normalised_convolution(inputs: int, outputs: int, kernel_size: int = 3, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel_size, stride, padding=kernel_size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.1))  # as Keras's


class _ResidualBlock(nn.Module):  # type: ignore[misc]
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _normalised_convolution(inputs, outputs, stride=stride)
        self.second = _normalised_convolution(outputs, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = _normalised_convolution(inputs, outputs, kernel_size=1, stride=stride)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def _resnet(channels: int = 1, widths: Sequence[int] = (16, 32, 64), classes: int = 10) -> nn.Module:
    pairs = zip((widths[0], *widths), widths, strict=False)
    blocks = [_ResidualBlock(a, b, 1 if index == 0 else 2) for index, (a, b) in enumerate(pairs)]
    return nn.Sequential(
        _normalised_convolution(channels, widths[0]),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(widths[-1], classes),
    )


def _two_convolutions(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class _UNet(nn.Module):  # type: ignore[misc]
    def __init__(self, classes: int = 1, widths: Sequence[int] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        channels = (3, *widths)
        self.down = nn.ModuleList(map(_two_convolutions, channels, widths))
        self.pool = nn.MaxPool2d(2, ceil_mode=True)
        self.enlarge = nn.Upsample(scale_factor=2)
        pairs = list(itertools.pairwise(widths))
        self.up = nn.ModuleList(
            nn.Sequential(nn.Conv2d(deep, width, 3, padding=1), nn.ReLU()) for width, deep in pairs
        )
        self.merge = nn.ModuleList(_two_convolutions(2 * width, width) for width, _ in pairs)
        self.logits = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Any) -> Any:
        skips = []
        for block in self.down[:-1]:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.down[-1](x)
        for level in reversed(range(len(skips))):
            skip = skips[level]
            x = self.enlarge(x)[..., : skip.shape[-2], : skip.shape[-1]]
            x = self.merge[level](torch.cat([skip, self.up[level](x)], dim=1))
        return self.logits(x)


class _TextLstm(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tasks.VOCABULARY_SIZE, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.logits = nn.Linear(width, classes)

    def forward(self, tokens: Any) -> Any:
        lengths = (tokens != 0).sum(-1).cpu()  # the padding is at the end
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.logits(hidden[-1])


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mnist": _mnist_cnn,
    "mnist-1gb": _mnist_cnn,
    "mlp": _mlp,
    "resnet": _resnet,
    "unet": _UNet,
    "text": _TextLstm,
    "input-bound": lambda: _resnet(3, (8, 16), 2),
}
"""Makes the network of a workload, with PyTorch's own initial values."""
