"""
Hooks that meet a torch, a graph or a node they do not know: the compile goes on, and the record names what is lost.

A name that torch's own compiler needs cannot be deleted without breaking torch itself, so it is taken away from us
alone: ``compat_names._look_up``, through which every hook looks, does not find it any more.
"""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseScheduling
from torch.fx.experimental.proxy_tensor import make_fx

import layoutdoctor
from layoutdoctor.capture import compat as compat_names
from layoutdoctor.capture.compat import (
    PRIVATE_NAMES,
    InductorHooks,
    compile_settings,
    missing_cpp_compiler,
    notes_on_torch,
)
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.fx_graph import fx_nodes
from layoutdoctor.capture.inductor_graph import buffers_of
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.errors import UnsupportedTorchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.records import Graph

ALWAYS = [known for known in PRIVATE_NAMES if not known.for_target]
LOOKED_AT_BEFORE_ANYTHING_IS_COMPILED = {known.path for known in ALWAYS} - {
    "torch._inductor.graph.GraphLowering.decide_layout_opt",
    "torch._inductor.graph.GraphLowering.compile_to_module",
    "torch._inductor.scheduler.BaseScheduling",
    "torch._inductor.codegen.cpp.CppScheduling.define_kernel",
    "torch._inductor.codegen.triton.TritonScheduling.define_kernel",
    "torch._dynamo.utils.counters",
    "torch._dynamo.utils.guard_failures",
    "torch._dynamo.convert_frame.FRAME_COUNTER",
}


@pytest.fixture(autouse=True)
def _clean_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + 1


def compiled_under_capture(function: Callable[..., Any] = tiny, *inputs: Any, **options: Any) -> CompileCapture:
    """Compiles and calls a function under capture; fails where that raises, or gives another result than eager."""
    inputs = inputs or (torch.arange(-3.0, 3.0),)
    with compile_settings({}), CompileCapture() as capture:
        result = torch.compile(function, **options)(*inputs)
    torch.testing.assert_close(result, function(*inputs))
    return capture


def take_away(monkeypatch: pytest.MonkeyPatch, path: str, error: Exception) -> None:
    """Lets our own look-up of one private name fail, as in a torch that has none, or another thing in its place."""
    look_up = compat_names._look_up

    def without(known: compat_names.PrivateName) -> Any:
        if known.path == path:
            raise error
        return look_up(known)

    monkeypatch.setattr(compat_names, "_look_up", without)


# ------------------------------------------------------------------------------------------- a torch nobody has seen


@pytest.mark.compile
@pytest.mark.parametrize("known", ALWAYS, ids=lambda known: known.path)
def test_a_private_name_that_raises_is_named_with_what_it_raised(
    monkeypatch: pytest.MonkeyPatch, known: compat_names.PrivateName
) -> None:
    take_away(monkeypatch, known.path, RuntimeError("gone in 2.16"))

    (note,) = notes_on_torch("2.16.0.dev20261101")
    assert f"{known.path} raises RuntimeError: gone in 2.16" in note

    if known.path not in LOOKED_AT_BEFORE_ANYTHING_IS_COMPILED:
        assert any("gone in 2.16" in failure for failure in compiled_under_capture().failures)


def test_a_name_is_never_looked_up_that_is_not_in_the_table() -> None:
    with pytest.raises(KeyError):
        compat_names.private("torch._inductor.graph.GraphLowering.no_such_name")


def test_a_version_without_a_number_is_said_to_be_none_of_the_checked_ones() -> None:
    (note,) = notes_on_torch("built-by-hand")

    assert note.startswith("torch built-by-hand is none of the versions layoutdoctor was checked with (2.7 to 2.15): ")


def test_a_name_that_is_no_function_any_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", True)

    (note,) = notes_on_torch("2.16.0")

    assert "GraphLowering.decide_layout_opt is no function" in note


# ------------------------------------------------------------------------------------- functions of another signature


def decision_of_another_kind(kind: str, original: Callable[..., Any]) -> Any:
    """Torch's function as another torch may have it: of the object, of the class, with further arguments."""
    if kind == "method":
        return lambda self, gm, *, is_inference: original(gm, is_inference=is_inference)
    if kind == "class method":
        return classmethod(lambda cls, gm, *, is_inference: original(gm, is_inference=is_inference))
    if kind == "further arguments":
        return staticmethod(lambda gm, *, is_inference, device="cpu": original(gm, is_inference=is_inference))
    return staticmethod(lambda *args, **keywords: original(*args, **keywords))


@pytest.mark.compile
@pytest.mark.parametrize("kind", ["method", "class method", "further arguments", "any arguments"])
def test_a_decision_function_of_another_kind_is_called_as_torch_means_it(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    original = GraphLowering.decide_layout_opt
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", decision_of_another_kind(kind, original))

    capture = compiled_under_capture()

    decided = [graph.decision.rule for graph in capture.graphs if graph.decision is not None]
    if kind == "any arguments":  # nobody knows which of them is the graph
        assert capture.failures == ("a layout decision: TypeError: expected a graph and True or False, "
                                    "got args, keywords and bool",)  # fmt: skip
    else:
        assert (decided, capture.failures) == (["no-convolution"], ())


@pytest.mark.compile
@pytest.mark.parametrize("result", [None, 1, "yes"], ids=repr)
def test_a_decision_that_is_neither_true_nor_false_is_torchs_business_and_not_recorded(
    monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(lambda gm, *, is_inference: result))

    (failure,) = compiled_under_capture().failures

    assert failure.startswith("a layout decision: TypeError: expected a graph and True or False")


@pytest.mark.compile
def test_a_compile_function_with_further_arguments_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GraphLowering.compile_to_module

    def compile_to_module(self: Any, key: str | None = None, *, inputs: Any = None) -> Any:
        del key, inputs
        return original(self)

    monkeypatch.setattr(GraphLowering, "compile_to_module", compile_to_module)
    capture = compiled_under_capture()

    assert (len(capture.graphs), capture.failures) == (1, ())


@pytest.mark.parametrize(
    ("nodes", "name", "expected"),
    [
        ([SimpleNamespace(get_nodes=lambda: [SimpleNamespace(get_name=lambda: "op0")])], "cpp_0", ["op0"]),
        ([SimpleNamespace(get_nodes=lambda: [])], ("cpp_0", "path"), []),
        (["a marker without nodes"], "cpp_0", []),
        ([SimpleNamespace(get_nodes=lambda: [object()])], "cpp_0", None),
        (None, "cpp_0", None),
        ([], None, None),
        ([], (), None),
    ],
)
@pytest.mark.parametrize("keywords", [False, True])
def test_a_kernel_is_noted_however_it_is_handed_over_or_named_as_lost(
    nodes: Any, name: Any, expected: list[str] | None, keywords: bool
) -> None:
    class Scheduling(BaseScheduling):
        def define_kernel(self, src_code: str, nodes: Any, kernel: Any = None) -> Any:
            return name

    scheduling = object.__new__(Scheduling)
    with InductorHooks(lambda *_: None, lambda *_: None) as hooks:
        if keywords:
            returned = scheduling.define_kernel(nodes=nodes, src_code="source")
        else:
            returned = scheduling.define_kernel("source", nodes, 1)
        noted = list(hooks._kernels)

    assert returned is name
    if expected is None:
        assert noted == []
        assert hooks.failures[0].startswith("a generated kernel: ")
    else:
        assert (noted, hooks.failures) == ([("cpp_0", expected, "source")], [])


@pytest.mark.compile
def test_a_graph_lowered_inside_another_one_leaves_it_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    original, define_kernel = GraphLowering.compile_to_module, CppScheduling.define_kernel
    inner = SimpleNamespace()

    def compile_to_module(self: Any) -> Any:
        return None if self is inner else original(self)

    def defining(self: Any, src_code: str, nodes: Any, kernel_args: Any = None) -> Any:
        GraphLowering.compile_to_module(inner)  # as autotuning does
        return define_kernel(self, src_code, nodes, kernel_args)

    monkeypatch.setattr(GraphLowering, "compile_to_module", compile_to_module)
    monkeypatch.setattr(CppScheduling, "define_kernel", defining)
    capture = compiled_under_capture()

    assert [len(graph.kernel_names) for graph in capture.graphs] == [0, 1]
    assert capture.lowered_count == 2


def test_hooks_that_somebody_else_took_off_meanwhile_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with InductorHooks(lambda *_: None, lambda *_: None) as hooks:
        monkeypatch.setattr(hooks._stack, "close", lambda: {}["gone"])

    assert hooks.failures == ["whether the hooks were undone: KeyError: 'gone'"]
    monkeypatch.undo()
    hooks._stack.close()


# ------------------------------------------------------------------------------------------------ what torch logs


def test_a_log_line_that_cannot_be_formatted_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide_layout_opt(gm: Any, *, is_inference: bool) -> bool:
        logging.getLogger("torch._inductor.graph").debug("%d flops", "many")
        logging.getLogger("torch._inductor.graph").debug("Skipped layout opt")
        return False

    seen: list[list[str]] = []
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(decide_layout_opt))
    with InductorHooks(lambda graph, applied, log, inference: seen.append(log), lambda *_: None) as hooks:
        GraphLowering.decide_layout_opt(torch.fx.symbolic_trace(torch.nn.ReLU()), is_inference=True)

    assert (seen, hooks.failures) == ([["Skipped layout opt"]], [])


# --------------------------------------------------------------------------------------- graphs nobody has seen


class Damaged:
    """An object of torch's with one attribute that is missing, raises, or is something else."""

    def __init__(self, inner: Any, attribute: str, damage: str) -> None:
        self.__dict__.update(_inner=inner, _attribute=attribute, _damage=damage)

    def __getattr__(self, name: str) -> Any:
        if name == self._attribute:
            if self._damage == "missing":
                raise AttributeError(f"no attribute {name!r}")
            if self._damage == "raises":
                raise RuntimeError(f"{name} is not for you")
            return object()
        return getattr(self._inner, name)


@pytest.fixture(scope="module")
def lowered() -> tuple[Any, Any, list[Any]]:
    """A lowered graph with a convolution, its module and its kernels, as the hook sees them."""
    seen: list[Any] = []
    weight = torch.randn(4, 3, 3, 3)
    torch._dynamo.reset()
    with compile_settings({}), InductorHooks(lambda *_: None, lambda *parts: seen.append(parts)):
        torch.compile(lambda x: torch.conv2d(x, weight).relu().sum(1))(torch.randn(1, 3, 8, 8))
    (parts,) = seen
    return parts


def record_of(lowering: Any, lowered: tuple[Any, Any, list[Any]]) -> Graph:
    _, module, kernels = lowered
    capture = CompileCapture()
    capture._on_graph(lowering, module, kernels)
    (graph,) = capture.graphs
    return graph


def test_an_undamaged_graph_has_no_failure(lowered: tuple[Any, Any, list[Any]]) -> None:
    graph = record_of(lowered[0], lowered)

    assert graph.hook_failure is None
    assert graph.not_understood == ()
    assert graph.buffers
    assert graph.nodes


def test_a_lowering_that_cannot_be_read_at_all_still_counts_as_a_graph(lowered: tuple[Any, Any, list[Any]]) -> None:
    graph = record_of(object(), lowered)

    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("nothing of it could be read: AttributeError: ")
    assert graph.code_fingerprint is None  # it is the same code as no other


def damaged_scheduler(lowering: Any, place: str, attribute: str, damage: str) -> Any:
    """The same lowering, with one attribute of every scheduler node, buffer or IR node damaged."""

    def damaged_output(output: Any) -> Any:
        if place == "buffer":
            return Damaged(output, attribute, damage)
        return Changed(output, node=Damaged(output.node, attribute, damage)) if place == "ir" else output

    def damaged_node(node: Any) -> Any:
        if place == "node":
            return Damaged(node, attribute, damage)
        outputs = [damaged_output(output) for output in node.get_outputs()]
        inner = Damaged(node.node, attribute, damage) if place == "ir" else node.node
        return Changed(node, node=inner, get_outputs=lambda: outputs)

    nodes = [
        Changed(outer, get_nodes=lambda outer=outer: [damaged_node(node) for node in outer.get_nodes()])
        for outer in lowering.scheduler.nodes
    ]
    return Changed(lowering, scheduler=SimpleNamespace(nodes=nodes))


class Changed:
    """An object of torch's with some attributes replaced."""

    def __init__(self, inner: Any, **changes: Any) -> None:
        self.__dict__.update(_inner=inner, **changes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize(
    "layout",
    [
        None,
        object(),
        SimpleNamespace(size=[1, 2]),
        SimpleNamespace(size=3, stride=4),
        SimpleNamespace(size=[1, 2], stride=[2]),
    ],
    ids=["none", "no attributes", "no strides", "no sequences", "unequal"],
)
def test_a_layout_class_without_sizes_or_strides_is_no_layout(lowered: tuple[Any, Any, list[Any]], layout: Any) -> None:
    lowering = lowered[0]
    nodes = []
    for outer in lowering.scheduler.nodes:
        for node in outer.get_nodes():
            outputs = [Changed(o, node=Changed(o.node, get_layout=lambda: layout)) for o in node.get_outputs()]
            nodes.append(Changed(node, get_outputs=lambda outputs=outputs: outputs))
    outer = SimpleNamespace(get_nodes=lambda: nodes)
    buffers = buffers_of(Changed(lowering, scheduler=SimpleNamespace(nodes=[outer])), lowered[2])

    assert buffers
    assert all(buffer.layout is None for buffer in buffers)


def test_an_unknown_kind_of_scheduler_node_costs_the_buffers_and_is_named(
    lowered: tuple[Any, Any, list[Any]],
) -> None:
    nodes = [*lowered[0].scheduler.nodes, SimpleNamespace(kind="of tomorrow")]
    graph = record_of(Changed(lowered[0], scheduler=SimpleNamespace(nodes=nodes)), lowered)

    assert graph.buffers == ()
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("buffers: AttributeError: ")
    assert "get_nodes" in graph.hook_failure


# ------------------------------------------------------------------------------------------------------ FX nodes


def traced(function: Any, *shapes: tuple[int, ...]) -> Any:
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes))


def test_nodes_without_any_value_are_said_to_have_no_layout() -> None:
    graph_module = traced(lambda x: x.relu() + 1, (2, 3))
    for node in graph_module.graph.nodes:
        node.meta.pop("val", None)
    lost: dict[str, list[str]] = {}

    nodes = fx_nodes(graph_module, lost=lost)

    assert all(node.layout is None for node in nodes)
    assert list(lost) == ['layouts (no node has meta["val"])']


@pytest.mark.compile
def test_what_a_node_lost_is_in_the_graphs_record(
    lowered: tuple[Any, Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(node: Any) -> Any:
        raise LookupError("written otherwise")

    monkeypatch.setattr("layoutdoctor.capture.fx_graph.node_module", failing)
    graph = record_of(lowered[0], lowered)

    assert graph.nodes
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("module (LookupError: written otherwise): ")


def damaged_convolution(damage: str) -> Any:
    graph_module = traced(lambda x, w: torch.conv2d(x, w), (1, 4, 8, 8), (6, 4, 3, 3))
    node = next(node for node in graph_module.graph.nodes if "convolution" in str(node.target))
    if damage == "no values":
        for other in graph_module.graph.nodes:
            other.meta.clear()
    elif damage == "odd values":
        for other in graph_module.graph.nodes:
            other.meta["val"] = object()
    elif damage == "few arguments":
        node.args = node.args[:1]
    elif damage == "keywords":
        node.kwargs, node.args = {"input": node.args[0]}, ()
    elif damage == "odd arguments":
        node.args = (*node.args[:3], "same", None, 3, None, None, 2.5)
    return graph_module


# ------------------------------------------------------------------------------------- sub-graphs and symbolic sizes


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.relu() + 1, lambda x: x.sin() - 1, (x,))


def loop(x: torch.Tensor) -> torch.Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.int64)
    return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (start, x))[1]


@pytest.mark.compile
@pytest.mark.skipif(not hasattr(torch.compiler, "nested_compile_region"), reason="this torch has no nested regions")
def test_a_region_compiled_once_and_called_twice_is_named() -> None:
    region = torch.compiler.nested_compile_region(lambda x: x.relu() + 1)
    with torch.no_grad():
        capture = compiled_under_capture(lambda x: region(region(x)), torch.ones(4, 3))

    assert capture.failures == ()
    assert [graph.hook_failure for graph in capture.graphs] == [None]
    assert any("sub-graph (" in line for graph in capture.graphs for line in graph.not_understood)


@pytest.mark.compile
def test_symbolic_sizes_everywhere_are_recorded_as_such() -> None:
    capture = compiled_under_capture(lambda x: x.transpose(0, 1).contiguous() + 1, torch.randn(5, 7), dynamic=True)

    assert capture.failures == ()
    (graph,) = capture.graphs
    assert graph.hook_failure is None
    assert graph.conversions == ()
    assert any("symbolic sizes" in line for line in graph.not_understood)


# --------------------------------------------------------------------------------------- eager, counters, compiler


def test_an_eager_operation_that_cannot_be_written_down_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(value: Any) -> Any:
        raise RuntimeError("no layout for you")

    monkeypatch.setattr("layoutdoctor.capture.eager_graph.layout_of", failing)
    results: list[torch.Tensor] = []

    graph = record_eager_iteration(lambda: results.append(torch.ones(3).relu()), None, lambda: results)

    assert graph.hook_failure == (
        "aten.ones.default: RuntimeError: no layout for you; aten.relu.default: RuntimeError: no layout for you; "
        "what the iteration returned: RuntimeError: no layout for you"
    )
    assert torch.equal(results[0], torch.ones(3))


@pytest.mark.compile
@pytest.mark.parametrize("counters", [{}, {"graph_break": None}, {"graph_break": {"why": "many"}}, None], ids=str)
def test_counters_of_another_form_cost_the_graph_breaks_only(monkeypatch: pytest.MonkeyPatch, counters: Any) -> None:
    private = compat_names.private

    def other(path: str) -> Any:
        return counters if path.endswith(".counters") else private(path)

    monkeypatch.setattr("layoutdoctor.capture.compat.private", other)
    capture = compiled_under_capture()

    assert len(capture.graphs) == 1
    assert any(failure.startswith("graph breaks: ") for failure in capture.failures)


@pytest.mark.compile
@pytest.mark.parametrize("failures", [None, {object(): None}, {object(): [1, None]}], ids=["none", "odd", "numbers"])
def test_guard_failures_of_another_form_cost_the_reasons_only(monkeypatch: pytest.MonkeyPatch, failures: Any) -> None:
    private = compat_names.private

    def other(path: str) -> Any:
        return failures if path.endswith(".guard_failures") else private(path)

    monkeypatch.setattr("layoutdoctor.capture.compat.private", other)
    capture = compiled_under_capture()

    assert len(capture.graphs) == 1
    assert capture.recompile_reasons == ()
    if failures is None or None in failures.values():
        assert any(failure.startswith("reasons of recompiles: ") for failure in capture.failures)


def test_a_compiler_search_that_wants_to_be_asked_otherwise_is_no_missing_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda device: "g++")
    assert missing_cpp_compiler() is None

    take_away(monkeypatch, "torch._inductor.cpp_builder.get_cpp_compiler", ImportError("moved"))
    assert missing_cpp_compiler() is None


# ------------------------------------------------------------------------------------------------ in a diagnosis


class Tiny(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tiny(x)


def test_a_diagnosis_under_an_old_torch_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")

    with pytest.raises(
        UnsupportedTorchError, match=r"cannot diagnose with torch 2\.5\.1\+cu121: expected 2\.7 or newer"
    ):
        layoutdoctor.diagnose(Tiny(), torch.ones(2, 3), configurations="eager", budget_seconds=0.2)
