"""
Why does torch.compile slow my stack of Conv3d layers down?

The question comes from a user of an A100 and an H100: three Conv3d layers without bias or activation, network and input
in channels_last_3d, took 6.5 ms in eager and 10.9 ms compiled, with an nhwcToNchw and an nchwToNhwc kernel between
every two convolutions. This is the same stack, small enough for a CPU; the user's own sizes are in
``get_user_inputs``. The network and input here are contiguous, as most people have them; the user's own were in
channels_last_3d: ``conv3d_stack.py:channels_last``.

Run:
    python -m layoutdoctor examples/conv3d_stack.py
    python -m layoutdoctor examples/conv3d_stack.py:channels_last --input 'f32[2,8,8,32,32]:channels_last'

Look at:
    the decision of each configuration (Inductor's layout optimization says "on" and reaches no Conv3d: 0 of 3), the
    round trips inside the library, and what channels_last_3d weights and inputs make of them.
"""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 32  # two or more images of this many channels: smaller ones do not reach oneDNN's convolutions


class ConvNet(nn.Module):
    """Three Conv3d layers, nothing between."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv3d(in_channels, hidden_channels, kernel_size=3, padding=1, bias=False)
        self.conv_2 = nn.Conv3d(hidden_channels, hidden_channels, kernel_size=3, padding=1, bias=False)
        self.conv_3 = nn.Conv3d(hidden_channels, out_channels, kernel_size=3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_1(x)  # [B, C, T, H, W]
        x = self.conv_2(x)
        return self.conv_3(x)


def get_model() -> nn.Module:
    """The network as it comes, contiguous."""
    return ConvNet(8, WIDTH, WIDTH)


def channels_last() -> nn.Module:
    """The network in channels_last_3d, as the user had it."""
    return get_model().to(memory_format=torch.channels_last_3d)


def get_inputs() -> list[torch.Tensor]:
    """One contiguous input, [B, C, T, H, W]."""
    return [torch.randn(2, 8, 8, 32, 32)]


def get_user_inputs() -> list[torch.Tensor]:
    """The input of the question, for a GPU; with WIDTH = 64."""
    return [torch.randn(4, 8, 64, 256, 256).to(memory_format=torch.channels_last_3d)]
