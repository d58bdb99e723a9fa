"""Small models of the casebook's known false alarms: what looks like a layout problem and is none."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class SqueezeAndAttend(nn.Module):
    """A squeeze-and-excitation block on [N, C, 1, 1], and a map of one channel that weighs the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.map, self.smooth = nn.Conv2d(16, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        squeezed = functional.adaptive_avg_pool2d(x, 1)  # [N, C, 1, 1]
        x = x * torch.sigmoid(self.up(torch.relu(self.down(squeezed))))
        return x * torch.sigmoid(self.smooth(self.map(x)))  # [N, 1, H, W]


class TwoConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.b(torch.relu(self.a(x))))


class MovesOnly(nn.Module):
    """Operations that load and store and compute nothing; each result is an output, so that each has a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        indices = torch.arange(8, device=x.device)
        return (
            functional.pad(x, (1, 1, 1, 1), mode="reflect"),
            functional.pad(x, (1, 2, 1, 2)),
            torch.cat([x, x], 1),
            torch.roll(x, 1, 2),
            x[:, :, 1:, ::2].clone(),
            x.repeat(1, 2, 1, 1),
            x[:, :1].expand(-1, 4, -1, -1).clone(),
            functional.channel_shuffle(x, 2),
            self.words(indices),
            torch.flip(x, (3,)),
        )


class MovesOnlyThatKeepChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            functional.pad(x, (1, 1, 1, 1), mode="reflect"),
            functional.pad(x, (1, 2, 1, 2)),
            torch.cat([x, x.clone()], 1),  # of one tensor twice, Inductor 2.13 makes a contiguous repeat
            torch.roll(x, 1, 2),
            x[:, :, 1:, ::2].clone(),
        )


class Transposes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).contiguous()


class CopiesOfManyKinds(nn.Module):
    """Bias broadcasts, casts, accumulated gradients, and updates in place as an optimizer makes them."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(2, 4, 8, 16))
        self.register_buffer("mean", torch.zeros(2, 4, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.second(self.first(x).relu())
        y = self.first(y.float())  # the same weight again: its gradients are added up
        z = (y.to(torch.float16) * self.scale.to(torch.float16)).to(torch.float32)
        with torch.no_grad():
            self.mean.copy_(self.mean * 0.9 + z.detach() * 0.1)
            self.mean.lerp_(z.detach(), 0.5)
        return z + self.scale


class Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)  # [N, C, H, W] -> [N, HW, C]


class ContiguousTokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2).contiguous()


class SequenceConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x.transpose(1, 2))  # [B, T, C] -> [B, C, T]


class NormalizedByGroup(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Conv2d(8, 16, 3), nn.GroupNorm(4, 16), nn.Conv2d(16, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.relu(self.norm(self.a(x))))


class SlowConvolution(nn.Module):
    """Below oneDNN's least size at batch 1: ATen's own slow_conv3d, which unfolds the volume."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class ClonesAndMutates(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y.mul_(2)
        x.add_(1)
        y[:, :2].copy_(x[:, 2:4])
        return y, y[:, 1:], x, x.detach().clone()


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.flatten(self.pool(torch.relu(self.conv(x))), 1))
