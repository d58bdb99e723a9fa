"""
Why does batch norm take longer after a convolution written as unfold and a matrix product?

A user replaced Conv2d by unfold @ weight and saw the batch norm behind it take 3.5 times as long. The matrix product
leaves its result transposed: seen as [N, C, H, W] its strides are those of channels_last, so the batch norm ran another
kernel.

Run:
    python -m layoutdoctor examples/unfold_conv_batch_norm.py
    python -m layoutdoctor examples/unfold_conv_batch_norm.py:convolution

Look at:
    the layout of the batch norm's input and output in the two, and the output layout that the report says differs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

CHANNELS, WIDTH, KERNEL = 3, 16, 3


class UnfoldConv(nn.Module):
    """A convolution without padding, as unfold and a matrix product."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.weight = nn.Parameter(torch.randn(out_channels, in_channels * kernel_size**2) / 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height = x.shape[2] - self.kernel_size + 1
        patches = functional.unfold(x, self.kernel_size).transpose(1, 2)  # [N, H * W, C * K * K]
        out = (patches @ self.weight.T).transpose(1, 2)  # [N, C_out, H * W], strides of the untransposed
        return out.view(x.shape[0], -1, height, out.shape[2] // height)  # [N, C_out, H, W]


class Model(nn.Module):
    """The unfolded convolution and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = UnfoldConv(CHANNELS, WIDTH, KERNEL)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


def convolution() -> tuple[nn.Module, list[torch.Tensor]]:
    """The same with an ordinary Conv2d, to compare with."""
    return nn.Sequential(nn.Conv2d(CHANNELS, WIDTH, KERNEL, bias=False), nn.BatchNorm2d(WIDTH)), get_inputs()


def get_inputs() -> list[torch.Tensor]:
    """The question's batch, [N, C, H, W]."""
    return [torch.randn(128, CHANNELS, 32, 32)]
