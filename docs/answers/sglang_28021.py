"""A video decoder in the shape of Wan's VAE: causal Conv3d, a norm over channels, frames upsampled by a Conv2d."""

from __future__ import annotations

import torch
from torch import nn


class CausalConv3d(nn.Conv3d):
    """Pads in time with frames of zeros before the first one only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.pad(x, (1, 1, 1, 1, 2, 0)))


class Norm(nn.Module):
    """Divides each position by the root mean square over its channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width, 1, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=1) * x.shape[1] ** 0.5 * self.gain


class ResidualBlock(nn.Module):
    """Two norms and convolutions around a sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = Norm(width), CausalConv3d(width, width, 3)
        self.norm_2, self.conv_2 = Norm(width), CausalConv3d(width, width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv_1(nn.functional.silu(self.norm_1(x)))
        return x + self.conv_2(nn.functional.silu(self.norm_2(y)))


class Upsample(nn.Module):
    """Every frame twice as high and wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frame_count = x.shape[2]
        x = x.transpose(1, 2).flatten(0, 1)  # [N, C, T, H, W] -> [N * T, C, H, W]
        x = self.conv(nn.functional.interpolate(x, scale_factor=2.0, mode="nearest-exact"))
        return x.unflatten(0, (-1, frame_count)).transpose(1, 2)  # -> [N, C / 2, T, 2 * H, 2 * W]


class Model(nn.Module):
    """A decoder of one stage."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv_in = CausalConv3d(16, width, 3)
        self.middle = ResidualBlock(width)
        self.upsample = Upsample(width)
        self.last = ResidualBlock(width // 2)
        self.conv_out = CausalConv3d(width // 2, 3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.conv_in(x))
        return self.conv_out(nn.functional.silu(self.last(self.upsample(x))))


def get_inputs() -> list[torch.Tensor]:
    """One latent video, [N, C, T, H, W]."""
    return [torch.randn(1, 16, 5, 32, 32)]
