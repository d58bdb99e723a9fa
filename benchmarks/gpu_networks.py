"""
The networks of ``gpu.py`` that are its own, built in float32 on the processor.

A name of this file is a target of ``layoutdoctor diagnose``: ``benchmarks/gpu_networks.py:unet``.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class Autocast(nn.Module):
    """Enters autocast to bfloat16 by itself; not on a processor, where many networks take a hundred times as long."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whatever the network returns."""
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=x.device.type != "cpu"):
            return self.network(x)


class Residual(nn.Sequential):
    """Layers and a way around them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the input."""
        return x + super().forward(x)


class UNet(nn.Module):
    """Two convolutions with GroupNorm a level, max pooling down, transposed convolutions up, skips concatenated."""

    def __init__(self, width: int = 64, levels: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        ups = list(pairwise(reversed(widths)))
        self.down = nn.ModuleList(_double(a, b) for a, b in pairwise([3, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in ups)
        self.merge = nn.ModuleList(_double(2 * b, b) for _, b in ups)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 2, H, W]."""
        skips: list[torch.Tensor] = []
        for block in self.down:
            x = block(functional.max_pool2d(x, 2) if skips else x)
            skips.append(x)
        for up, merge, skip in zip(self.up, self.merge, skips[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], dim=1))
        return self.head(x)


def _double(channels: int, width: int) -> nn.Sequential:
    blocks = [(nn.Conv2d(a, width, 3, padding=1), nn.GroupNorm(8, width), nn.SiLU()) for a in (channels, width)]
    return nn.Sequential(*blocks[0], *blocks[1])


def conv3d_stack() -> nn.Module:
    """Three Conv3d without bias and nothing between: the network of the forum thread."""
    return nn.Sequential(*(nn.Conv3d(a, b, 3, padding=1, bias=False) for a, b in pairwise((8, 64, 64, 64))))


def conv3d_stack_autocast() -> nn.Module:
    """The same under autocast, its weights in channels_last_3d, as it was there."""
    return Autocast(conv3d_stack().to(memory_format=torch.channels_last_3d))


def conv_chain() -> nn.Module:
    """Conv2d, BatchNorm and ReLU, four times."""
    layers: list[nn.Module] = []
    for a, b in pairwise((3, 64, 128, 128, 256)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers)


def conv_transpose() -> nn.Module:
    """Transposed convolutions up, a dense one at the end."""
    layers: list[nn.Module] = []
    for a, b in pairwise((256, 128, 64, 32)):
        layers += [nn.ConvTranspose2d(a, b, 4, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(32, 3, 3, padding=1))


def grouped_among_dense() -> nn.Module:
    """One grouped convolution between two dense ones: it alone may keep channels_last from all of them."""
    widths = ((64, 256, 1), (256, 256, 4), (256, 256, 1))
    return nn.Sequential(*(nn.Sequential(nn.Conv2d(a, b, 3, padding=1, groups=g), nn.ReLU()) for a, b, g in widths))


def vae_decoder() -> nn.Module:
    """Latents [N, 4, H, W] to images [N, 3, 8 H, 8 W]: residual blocks with GroupNorm, nearest-neighbour upsampling."""
    layers: list[nn.Module] = [nn.Conv2d(4, 256, 3, padding=1)]
    for a, b in pairwise((256, 256, 128, 64)):
        layers += [Residual(nn.GroupNorm(32, a), nn.SiLU(), nn.Conv2d(a, a, 3, padding=1))]
        layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(a, b, 3, padding=1)]
    return nn.Sequential(*layers, nn.GroupNorm(32, 64), nn.SiLU(), nn.Conv2d(64, 3, 3, padding=1))


def unet_autocast() -> nn.Module:
    return Autocast(UNet())
