"""
How much do layouts matter to an ordinary convolutional network, and what is the best setting for it?

A chain of Conv2d, BatchNorm2d and ReLU with contiguous input, the way most models are written.

Run:
    python -m layoutdoctor examples/conv_bn_relu.py
    python -m layoutdoctor examples/conv_bn_relu.py --mode training

Look at:
    the round trips inside oneDNN that ``eager`` and ``inductor-layout-opt-off`` pay for between every two convolutions,
    what is left of them with layout optimization, and the one conversion at the entry that channels_last input saves.
"""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """Four blocks of convolution, batch norm and ReLU."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for index in range(depth):
            blocks += [
                nn.Conv2d(3 if index == 0 else width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def get_inputs() -> list[torch.Tensor]:
    """One contiguous batch, [N, C, H, W]."""
    return [torch.randn(4, 3, 56, 56)]
