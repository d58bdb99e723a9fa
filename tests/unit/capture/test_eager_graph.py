from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.run.operations import Operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.graph import FxNode, Graph


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(4, 8, 3, padding=1), torch.nn.ReLU(inplace=True))
        self.head = torch.nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return self.head(y)


def image() -> torch.Tensor:
    return torch.randn(2, 4, 8, 8)


def recorded(function: Callable[..., Any], *args: Any, training: bool = False) -> Graph:
    kept: list[Any] = []

    def step() -> None:
        if training:
            output = function(*args)
            output.sum().backward()
            kept.append(output)
        else:
            with torch.no_grad():
                kept.append(function(*args))

    module = function if isinstance(function, torch.nn.Module) else torch.nn.Module()
    return record_eager_iteration(step, module, lambda: kept)


def named(graph: Graph, name: str) -> FxNode:
    return next(node for node in graph.nodes if node.name == name)


def operations(graph: Graph) -> list[str]:
    return [base_name(node.target) for node in graph.nodes if node.op == "call_function"]


def test_operations_come_in_order_with_what_they_read() -> None:
    graph = recorded(Network(), image())

    assert operations(graph) == ["convolution", "relu", "convolution"]
    assert named(graph, "convolution").inputs[:2] == ("value", "weight")
    assert named(graph, "relu_").inputs == ("convolution",)
    assert named(graph, "convolution_1").inputs[:2] == ("relu_", "weight_1")
    assert (graph.name, graph.direction, graph.output_names) == ("eager", "inference", ("convolution_1",))
    kinds = {node.name: node.tensor for node in graph.nodes if node.op == "placeholder"}
    assert (kinds["value"], kinds["weight"], kinds["weight_1"]) == ("activation", "weight", "weight")
    assert graph.hook_failure is None


def test_an_operation_that_compiles_itself_in_eager_mode_as_flex_attention_does_runs_under_both_recorders() -> None:
    compiled = torch.compile(lambda x: torch.relu(x) + 1, backend="eager", fullgraph=True)
    graph = recorded(lambda x: compiled(x).neg(), image())

    assert (operations(graph)[-1], graph.hook_failure) == ("neg", None)
    assert Operations().watching(compiled)(image().double()).shape == (2, 4, 8, 8)


def test_a_value_changed_in_place_is_the_result_of_the_operation_that_changed_it() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        y.mul_(2)
        y.add_(3)
        y = y.neg()
        for _ in range(20):
            y = y + 1  # each result is freed as the next one is made, and its id is used again
        return y

    graph = recorded(run, image())

    assert operations(graph) == ["add", "mul", "add", "neg", *["add"] * 20]
    assert named(graph, "neg").inputs == ("add_",)
    assert named(graph, "add_").inputs == ("mul_",)
    chain = [node for node in graph.nodes if node.op == "call_function"]
    assert [node.inputs[0] for node in chain[1:]] == [node.name for node in chain[:-1]]


def test_a_node_names_the_module_and_the_line_of_the_user_and_a_backward_one_those_of_its_forward() -> None:
    graph = recorded(Network(), image(), training=True)
    named_ones = [named(graph, name) for name in ("convolution", "relu_", "convolution_1")]
    backward = [node for node in graph.nodes if base_name(node.target) == "convolution_backward"]

    assert graph.direction == "forward"
    assert [node.module for node in (*named_ones, *backward)] == ["body.0", "body.1", "head", "head", "body.0"]
    assert [node.backward for node in (*named_ones, *backward)] == [False, False, False, True, True]
    body, head = "y = self.body(x)", "return self.head(y)"
    lines = [node.location.code if node.location else None for node in (*named_ones, *backward)]
    assert lines == [body, body, head, head, body]


def test_what_no_line_of_the_model_calls_has_no_line() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    graph = record_eager_iteration(partial(model, torch.randn(1, 3, 8, 8)), model, list)
    called = [node for node in graph.nodes if node.module is not None]

    assert {node.module for node in called} == {"0", "1"}
    assert {node.location for node in called} == {None}


def test_a_tensor_that_the_model_keeps_counts_as_an_output() -> None:
    class Keeping(Network):
        kept: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept = self.body(x)
            return self.head(self.kept)

    assert recorded(Keeping(), image()).output_names == ("convolution_1", "relu_")


def test_no_tensor_is_held_and_no_hook_is_left() -> None:
    model = Network()
    seen: list[weakref.ref[torch.Tensor]] = []
    handle = model.head.register_forward_pre_hook(lambda module, args: seen.append(weakref.ref(args[0])))
    graph = recorded(model, image())
    handle.remove()

    assert len(graph.nodes) > 3
    assert [weak() for weak in seen] == [None]
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
