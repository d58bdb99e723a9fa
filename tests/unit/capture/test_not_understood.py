"""What in a graph cannot be followed is named, each kind once, and everything else is passed over in silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import a_buffer
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture.not_understood import (
    described,
    not_understood_in,
    operator_problem,
    tensor_problem,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


def test_sizes_that_stay_symbols_are_named_with_where_they_occur() -> None:
    (line,) = problems(lambda x: x.relu().sigmoid().tanh(), image(), mode="symbolic")

    assert line == "symbolic sizes: x_1, relu, sigmoid and 1 more"


def test_a_view_that_torch_cannot_follow_is_named_where_the_model_made_it() -> None:
    graph = make_fx(lambda x: x.as_strided((4, 4), (1, 4)).relu(), tracing_mode="fake")(image())
    (node,) = (node for node in graph.graph.nodes if node.name == "as_strided")

    assert not_understood_in(graph, ()) == ()  # such a node, with no call of the model's behind it, is Inductor's own
    node.meta["source_fn_stack"] = [("as_strided", "as_strided")]
    assert not_understood_in(graph, ()) == ("aliasing view (as_strided): as_strided",)


def test_a_change_of_an_input_is_named_where_its_layout_could_matter() -> None:
    assert problems(lambda x: x.copy_(torch.ones(2, 4, 6, 6)), image()) == ("change of an input in place: copy_",)
    assert problems(lambda x: x.copy_(torch.ones(6)), torch.zeros(6)) == ()


def test_complex_and_sparse_tensors_are_named() -> None:
    assert problems(lambda x: torch.fft.fft(x).real, image()) == ("complex tensor: _fft_r2c",)
    assert tensor_problem(torch.eye(3).to_sparse()) == "sparse_coo tensor"


def test_what_is_no_tensor_is_no_problem() -> None:
    assert tensor_problem(None) is None
    assert tensor_problem(7) is None
    assert tensor_problem(image()) is None


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


@pytest.mark.parametrize("name", ["aten.quantize_per_tensor.default", "quantized.add.default"])
def test_quantised_operators_are_named_as_such(name: str) -> None:
    namespace, operator, overload = name.split(".")
    target = getattr(getattr(getattr(torch.ops, namespace), operator), overload)

    assert operator_problem(target) == f"quantised operation ({name})"


def test_a_branch_is_a_sub_graph() -> None:
    def branching(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y.sigmoid(), (x,))

    assert problems(branching, image()) == ("sub-graph (cond): cond",)


def test_a_loop_that_could_not_be_read_is_named_by_its_buffer() -> None:
    graph = make_fx(lambda x: x.relu(), tracing_mode="fake")(image())
    buffers = [a_buffer(f"buf{n}", problem="loop body not read (boom)") for n in range(5)] + [a_buffer("fine")]

    assert not_understood_in(graph, buffers) == ("loop body not read (boom): buf0, buf1, buf2 and 2 more",)


def test_each_kind_is_one_line_in_the_order_in_which_it_was_met() -> None:
    assert described({"b": ["x", "y"], "a": ["z"]}) == ("b: x, y", "a: z")
