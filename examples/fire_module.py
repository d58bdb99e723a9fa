"""
Why is torch.compile slower than eager here, when hardly any layout is converted?

A SqueezeNet Fire module: ReLU, max pooling and a concatenation between convolutions of few channels.

Run:
    python -m layoutdoctor examples/fire_module.py --mode training

Look at:
    where the difference between ``inductor`` and ``eager-channels-last`` goes: not to conversions but to generated
    kernels that stand for ReLU, its backward mask and the max pooling (LD306); their source is in the HTML report.
"""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """A stem with pooling and one Fire module (Iandola and others, 2016, section 3.2)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, stride=2)
        self.squeeze = nn.Conv2d(64, 16, 1)
        self.expand_1 = nn.Conv2d(16, 64, 1)
        self.expand_3 = nn.Conv2d(16, 64, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.stem(x))
        x = nn.functional.max_pool2d(x, 3, 2, ceil_mode=True)
        x = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.expand_1(x)), self.relu(self.expand_3(x))], 1)


def get_inputs() -> list[torch.Tensor]:
    """One contiguous batch, [N, C, H, W]."""
    return [torch.randn(4, 3, 224, 224)]
