"""The text of a traced model computes what the model does, and has no name of the user's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from layoutdoctor.capture.fx_graph import traced_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.trial import TracedModel


class Calling(nn.Module):
    """Layers, and a function of them and the input."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.secret_layers = nn.ModuleList(layers)
        self.function = function

    def forward(self, secret_input: torch.Tensor) -> Any:
        secret_result = self.function(*self.secret_layers, secret_input)
        return secret_result  # noqa: RET504  # a name that the text must not have


def conv(channels: int = 8, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(8, channels, 3, padding=1, **options)


def autocast(a: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.relu(a(x))


def set_item(a: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = a(x)
    y[:, 0] = 0
    y += 1
    return y


MODELS = {
    "batch norm": nn.Sequential(conv(bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), conv()),
    "upsample": Calling(lambda a, x: functional.interpolate(a(x), scale_factor=2, mode="bilinear"), conv()),
    "concatenation": Calling(lambda a, b, x: torch.cat([a(x), b(x), x], dim=1), conv(), conv()),
    "head": nn.Sequential(conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)),
    "contiguous and views": Calling(lambda a, x: a(x).contiguous().view(2, 8, -1).mT @ x[0].flatten(1), conv()),
    "two outputs": Calling(lambda a, x: (a(x), {"second": torch.split(x, 4, 1)[1]}), conv()),
    "half precision": nn.Sequential(conv(), nn.GroupNorm(2, 8), nn.GELU("tanh")).to(torch.bfloat16),
    "autocast": Calling(autocast, conv()),
    "numbers": Calling(lambda a, x: (a(x) * 2 - 1).clamp(-1, 1) / 3 + float("-inf"), conv()),
    "equation": Calling(lambda a, x: torch.einsum("bchw,bdhw->bcd", a(x), x), conv()),
    "in place": Calling(set_item, conv()),
    "made on a device": Calling(lambda a, x: a(x) + torch.arange(12, device=x.device, dtype=x.dtype), conv()),
}


def traced(model: nn.Module, x: torch.Tensor, **options: Any) -> tuple[TracedModel | None, tuple[Any, ...]]:
    """What torch.compile traced, and what the model is given."""
    found: list[tuple[TracedModel | None, tuple[Any, ...]]] = []

    def backend(graph_module: Any, inputs: list[Any]) -> Any:
        weights = [*model.parameters(), *model.buffers()]
        is_weight = [any(given is weight for weight in weights) for given in inputs]
        ordered = sorted(zip(is_weight, inputs, strict=True), key=lambda pair: not pair[0])
        found.append((traced_model(graph_module), tuple(given for _, given in ordered)))
        return graph_module.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model, backend=backend, **options)(x)
    return found[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_text_computes_what_the_model_does(name: str) -> None:
    model = MODELS[name].eval()
    x = torch.randn(2, 8, 12, 12, dtype=torch.bfloat16 if name == "half precision" else torch.float32)
    found, given = traced(model, x)
    assert found is not None
    assert "secret" not in found.text
    tensors = (*found.weights, *found.inputs)
    assert [(t.shape, t.stride, f"torch.{t.dtype}", t.requires_grad) for t in tensors] == [
        (tuple(t.shape), t.stride(), str(t.dtype), t.requires_grad) for t in given
    ]
    scope: dict[str, Any] = {"torch": torch, "inf": float("inf")}
    exec(found.text, scope)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.utils._pytree.tree_leaves(scope["forward"](None, *given)), torch.utils._pytree.tree_leaves(model(x))
        )


@torch.library.custom_op("layoutdoctor_test::traced", mutates_args=())
def custom(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@custom.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Calling(lambda x: custom(x)), {}),
        (Calling(lambda a, x: torch.utils.checkpoint.checkpoint(a, x, use_reentrant=False), conv()), {}),
        (conv(), {"dynamic": True}),
    ],
    ids=["custom operation", "sub-graph", "symbolic sizes"],
)
def test_what_needs_more_than_torch_has_no_text(model: nn.Module, options: dict[str, Any]) -> None:
    assert traced(model, torch.randn(2, 8, 12, 12), **options)[0] is None
