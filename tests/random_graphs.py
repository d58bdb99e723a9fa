"""Small random networks of convolutions and what stands between them, the same for the same seed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

CONVOLUTIONS = {1: torch.nn.Conv1d, 2: torch.nn.Conv2d, 3: torch.nn.Conv3d}
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
STEPS = (
    "conv conv conv conv conv_relu conv_relu silu cat cat add upsample pool pad contiguous to_channels_last shuffle "
    "transpose permuted_norm slice flip"
).split()


class Step(torch.nn.Module):
    """One operation: what it reads, by position among the values so far, and what it does with it."""

    def __init__(self, name: str, inputs: tuple[int, ...], function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.name, self.inputs, self.function = name, inputs, function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


class RandomNetwork(torch.nn.Module):
    """
    Four to seven random steps over one input; the last value is returned, now and then another one as well.

    What maps values onto themselves is left out (a ReLU of a ReLU, a pooling of size 1): by its values it could not be
    told from a copy.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.draw = random.Random(seed)
        torch.manual_seed(seed)
        self.rank = self.draw.choice((1, 2, 2, 2, 3))
        sizes = {1: (12,), 2: (6, 8), 3: (4, 6, 8)}[self.rank]
        self.input = torch.randn(self.draw.choice((1, 2)), self.draw.choice((3, 4, 8)), *sizes)
        self.steps = torch.nn.ModuleList()
        values = [self.input]
        wanted = self.draw.randint(4, 7)
        while len(self.steps) < wanted:
            step = self._step(values)
            if step is not None:
                with torch.no_grad():
                    values.append(step(*(values[i] for i in step.inputs)))
                self.steps.append(step)
        self.returned = (len(values) - 1, *([self.draw.randrange(1, len(values))] if self.draw.random() < 0.3 else []))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x]
        for step in self.steps:
            values.append(step(*(values[i] for i in step.inputs)))
        return tuple(values[i] for i in self.returned)

    def _step(self, values: list[torch.Tensor]) -> Step | None:
        name = self.draw.choice(STEPS)
        index = len(values) - 1 if self.draw.random() < 0.7 else self.draw.randrange(len(values))
        x = values[index]
        if name in ("cat", "add"):
            alike = [i for i, v in enumerate(values) if v.shape[2:] == x.shape[2:] and i != index]
            alike = alike if name == "cat" else [i for i in alike if values[i].shape == x.shape]
            if not alike:
                return None
            other = self.draw.choice(alike)
            return Step(name, (index, other), (lambda a, b: torch.cat([a, b], 1)) if name == "cat" else torch.add)
        function = getattr(self, f"_{name}")(x)
        return None if function is None else Step(name, (index,), function)

    def _conv(self, x: torch.Tensor) -> torch.nn.Module:
        channels, size = x.shape[1], self.draw.choice((1, 3, 3))
        depthwise = self.draw.random() < 0.15
        return CONVOLUTIONS[self.rank](
            channels,
            channels if depthwise else self.draw.choice((4, 8, 12)),
            size,
            padding=size // 2,
            stride=self.draw.choice((1, 1, 2)) if min(x.shape[2:]) >= 4 else 1,
            groups=channels if depthwise else 1,
        )

    def _conv_relu(self, x: torch.Tensor) -> torch.nn.Module:
        return torch.nn.Sequential(self._conv(x), torch.nn.ReLU())

    def _silu(self, x: torch.Tensor) -> Any:
        return functional.silu

    def _upsample(self, x: torch.Tensor) -> Any:
        return torch.nn.Upsample(scale_factor=2) if max(x.shape[2:]) <= 12 else None

    def _pool(self, x: torch.Tensor) -> Any:
        name = self.draw.choice(("AvgPool", "MaxPool"))
        return getattr(torch.nn, f"{name}{self.rank}d")(2) if min(x.shape[2:]) >= 4 else None

    def _pad(self, x: torch.Tensor) -> Any:
        mode = self.draw.choice(("constant", "reflect"))
        return lambda a: functional.pad(a, (1, 1) * (a.dim() - 2), mode=mode)

    def _contiguous(self, x: torch.Tensor) -> Any:
        return lambda a: a.contiguous()

    def _to_channels_last(self, x: torch.Tensor) -> Any:
        return (lambda a: a.to(memory_format=CHANNELS_LAST[a.dim()])) if self.rank > 1 else None

    def _shuffle(self, x: torch.Tensor) -> Any:
        return torch.nn.ChannelShuffle(2) if x.shape[1] % 2 == 0 else None

    def _transpose(self, x: torch.Tensor) -> Any:
        return (lambda a: a.transpose(-1, -2)) if self.rank > 1 else None

    def _permuted_norm(self, x: torch.Tensor) -> Any:
        return _PermutedNorm(x.shape[1])

    def _slice(self, x: torch.Tensor) -> Any:
        half = x.shape[1] // 2
        return lambda a: a[:, half:]

    def _flip(self, x: torch.Tensor) -> Any:
        return lambda a: a.flip(-1)


class _PermutedNorm(torch.nn.Module):
    """The layer norm of a ConvNeXt: over the channels, between two permutes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.movedim(1, -1)).movedim(-1, 1)
