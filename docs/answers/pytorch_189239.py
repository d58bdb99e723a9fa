"""An inverted residual block, as in MobileNetV3, to be trained."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """A stem and one block: pointwise, depthwise, pointwise, each with a batch norm."""

    def __init__(self, width: int = 32, expansion: int = 4) -> None:
        super().__init__()
        hidden = width * expansion
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.expand = nn.Sequential(nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.Hardswish()
        )
        self.project = nn.Conv2d(hidden, width, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        return x + self.project(self.depthwise(self.expand(x)))


def get_inputs() -> list[torch.Tensor]:
    """One contiguous batch, [N, C, H, W]."""
    return [torch.randn(8, 3, 96, 96)]
