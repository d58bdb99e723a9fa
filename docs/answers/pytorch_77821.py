"""A 2-D convolution before a 3-D one: weights of rank 4 and of rank 5 in one model."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """Every frame through a Conv2d, the clip through a Conv3d."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv2d(16, 32, 3, padding=1)
        self.clip = nn.Conv3d(32, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.frames(x)  # [N * T, C, H, W]
        x = x.unflatten(0, (-1, 8)).transpose(1, 2)  # -> [N, C, T, H, W]
        return self.clip(x)


def get_inputs() -> list[torch.Tensor]:
    """Two clips of eight frames, [N * T, C, H, W]."""
    return [torch.randn(16, 16, 32, 32)]
