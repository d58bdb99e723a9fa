"""FX graphs of functions, made without a compile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

if TYPE_CHECKING:
    from collections.abc import Callable


def traced(function: Callable[..., Any], *shapes: tuple[int, ...], mode: str = "fake") -> Any:
    with torch.no_grad():
        return make_fx(function, tracing_mode=mode)(*(torch.empty(shape) for shape in shapes))


def backward_only() -> Any:
    """The backward of a convolution alone."""

    def run(tangents: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ones, zeros = [1, 1], [0, 0]
        arguments = (None, ones, zeros, ones, False, zeros, 1, [True, True, False])
        return torch.ops.aten.convolution_backward(tangents, x, weight, *arguments)[:2]

    return traced(run, (2, 8, 6, 6), (2, 4, 8, 8), (8, 4, 3, 3))
