"""
Why is the backward pass of Conv2d faster than that of Conv3d, with the same arithmetic?

A user compared a Conv2d on [B * T, C, H, W] with a Conv3d of kernel (1, 3, 3) on [B, C, T, H, W]: same weights, same
number of elements, and backward 1.8 times slower in 3-D. (The first answer was that time.time() around CUDA calls
measures nothing: layoutdoctor measures for you.) Both are here with the same numbers; more channels than the question's
2, which no convolution library likes.

Run:
    python -m layoutdoctor examples/conv2d_vs_conv3d.py:conv2d --mode training
    python -m layoutdoctor examples/conv2d_vs_conv3d.py:conv3d --mode training

Look at:
    how many convolutions the compiler made channels-last in each (Inductor's layout optimization reaches 4-D ones
    only), and the conversions in the backward graph.
"""

from __future__ import annotations

import torch
from torch import nn

BATCH, TIME, CHANNELS, SIZE = 2, 8, 32, 32


def conv2d() -> tuple[nn.Module, list[torch.Tensor]]:
    """The 2-D model and its input [B * T, C, H, W]."""
    return _conv2d(), [_clips().transpose(1, 2).reshape(BATCH * TIME, CHANNELS, SIZE, SIZE)]


def conv3d() -> tuple[nn.Module, list[torch.Tensor]]:
    """The 3-D model with the same weights, and the same numbers as [B, C, T, H, W]."""
    model = nn.Conv3d(CHANNELS, CHANNELS, kernel_size=(1, 3, 3), padding=(0, 1, 1), bias=False)
    with torch.no_grad():
        model.weight.copy_(_conv2d().weight.unsqueeze(2))
    return model, get_inputs()


def get_model() -> nn.Module:
    """The 3-D model, where none is named."""
    return conv3d()[0]


def get_inputs() -> list[torch.Tensor]:
    """The 3-D model's input, [B, C, T, H, W]."""
    return [_clips()]


def _conv2d() -> nn.Conv2d:
    model = nn.Conv2d(CHANNELS, CHANNELS, kernel_size=3, padding=1, bias=False)
    with torch.no_grad():
        weight = torch.randn(model.weight.shape, generator=torch.Generator().manual_seed(0))
        model.weight.copy_(weight / (CHANNELS * 9) ** 0.5)
    return model


def _clips() -> torch.Tensor:
    return torch.randn(BATCH, CHANNELS, TIME, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
