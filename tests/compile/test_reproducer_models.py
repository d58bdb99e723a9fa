"""
The model that a reproducer writes runs, operation by operation and layout by layout, what the diagnosis recorded.

Nothing is compiled: the written model is run in eager, contiguous and in channels_last, under the same recorder.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.reports.reproducer.report import build_reproducer
from layoutdoctor.run.diagnose import record_only
from layoutdoctor.subjects.prepare import apply_input_format, apply_model_format

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Graph

EAGER = choose_configurations("eager,eager-channels-last")
IMAGES = (2, 8, 12, 12)


class Calling(nn.Module):
    """Layers, and a function of them and the input."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*self.layers, *inputs)


def conv(channels: int = 8, **options: Any) -> nn.Conv2d:
    return nn.Conv2d(8, channels, 3, padding=1, **options)


def autocast(a: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return functional.relu(a(x))


def odd_weight() -> nn.Module:
    layer = conv()
    layer.weight.data = layer.weight.data.transpose(2, 3).contiguous().transpose(2, 3)
    return nn.Sequential(layer, conv())


class Scaled(nn.Module):
    """A scale per channel, as LayerScale and ConvNeXt have it."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(8, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


shared = conv()
MODELS: dict[str, nn.Module] = {
    "batch norm": nn.Sequential(conv(bias=False), nn.BatchNorm2d(8, eps=1e-3), nn.ReLU(inplace=True), conv()),
    "batch norm without affine": nn.Sequential(conv(), nn.BatchNorm2d(8, affine=False)),
    "batch norm without statistics": nn.Sequential(conv(), nn.BatchNorm2d(8, track_running_stats=False)),
    "transposed": nn.Sequential(
        nn.ConvTranspose2d(8, 6, 4, stride=2, padding=1), nn.ConvTranspose2d(6, 4, 3, stride=2, output_padding=1)
    ),
    "grouped, dilated, strided": nn.Sequential(
        conv(16, groups=2), nn.Conv2d(16, 4, (3, 1), stride=(2, 1), dilation=(2, 1))
    ),
    "transposed and grouped": nn.Sequential(nn.ConvTranspose2d(8, 6, 3, groups=2, bias=False)),
    "upsample": Calling(
        lambda a, b, x: b(functional.interpolate(a(x), scale_factor=2, mode="bilinear", align_corners=False)),
        conv(),
        conv(),
    ),
    "upsample to a size": Calling(lambda a, x: functional.interpolate(a(x), size=(17, 19)), conv()),
    "nearest": nn.Sequential(conv(), nn.Upsample(scale_factor=(2.0, 3.0)), nn.SiLU()),
    "concatenation": Calling(lambda a, b, x: torch.cat([a(x), b(x), x], dim=1), conv(), conv()),
    "pads": nn.Sequential(nn.ReflectionPad2d(2), conv(), nn.ReplicationPad2d((1, 0, 2, 1)), nn.ZeroPad2d(1), conv()),
    "instance norm": nn.Sequential(conv(), nn.InstanceNorm2d(8), nn.LeakyReLU(0.1), conv()),
    "affine instance norm": nn.Sequential(conv(), nn.InstanceNorm2d(8, affine=True, eps=1e-3), nn.Hardswish()),
    "group norm": nn.Sequential(conv(), nn.GroupNorm(4, 8), nn.Mish(), nn.GroupNorm(2, 8, affine=False)),
    "layer norm": Calling(lambda a, n, x: n(a(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2), conv(), nn.LayerNorm(8)),
    "head": nn.Sequential(
        conv(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(8, 10), nn.Linear(10, 3, bias=False)
    ),
    "head of a feature map": nn.Sequential(
        conv(), nn.ReLU6(), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(48, 5)
    ),
    "pools": nn.Sequential(
        conv(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.AvgPool2d(2, stride=1, count_include_pad=False),
        nn.GELU("tanh"),
    ),
    "pool with its indices": Calling(
        lambda a, x: functional.max_unpool2d(*functional.max_pool2d(a(x), 2, return_indices=True), 2), conv()
    ),
    "volumes": nn.Sequential(
        nn.Unflatten(1, (8, 1)), nn.Conv3d(8, 4, (1, 3, 3)), nn.BatchNorm3d(4), nn.Upsample(size=(2, 6, 6)), nn.ReLU6()
    ),
    "squeeze and excitation": Calling(
        lambda a, b, c, x: a(x) * torch.sigmoid(c(functional.silu(b(a(x).mean((2, 3), keepdim=True))))),
        conv(),
        nn.Conv2d(8, 2, 1),
        nn.Conv2d(2, 8, 1),
    ),
    "shared weights": nn.Sequential(shared, nn.ReLU(), shared, nn.Tanh(), shared),
    "contiguous in between": Calling(lambda a, b, x: b(a(x).contiguous()), conv(), conv()),
    "flattened and back": Calling(lambda a, b, x: b(a(x).flatten(2).reshape(2, 8, 12, 12)), conv(), conv()),
    "attention": Calling(lambda a, x: torch.softmax(a(x).flatten(2).transpose(1, 2) @ a(x).flatten(2), dim=-1), conv()),
    "chunks": Calling(lambda a, x: torch.cat([part.tanh() for part in a(x).chunk(2, 1)], 1), conv()),
    "two outputs": Calling(lambda a, b, x: (a(x), {"second": b(a(x))}), conv(), conv()),
    "channel scale": nn.Sequential(conv(), Scaled(), conv()),
    "pixel shuffle": nn.Sequential(conv(16), nn.PixelShuffle(2), nn.ChannelShuffle(2)),
    "weights in channels_last": nn.Sequential(conv(), nn.ReLU(), nn.Conv2d(8, 8, 1)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    ),
    "one weight in channels_last": nn.Sequential(
        conv().to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        conv(),
    ),
    "a weight with other strides": odd_weight(),
    "half precision": nn.Sequential(conv(), nn.BatchNorm2d(8), nn.ReLU()).to(torch.bfloat16),
    "autocast": Calling(autocast, conv()),
    "numbers": Calling(lambda a, x: (a(x) * 2 - 1).clamp(-1, 1) / 3 + float("inf"), conv()),
    "residual in place": Calling(lambda a, b, x: functional.relu_(a(x).add_(b(x))), conv(), conv()),
    "in place through a view": Calling(lambda a, x: a(x)[:, :2].mul_(2), conv()),
}


def input_of(name: str) -> torch.Tensor:
    return torch.randn(IMAGES, dtype=torch.bfloat16 if name == "half precision" else torch.float32)


def operations(graph: Graph) -> list[tuple[object, ...]]:
    """What ran, and the layout of what it gave."""
    return [
        # A view of a fresh copy is one of two operators, which do the same.
        (
            node.target.replace("._unsafe_view.", ".view."),
            node.layout and node.layout.shape,
            node.layout and node.layout.stride,
            node.dtype,
        )
        for node in graph.nodes
        if node.op == "call_function"
    ]


@pytest.mark.compile
@pytest.mark.parametrize("name", MODELS)
def test_the_written_model_runs_what_was_recorded(name: str) -> None:
    model = MODELS[name].eval()
    x = input_of(name)
    diagnosis = from_json(to_json(record_only(model, (x,), mode="inference", configurations=EAGER)))
    reproducer = build_reproducer(diagnosis)
    assert reproducer.reason is None
    source, is_cut, _ = reproducer.script.partition("\nif sys.argv[1:] ==")
    assert is_cut
    scope: dict[str, Any] = {}
    with torch.random.fork_rng(), torch.enable_grad():  # the script switches gradients off
        exec(compile(source, name, "exec"), scope)

    for configuration in EAGER:
        trial = diagnosis.trial(configuration.name)
        assert trial is not None
        if trial.status == "same_as":
            continue
        written = copy.deepcopy(scope["model"])
        apply_model_format(written, configuration.model_format or "preserve")
        given = apply_input_format(scope["x"], configuration.input_format or "preserve")
        graph = record_eager_iteration(partial(_run, written, given), written, lambda: ())

        assert operations(graph) == operations(trial.graphs[0]), reproducer.script


def _run(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        model(x)
