from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from builders import graph_conversions
from fx_builders import backward_only, traced
from packaging.version import Version

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.fx_graph import fx_nodes
from layoutdoctor.capture.inductor_graph import code_fingerprint
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.recording.weights import placeholder_kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Graph


@pytest.fixture(autouse=True)
def _dynamo_anew() -> Iterator[None]:
    """Else Dynamo reuses the code of an equal model."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Chain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(4, 16, 3, padding=1)
        self.second = torch.nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))))


def captured(model: torch.nn.Module, x: torch.Tensor, *, on: bool = True) -> tuple[Graph, ...]:
    torch._dynamo.reset()
    compiled = torch.compile(model, options={"layout_optimization": on})
    with compile_settings({}), CompileCapture() as capture, torch.no_grad():
        expected, result = model(x), compiled(x)
    torch.testing.assert_close(result, expected, rtol=1e-3, atol=1e-4)
    assert capture.lacks == ()
    assert all(graph.hook_failure is None for graph in capture.graphs)
    return capture.graphs


def image() -> torch.Tensor:
    return torch.randn(2, 4, 12, 12)


def summary(conversions: tuple[Conversion, ...]) -> list[tuple[str, str, bool]]:
    return [(c.tensor, c.direction, c.fused) for c in conversions]


@pytest.mark.compile
@pytest.mark.smoke
def test_a_chain_under_layout_optimization_moves_its_input_and_weights_and_fuses_the_way_back() -> None:
    (graph,) = captured(Chain(), image())
    conversions = graph_conversions(graph)

    assert sorted(summary(conversions)) == [
        ("activation", "to_channels_last", False),
        ("activation", "to_contiguous", True),
        ("weight", "to_channels_last", False),
        ("weight", "to_channels_last", False),
    ]
    assert all(c.kernel in graph.kernel_names for c in conversions)
    assert {c.owner for c in conversions} == {"compiler"}
    assert graph.decision is not None
    assert (graph.decision.applied, graph.decision.channels_last_convolution_count) == (True, 2)


class FrameCache(Chain):
    """Keeps its last result as a frame of a video, as decoders of videos do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frames", torch.zeros(2, 16, 3, 12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.frames[:, :, 0].copy_(y)
        return y.sum()


@pytest.mark.compile
@pytest.mark.skipif(Version(torch.__version__) < Version("2.11"), reason="torch 2.7 gives this view no strides")
def test_what_is_written_in_place_through_a_view_lies_as_the_view_does() -> None:
    (graph,) = captured(FrameCache(), image())

    (written,) = (buffer for buffer in graph.buffers if "copy__default" in buffer.origins)
    assert written.layout is not None
    assert (written.layout.shape, written.layout.stride) == ((2, 16, 12, 12), (6912, 432, 12, 1))
    assert [read.stride for read in written.accesses] == [(2304, 1, 192, 16)]
    assert graph.not_understood == ()


@pytest.mark.compile
@pytest.mark.smoke
def test_in_training_gradients_and_what_was_saved_are_told_apart() -> None:
    compiled = torch.compile(Chain(), options={"layout_optimization": True})
    with compile_settings({}), CompileCapture() as capture:
        compiled(image()).square().sum().backward()
    forward, backward = capture.graphs
    saved = [b.name for b in forward.buffers if b.is_output and b.is_user_output is False]
    found = graph_conversions(backward)

    assert (forward.direction, backward.direction) == ("forward", "backward")
    assert saved
    assert [c.role for c in graph_conversions(forward) if c.tensor == "activation" and c.role == "exit"] == ["exit"]
    assert {c.tensor for c in found} <= {"gradient", "weight", "activation"}
    # What torch 2.11 hands to its convolution_backward stays contiguous; before and after it is made channels-last.
    first = [b.layout for b in backward.buffers if b.kernel == backward.buffers[0].kernel]
    made = any(layout is not None and "channels_last" in layout.memory_formats for layout in first)
    of_tangents = [(c.role, c.tensor) for c in found if c.source_value == "tangents_1"]
    assert of_tangents == ([("entry", "gradient")] if made else [])


@pytest.mark.compile
def test_equal_models_have_equal_code_and_others_have_not() -> None:
    x = image()
    first, again = captured(Chain(), x), captured(Chain(), x)
    other = captured(Chain(), x, on=False)

    assert first[0].code_fingerprint is not None
    assert first[0].code_fingerprint == again[0].code_fingerprint
    assert first[0].code_fingerprint != other[0].code_fingerprint


def test_names_that_differ_by_compile_do_not_change_a_fingerprint() -> None:
    source = "# AOT ID: ['{}_inference']\nkernel = load('/tmp/torchinductor_{}/ab/cab.cpp')\ngraph_{}_call(x)  \n"
    one, other = source.format(0, "me", 0), source.format(3, "you", 3)

    assert code_fingerprint(one) == code_fingerprint(other)
    assert code_fingerprint(one) != code_fingerprint(one.replace("(x)", "(y)"))


def test_a_constants_place_in_memory_is_no_part_of_the_code_and_its_strides_are() -> None:
    frozen = "_frozen_param0 = None  # device(type='cpu') torch.float32 (4, 2, 3, 3) (18, 9, 3, 1) 7f0a12b3c4d0\n"
    elsewhere = frozen.replace("7f0a12b3c4d0", "7f55d0e8a010")

    assert code_fingerprint(frozen) == code_fingerprint(elsewhere)
    assert code_fingerprint(frozen) != code_fingerprint(frozen.replace("(18, 9, 3, 1)", "(18, 1, 6, 2)"))


def test_weights_and_gradients_among_a_graphs_inputs_are_known_by_their_place() -> None:
    forward = traced(lambda x, w, b: torch.conv2d(x, w, b), (1, 4, 8, 8), (6, 4, 3, 3), (6,))
    assert placeholder_kinds(fx_nodes(forward), "inference") == {
        "x_1": "activation",
        "w_1": "weight",
        "b_1": "activation",
    }
    quantised = traced(lambda x, w, s: torch.conv2d(x, s * (w - 3)), (1, 4, 8, 8), (6, 4, 3, 3), (6, 1, 1, 1))
    kinds = placeholder_kinds(fx_nodes(quantised), "inference")
    assert kinds == {"x_1": "activation", "w_1": "weight", "s_1": "activation"}
    two = traced(lambda x, w, s: torch.conv2d(x, w * s), (1, 4, 8, 8), (6, 4, 3, 3), (6, 4, 3, 3))
    assert "weight" not in placeholder_kinds(fx_nodes(two), "inference").values()  # one of them, and not known which
    assert placeholder_kinds(fx_nodes(backward_only()), "backward") == {
        "tangents_1": "gradient",
        "x_1": "activation",
        "weight_1": "weight",
    }
