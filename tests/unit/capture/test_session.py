from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture.compat import compile_settings
from layoutdoctor.capture.session import CompileCapture, placeholder_kinds
from layoutdoctor.state.dynamo import DynamoState

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _dynamo_as_before() -> Iterator[None]:
    state = DynamoState()
    yield
    state.restore()


def traced(function: Any, *shapes: tuple[int, ...]) -> Any:
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes))


def test_the_weight_of_a_convolution_is_known_by_its_place() -> None:
    graph = traced(lambda x, w, b: torch.conv2d(x, w, b), (1, 4, 8, 8), (6, 4, 3, 3), (6,))

    assert placeholder_kinds(graph, "inference") == {"x_1": "activation", "w_1": "weight", "b_1": "activation"}


def test_a_backward_graph_has_gradients_and_weights() -> None:
    def backward(tangents: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        ones, zeros = [1, 1], [0, 0]
        arguments = (None, ones, zeros, ones, False, zeros, 1, [True, True, False])
        return torch.ops.aten.convolution_backward(tangents, x, weight, *arguments)[:2]

    graph = traced(backward, (2, 8, 6, 6), (2, 4, 8, 8), (8, 4, 3, 3))

    assert placeholder_kinds(graph, "backward") == {"tangents_1": "gradient", "x_1": "activation", "weight_1": "weight"}


@pytest.mark.compile
def test_graphs_come_in_order_with_their_direction_and_their_outputs() -> None:
    weight = torch.ones(3, requires_grad=True)
    compiled = torch.compile(lambda x: (x * weight).relu())
    with compile_settings({}), CompileCapture() as capture:
        compiled(torch.ones(3)).sum().backward()

    assert [(graph.name, graph.direction) for graph in capture.graphs] == [
        ("graph 0", "forward"),
        ("graph 1", "backward"),
    ]
    assert all(graph.output_names and graph.kernel_names and graph.code_fingerprint for graph in capture.graphs)
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.ones(3))
    assert capture.failures == ()


@pytest.mark.compile
def test_graph_breaks_are_reasons_of_one_line_each() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.relu()
        torch._dynamo.graph_break()
        return y + 1

    with compile_settings({}), CompileCapture() as capture:
        torch.compile(broken)(torch.ones(3))

    assert len(capture.graphs) == 2
    assert len(capture.graph_break_reasons) == 1
    assert "\n" not in capture.graph_break_reasons[0]
