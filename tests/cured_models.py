"""Small models for the cures: of each one that it fits, with the configuration that shows it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Flat(nn.Module):
    """Video convolved frame by frame, and once through time."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 1, 1), groups=2)
        self.time = nn.Conv3d(6, 6, 3, padding=1)
        self.strided = nn.Conv3d(6, 4, (1, 3, 2), stride=(2, 2, 1), dilation=(2, 1, 2), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.strided(torch.relu(self.time(self.frames(x))))


class Patches(nn.Module):
    """Patches embedded one by one, then all of them, then one pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv3d(4, 6, (1, 4, 4), stride=(1, 4, 4))
        self.mix = nn.Conv2d(6, 6, 3, padding=1)
        self.pool = nn.Conv2d(6, 5, (6, 2), bias=False)
        self.gate = nn.Conv2d(5, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.pool(self.mix(self.embed(x).flatten(2, 3))))


class Autocast(nn.Module):
    """A model that runs under autocast, whatever its weights are in."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Unfolded(nn.Module):
    """A convolution written as unfold, matrix product and transpose, with a batch norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4 * 9) / 6)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = functional.unfold(x, 3, padding=1).transpose(1, 2) @ self.weight.T
        return self.norm(columns.transpose(1, 2).view(x.shape[0], 8, x.shape[2], x.shape[3]))


class Contiguous(nn.Module):
    """Two convolutions with a call between them that nothing needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3)
        self.second = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)).contiguous())


class Viewed(nn.Module):
    """A head whose view refuses channels_last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.head = nn.Linear(8 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.conv(x)
        return self.head(features.view(features.shape[0], -1))


class Normed(nn.Sequential):
    """An instance norm, which returns contiguous whatever it is given."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(4, 8, 3), nn.InstanceNorm2d(8), nn.Conv2d(8, 4, 3))


class Causal(nn.Module):
    """Video padded in time by its first frame repeated, module by module, with the frames kept for the next chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv3d(4, 4, 3, padding=(0, 1, 1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, caches = [], [x[:, :, :1].repeat(1, 1, 2, 1, 1), None]
        for chunk in x.split(2, dim=2):
            for number, convolution in enumerate(self.convolutions):
                before = caches[number] if caches[number] is not None else torch.zeros(chunk.shape)
                caches[number] = chunk[:, :, -2:].clone()
                chunk = torch.relu(convolution(torch.concat([before, chunk], dim=2)))
            outputs.append(chunk)
        return torch.cat(outputs, dim=2)


class OneChannel(nn.Sequential):
    """One image of one channel, whose convolution a CPU runs contiguous, and a norm that returns contiguous."""

    def __init__(self) -> None:
        super().__init__(nn.Conv3d(1, 8, 3), nn.InstanceNorm3d(8, affine=True), nn.Conv3d(8, 4, 3))


class Usual(nn.Sequential):
    """What no cure fits, in any format."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten())


class Volume(nn.Sequential):
    """Three-dimensional convolutions that no Conv2d computes."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv3d(4, 4, 3, padding=1),
            nn.Conv3d(4, 4, 1),
            nn.Conv3d(4, 4, (1, 3, 3), padding=(1, 1, 1)),
        )


class Case(NamedTuple):
    """A cure, a model that it fits, and where that is seen."""

    cure: str
    model: type[nn.Module]
    configuration: str
    modules: tuple[str, ...]
    shape: tuple[int, ...] = (2, 4, 8, 8)
    beside: tuple[str, ...] = ()
    """Further cures that fit."""


CASES = (
    Case("flat-conv3d", Flat, "eager", ("frames", "strided"), (2, 4, 3, 8, 8)),
    Case("matrix-product", Patches, "eager", ("embed", "pool", "gate"), (2, 4, 3, 8, 8)),
    Case("autocast-dtype", Autocast, "eager", ("conv", "head")),
    Case("dense-batch-norm-input", Unfolded, "eager", ("norm",)),
    Case("without-contiguous", Contiguous, "eager-channels-last", ()),
    Case("restored-format", OneChannel, "eager-channels-last", ("0", "1"), (1, 1, 6, 8, 8)),
    Case("grouped-instance-norm", Normed, "eager-channels-last", ("1",), beside=("restored-format",)),
    Case("channels-last-cat", Causal, "eager-channels-last", (), (2, 4, 4, 8, 8)),
    Case("view-as-reshape", Viewed, "eager-channels-last", ()),
)
