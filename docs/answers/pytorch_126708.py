"""A network in which one convolution of four may be slower in channels_last: the grouped one."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """A stem and a ResNeXt-like block of 32 groups, 4 channels in each."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.reduce = nn.Conv2d(64, 128, 1)
        self.grouped = nn.Conv2d(128, 128, 3, padding=1, groups=32)
        self.expand = nn.Conv2d(128, 256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).relu()
        x = self.reduce(x).relu()
        x = self.grouped(x).relu()
        return self.expand(x).relu()


def get_inputs() -> list[torch.Tensor]:
    """One contiguous batch, [N, C, H, W]."""
    return [torch.randn(4, 3, 112, 112)]
