"""Blocks of a 3-D U-Net as in nnU-Net: Conv3d, InstanceNorm3d, LeakyReLU."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """Three blocks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for _ in range(3):
            blocks += [
                nn.Conv3d(width, width, 3, padding=1),
                nn.InstanceNorm3d(width, affine=True),
                nn.LeakyReLU(0.01),
            ]
        self.body = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def get_inputs() -> list[torch.Tensor]:
    """Two contiguous volumes, [N, C, D, H, W]."""
    return [torch.randn(2, 32, 16, 32, 32)]
