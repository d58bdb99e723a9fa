"""A video transformer in the shape of Wan's: patches by a Conv3d without overlap, then attention and linear layers."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    """Patch embedding, two blocks, and the projection back to patches."""

    def __init__(self, channels: int = 16, width: int = 256) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv3d(channels, width, kernel_size=(1, 2, 2), stride=(1, 2, 2))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.proj_out = nn.Linear(width, channels * 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embedding(x)  # [N, C, T, H, W] -> [N, W, T, H / 2, W / 2]
        x = x.flatten(2).transpose(1, 2)  # -> [N, tokens, W]
        for block in self.blocks:
            x = block(x)
        return self.proj_out(x)


class Block(nn.Module):
    """Self-attention and a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm_1(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norm_2(x))


def get_inputs() -> list[torch.Tensor]:
    """One latent video, [N, C, T, H, W]."""
    return [torch.randn(1, 16, 5, 32, 32)]


def channels_last() -> nn.Module:
    """The model as the pipeline's documentation converts it, which raises."""
    return Model().to(memory_format=torch.channels_last)
