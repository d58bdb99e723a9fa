from __future__ import annotations

import contextlib
import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import torch
from fx_builders import traced
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture import fx_graph
from layoutdoctor.capture.fx_graph import (
    clean_module_path,
    dtype_name,
    fx_nodes,
    is_user_file,
    layout_of,
    location_in_stack,
    names_of_modules,
    not_understood_in,
    operator_problem,
    output_names,
    target_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_node_has_its_inputs_in_order_its_layout_and_its_dtype() -> None:
    graph = traced(lambda x, w: torch.conv2d(x, w).relu(), (1, 4, 8, 8), (6, 4, 3, 3))
    nodes = fx_nodes(graph)
    convolution = next(node for node in nodes if "convolution" in node.target)

    assert [node.op for node in nodes] == ["placeholder", "placeholder", "call_function", "call_function", "output"]
    assert (convolution.target, convolution.inputs) == ("aten.convolution.default", ("x_1", "w_1"))
    assert convolution.layout is not None
    assert convolution.layout.shape == (1, 6, 6, 6)
    assert convolution.dtype == "float32"
    assert output_names(graph) == ("relu",)
    assert nodes[-1].inputs == ("relu",)


def test_what_is_no_strided_tensor_has_no_layout() -> None:
    assert layout_of(torch.eye(3).to_sparse()) is None
    assert layout_of(3) is None
    assert layout_of(torch.rand(2, 2).to_mkldnn()) is None
    assert dtype_name(None) is None
    assert dtype_name(torch.ones(1, dtype=torch.bfloat16)) == "bfloat16"


def test_the_innermost_line_of_the_user_is_the_location() -> None:
    own, library = "/home/me/model.py", inspect.getfile(torch.nn.Conv2d)
    torchvision = Path(torch.__file__).parent.with_name("torchvision") / "models" / "resnet.py"
    ours, pythons, called_by_torch = fx_graph.__file__, contextlib.__file__, filelock.__file__
    generated = ("<eval_with_key>.1", "/tmp/torchinductor_me/ab/cab.py")
    for not_the_users in (library, ours, pythons, called_by_torch, *generated):
        assert not is_user_file(not_the_users)
        assert location_in_stack(f'File "{not_the_users}", line 5, in g') is None
    frames = ((own, 3), (own, 9), (library, 5))
    stack = "".join(f'  File "{file}", line {line}, in forward\n    y = f(x)\n' for file, line in frames)
    found = location_in_stack(stack)

    assert is_user_file(own)
    assert is_user_file(str(torchvision))
    assert found is not None
    assert (found.file, found.line) == (own, 9)
    assert location_in_stack(None) is None


class Tower(torch.nn.Module):
    """A patch embedding that breaks the graph, so that dynamo begins again at it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Embedding()
        self.again = self.embed.project

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(self.again(x))


class Embedding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Conv2d(3, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return self.project(x)


def test_a_module_behind_a_graph_break_has_its_name_in_the_model() -> None:
    model, found = Tower(), []

    def backend(graph_module: Any, inputs: Any) -> Any:
        nodes = fx_nodes(graph_module, names_of_modules(model)), fx_nodes(graph_module)
        found.append([[node.module for node in some if "conv2d" in node.target] for some in nodes])
        return graph_module

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(torch.ones(1, 3, 2, 2))

    assert found == [[["again"], ["again"]], [["embed.project"], ["project"]]]


def test_a_module_path_has_none_of_dynamos_expressions() -> None:
    expected = {
        "L['self'].body.0.conv": "body.0.conv",
        "L['self']._modules['body'][0]": "body.0",
        "L['model']._modules['body']._modules['0'].conv": "body.0.conv",
        "G['model'].stem": "stem",
        "L__self__.stem": "stem",
        "getattr(L['self'].base[0], '0')": "base.0.0",
        "getattr(getattr(L['self'].layers, '1'), 'proj').conv": "layers.1.proj.conv",
        "body.0": "body.0",
        "L['self']": None,
        "": None,
    }
    assert {path: clean_module_path(path) for path in expected} == expected


def test_an_operator_that_freezing_replaced_is_named_by_its_external_call() -> None:
    fused, call = "functools.partial(<function pattern at 0x1>)", "mkldnn._convolution_pointwise.default"

    assert target_name("fused", fused, {"fused": call}) == call
    assert target_name("fused", fused, {}) == fused
    assert target_name("fused", "aten.relu.default", {"fused": call}) == "aten.relu.default"


def test_an_exported_model_calls_operators_by_their_names_without_overloads() -> None:
    graph = traced(torch.relu, (2, 4))
    (node,) = (node for node in graph.graph.nodes if node.op == "call_function")
    node.meta["source_fn_stack"] = [("conv2d_1", torch.ops.aten.conv2d.default)]

    assert fx_graph.called_name(node) == "conv2d"


def problems(function: Callable[..., Any], *args: torch.Tensor, mode: str = "fake") -> tuple[str, ...]:
    with torch.no_grad():
        return not_understood_in(make_fx(function, tracing_mode=mode)(*args), ())


def image() -> torch.Tensor:
    return torch.zeros(2, 4, 6, 6)


def test_a_plain_graph_has_nothing_that_is_not_understood() -> None:
    def plain(x: torch.Tensor) -> list[torch.Tensor]:
        wide = torch.nn.functional.conv2d(x.relu(), torch.zeros(4, 4, 3, 3))
        return [wide.contiguous(), *torch.max(wide, 1), wide.transpose(1, 2)]

    assert problems(plain, image()) == ()


def test_sizes_that_stay_symbols_stand_as_expressions_and_are_named_with_where_they_occur() -> None:
    graph = make_fx(lambda x: x.relu().sigmoid().tanh(), tracing_mode="symbolic")(image())
    layout = next(node.layout for node in fx_nodes(graph) if "relu" in node.target)

    assert not_understood_in(graph, ()) == ("symbolic sizes: x_1, relu, sigmoid and 1 more",)
    assert layout is not None
    assert all(isinstance(size, str) for size in layout.shape)
    assert layout.stride is not None
    assert layout.stride[3] == 1


def test_a_view_that_torch_cannot_follow_is_named_where_the_model_made_it() -> None:
    graph = make_fx(lambda x: x.as_strided((4, 4), (1, 4)).relu(), tracing_mode="fake")(image())
    (node,) = (node for node in graph.graph.nodes if node.name == "as_strided")

    assert not_understood_in(graph, ()) == ()  # such a node, with no call of the model's behind it, is Inductor's own
    node.meta["source_fn_stack"] = [("as_strided", "as_strided")]
    assert not_understood_in(graph, ()) == ("aliasing view (as_strided): as_strided",)


def test_a_change_of_an_input_is_named_where_its_layout_could_matter() -> None:
    assert problems(lambda x: x.copy_(torch.ones(2, 4, 6, 6)), image()) == ("change of an input in place: copy_",)
    assert problems(lambda x: x.copy_(torch.ones(6)), torch.zeros(6)) == ()


def test_operators_of_others_are_custom_and_torchs_own_are_not() -> None:
    library = torch.library.Library("layoutdoctor_test", "FRAGMENT")
    try:
        library.define("turn(Tensor x) -> Tensor")
        assert operator_problem(torch.ops.layoutdoctor_test.turn.default) == (
            "custom operation (layoutdoctor_test.turn.default)"
        )
    finally:
        library._destroy()
    assert operator_problem(torch.ops.aten.relu.default) is None
    assert operator_problem(torch.ops.mkldnn._convolution_pointwise.default) is None
    assert operator_problem(max) is None
    lowering = functools.partial(max, "Match(..., [], {'x': quantize_per_tensor})")  # as freezing leaves one
    for quantised in (torch.ops.aten.quantize_per_tensor.default, torch.ops.quantized.add.default, lowering):
        assert operator_problem(quantised) == "quantised operation"
