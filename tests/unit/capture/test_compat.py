"""
Hooks that meet a torch, a graph or a node they do not know: the compile goes on, and the record names what is lost.

A name that torch's own compiler needs cannot be deleted without breaking torch itself, so it is taken away from us
alone: ``compat._look_up``, through which every hook looks, does not find it any more.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import seen_here
from loops import for_each
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseScheduling
from torch.fx.experimental.proxy_tensor import make_fx

from layoutdoctor.capture import compat
from layoutdoctor.capture.compat import (
    PRIVATE_NAMES,
    InductorHooks,
    compile_settings,
    inductor_config,
    missing_cpp_compiler,
    notes_on_torch,
)
from layoutdoctor.capture.decision import describe_decision, record_decision
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


def decided() -> bool:
    """Torch's decision about a graph without a convolution."""
    return GraphLowering.decide_layout_opt(torch.fx.symbolic_trace(torch.nn.ReLU()), is_inference=True)


def take_away(monkeypatch: pytest.MonkeyPatch, path: str, error: Exception) -> None:
    """Lets our own look-up of one private name fail, as in a torch that has none, or another thing in its place."""
    look_up = compat._look_up

    def without(known: compat.PrivateName) -> Any:
        if known.path == path:
            raise error
        return look_up(known)

    monkeypatch.setattr(compat, "_look_up", without)


@pytest.mark.compile
@pytest.mark.parametrize("known", ALWAYS, ids=lambda known: known.path)
def test_without_a_private_name_the_compile_goes_on_and_the_loss_is_named(
    monkeypatch: pytest.MonkeyPatch, known: compat.PrivateName
) -> None:
    take_away(monkeypatch, known.path, AttributeError(f"no attribute {known.name!r}"))

    (note,) = notes_on_torch("2.16.0")
    assert f"{known.loses} (" in note
    assert f"{known.path} is missing" in note
    with monkeypatch.context() as patches:
        take_away(patches, known.path, RuntimeError("gone in 2.16"))
        assert f"{known.path} raises RuntimeError: gone in 2.16" in notes_on_torch("2.16.0.dev20261101")[0]

    if known.path in LOOKED_AT_BEFORE_ANYTHING_IS_COMPILED:
        return
    capture = compiled_under_capture()
    assert any(known.path in failure for failure in capture.failures), capture.failures


def test_a_version_is_checked_or_newer_or_none_of_them_or_refused() -> None:
    for version in ("2.7.1+cu126", "2.13.0", "2.13.0+cpu", "2.15.0a0+gitabc123", "2.15.1"):
        assert notes_on_torch(version, with_target=True) == ()  # so that every private name is there
    for version, how in (
        ("2.16.0", "newer than"),
        ("2.16.0.dev20260101+cu132", "newer than"),
        ("3.0.0", "newer than"),
        ("built-by-hand", "none of"),
    ):
        assert notes_on_torch(version) == (
            f"torch {version} is {how} the versions layoutdoctor was checked with (2.7 to 2.15): every private name "
            "that can be looked up beforehand is there, but why Inductor decides as it does is told by the rules of "
            "torch 2.15",
        )
    for version in ("1.13.1", "2.6.0+cu124", "2.6.0a0+df5bbc09d1.nv24.12"):
        with pytest.raises(UnsupportedTorchError) as raised:
            notes_on_torch(version)
        assert str(raised.value) == (
            f"cannot diagnose with torch {version}: expected 2.7 or newer, the oldest that layoutdoctor was checked "
            "with; upgrade torch, or record a trace with torch.profiler and run `layoutdoctor trace` on it"
        )


def test_a_name_that_is_lost_or_another_thing_or_not_in_the_table_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    other_arguments = staticmethod(lambda graph, *, training: False)
    for found, said in ((other_arguments, "takes no gm, is_inference"), (True, "is no function")):
        with monkeypatch.context() as patches:
            patches.setattr(GraphLowering, "decide_layout_opt", found)
            assert f"GraphLowering.decide_layout_opt {said}" in notes_on_torch("2.16.0")[0]
    take_away(monkeypatch, "torch._dynamo.utils.counters", AttributeError())
    assert notes_on_torch("2.13.0") == (
        "torch 2.13.0 lacks private names that are read; lost: graph breaks and their reasons "
        "(torch._dynamo.utils.counters is missing)",
    )
    with pytest.raises(KeyError):
        compat.private("torch._inductor.graph.GraphLowering.no_such_name")


def test_a_name_that_is_no_function_is_not_wrapped_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GraphLowering, "compile_to_module", property(lambda self: None))

    with InductorHooks(lambda *_: None, lambda *_: None) as hooks:
        pass

    assert hooks.failures == [
        "compiled graphs: TypeError: GraphLowering.compile_to_module is no function, but a property"
    ]
    assert hooks.lowered_count is None


def test_an_exception_of_torchs_own_function_passes_as_it_is_and_the_hooks_are_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def decide_layout_opt(gm: Any, *, is_inference: bool) -> bool:
        raise ZeroDivisionError("torch's own")

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(decide_layout_opt))
    before = GraphLowering.decide_layout_opt, GraphLowering.compile_to_module
    with (
        pytest.raises(ZeroDivisionError, match="torch's own"),
        InductorHooks(lambda *_: None, lambda *_: None) as hooks,
    ):
        GraphLowering.decide_layout_opt(None, is_inference=True)

    assert hooks.failures == []
    assert (GraphLowering.decide_layout_opt, GraphLowering.compile_to_module) == before


def test_a_hook_that_raises_many_times_is_one_line_and_the_decision_stands() -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("boom")

    with InductorHooks(failing, lambda *_: None) as hooks:
        results = [decided() for _ in range(3)]

    assert results == [False] * 3
    assert hooks.failures == ["a layout decision: RuntimeError: boom (3 times)"]


def test_a_user_who_asked_for_torchs_log_still_gets_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("torch._inductor.graph")
    original = GraphLowering.decide_layout_opt
    seen: list[list[str]] = []

    @functools.wraps(original)
    def decide_layout_opt(gm: Any, *, is_inference: bool) -> bool:
        logger.debug("why not")
        if level == logging.WARNING:
            logger.debug("%d flops", "many")  # which cannot be formatted, and breaks nothing
        return original(gm, is_inference=is_inference)

    monkeypatch.setattr(GraphLowering, "decide_layout_opt", staticmethod(decide_layout_opt))
    monkeypatch.setattr(logger, "propagate", True)
    for level, passed in ((logging.DEBUG, ["why not"]), (logging.WARNING, [])):
        caplog.clear()
        logger.addHandler(caplog.handler)
        before = logger.level
        logger.setLevel(level)
        try:
            with InductorHooks(lambda graph, applied, log, inference: seen.append(log), lambda *_: None) as hooks:
                decided()
        finally:
            logger.setLevel(before)
            logger.removeHandler(caplog.handler)
        assert (seen.pop(), hooks.failures) == (["why not"], [])
        assert list(dict.fromkeys(record.getMessage() for record in caplog.records)) == passed


class Changed:
    """An object of torch's with some attributes replaced; one that is an exception is raised."""

    def __init__(self, inner: Any, **changes: Any) -> None:
        self.__dict__.update(_inner=inner, _changes=changes)

    def __getattr__(self, name: str) -> Any:
        found = self._changes[name] if name in self._changes else getattr(self._inner, name)
        if isinstance(found, Exception):
            raise found
        return found


DAMAGES = {"missing": AttributeError("no attribute"), "raises": RuntimeError("not for you"), "something else": object()}


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


@pytest.mark.compile
def test_a_lowering_without_an_attribute_costs_the_part_that_needs_it(lowered: tuple[Any, Any, list[Any]]) -> None:
    parts = {
        "module": None,  # orig_gm is there
        "orig_gm": "",  # any part
        "layout_opt": "decision: ",
        "num_channels_last_conv": "decision: ",
        "is_inference": "direction: ",
        **dict.fromkeys(("scheduler", "graph_outputs", "removed_buffers", "inplaced_to_remove"), "buffers: "),
    }
    # Any object counts as true, as it does for torch; without orig_gm the graph that is left tells the same.
    harmless = (("layout_opt", "something else"), ("is_inference", "something else"), ("orig_gm", "missing"))
    for (attribute, part), (damage, value) in itertools.product(parts.items(), DAMAGES.items()):
        graph = record_of(Changed(lowered[0], **{attribute: value}), lowered)

        if part is None or (attribute, damage) in harmless:
            assert graph.hook_failure is None, (attribute, damage)
            assert graph.nodes
        else:
            assert graph.hook_failure is not None, (attribute, damage)
            assert part in graph.hook_failure
            assert part != "decision: " or graph.decision is None
            assert part != "buffers: " or graph.buffers == ()


def damaged_scheduler(lowering: Any, place: str, change: dict[str, Any]) -> Any:
    """The same lowering, with one attribute of every scheduler node, buffer or IR node damaged."""

    def damaged_output(output: Any) -> Any:
        if place == "buffer":
            return Changed(output, **change)
        return Changed(output, node=Changed(output.node, **change)) if place == "ir" else output

    def damaged_node(node: Any) -> Any:
        if place == "node":
            return Changed(node, **change)
        outputs = [damaged_output(output) for output in node.get_outputs()]
        inner = Changed(node.node, **change) if place == "ir" else node.node
        return Changed(node, node=inner, get_outputs=lambda: outputs)

    nodes = [
        Changed(outer, get_nodes=lambda outer=outer: [damaged_node(node) for node in outer.get_nodes()])
        for outer in lowering.scheduler.nodes
    ]
    return Changed(lowering, scheduler=SimpleNamespace(nodes=nodes))


@pytest.mark.compile
@for_each(
    ("place", "attribute"),
    [
        *(("node", name) for name in ("is_extern", "read_writes", "get_name", "get_outputs", "is_reduction")),
        *(("buffer", name) for name in ("get_name", "node", "get_aliases", "get_mutations")),
        *(("ir", name) for name in ("origins", "get_layout")),
    ],
)
def test_a_scheduler_node_that_is_not_known_is_named_and_claims_nothing(
    lowered: tuple[Any, Any, list[Any]], place: str, attribute: str
) -> None:
    for value in DAMAGES.values():
        graph = record_of(damaged_scheduler(lowered[0], place, {attribute: value}), lowered)

        if attribute == "get_layout":  # an IR class says it otherwise, in its attribute
            assert graph.hook_failure is None
        elif (place, attribute) == ("buffer", "node"):
            assert graph.hook_failure is not None or all(buffer.layout is None for buffer in graph.buffers)
        else:
            assert graph.hook_failure is not None or graph.not_understood
            assert graph.buffers == () or any(buffer.problem is not None for buffer in graph.buffers)


def traced(function: Any, *shapes: tuple[int, ...]) -> Any:
    with torch.no_grad():
        return make_fx(function, tracing_mode="fake")(*(torch.empty(shape) for shape in shapes))


def test_meta_that_is_written_otherwise_costs_its_field_of_that_node() -> None:
    keys = {"stack_trace": "source line", "nn_module_stack": "module", "source_fn_stack": "name of what was called"}
    for (key, what), value in itertools.product(keys.items(), (object(), 3, {"a": 1}, [(1,)])):
        graph_module = traced(lambda x: x.relu() + 1, (2, 3))
        node = next(node for node in graph_module.graph.nodes if node.op == "call_function")
        node.meta[key] = value
        lost: dict[str, list[str]] = {}

        nodes = fx_nodes(graph_module, lost=lost)

        assert len(nodes) == len(list(graph_module.graph.nodes))
        read = {node.name: (node.location, node.module, node.called) for node in nodes}
        named = [name for problem, names in lost.items() if problem.startswith(what) for name in names]
        assert node.name in named or None in read[node.name]
        assert all(set(names) == {node.name} for names in lost.values())
    for node in graph_module.graph.nodes:
        node.meta.clear()
    lost = {}
    assert all(node.layout is None for node in fx_nodes(graph_module, lost=lost))
    assert list(lost) == ['layouts (no node has meta["val"])']


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


def test_a_convolution_that_is_not_known_gets_a_decision_card_without_its_sizes() -> None:
    for damage in ("no values", "odd values", "few arguments", "keywords", "odd arguments"):
        for rule in ("dynamic shape", "grouped convolution", "smaller out_channel", "channels are too small"):
            decision = describe_decision(damaged_convolution(damage), record_decision(False, [rule], False), False, 0)

            assert (decision.applied, decision.convolution_count) == (False, 1), (damage, rule)
    raw = record_decision(True, [], False)  # no card instead of a wrong one, where torch does not count them
    with pytest.raises(UnsupportedTorchError, match="does not count the convolutions made channels-last"):
        describe_decision(damaged_convolution("none"), raw, True, None)


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.relu() + 1, lambda x: x.sin() - 1, (x,))


IN_A_REGION = getattr(torch.compiler, "nested_compile_region", lambda function: function)(lambda x: x.relu() + 1)


def region(x: torch.Tensor) -> torch.Tensor:
    return IN_A_REGION(IN_A_REGION(x))


@pytest.mark.compile
@pytest.mark.parametrize("function", [conditional, region])
def test_a_sub_graph_is_named_and_the_result_is_right(function: Any) -> None:
    if function is region and not hasattr(torch.compiler, "nested_compile_region"):
        pytest.skip("this torch has no nested regions")
    with torch.no_grad():
        capture = compiled_under_capture(function, torch.ones(4, 3))

    assert capture.failures == ()
    assert {graph.hook_failure for graph in capture.graphs} == {None}
    assert any("sub-graph (" in line for graph in capture.graphs for line in graph.not_understood)


def test_an_eager_iteration_runs_without_a_private_name_or_a_layout_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(value: Any) -> Any:
        raise RuntimeError("no layout for you")

    def failure() -> str | None:
        results: list[torch.Tensor] = []
        graph = record_eager_iteration(lambda: results.append(torch.ones(3).relu()), None, lambda: results)
        assert torch.equal(results[0], torch.ones(3))
        return graph.hook_failure

    for path in ("torch._C._current_autograd_node", "torch.autograd._get_sequence_nr"):
        with monkeypatch.context() as patches:
            take_away(patches, path, AttributeError("gone"))
            assert path in (failure() or "")
    monkeypatch.setattr("layoutdoctor.capture.eager_graph.layout_of", failing)
    assert failure() == (
        "aten.ones.default: RuntimeError: no layout for you; aten.relu.default: RuntimeError: no layout for you; "
        "what the iteration returned: RuntimeError: no layout for you"
    )


class Tiny(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return tiny(x)


@pytest.mark.compile
def test_a_diagnosis_under_a_newer_torch_names_what_is_lost_once_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "NEWEST", (2, 6))  # so that the torch that runs this is a newer one
    for path in ("torch._inductor.graph.GraphLowering.compile_to_module", "torch._dynamo.utils.counters"):
        take_away(monkeypatch, path, AttributeError("moved"))

    diagnosis, trial, _ = seen_here(Tiny(), torch.ones(2, 3), "inductor")

    (note,) = [note for note in diagnosis.subject.notes if " is newer than " in note]
    assert note.startswith(f"torch {torch.__version__} is newer than the versions layoutdoctor was checked with")
    assert (trial.status, trial.graphs) == ("ok", ())
    assert trial.equivalence is not None
    assert trial.equivalence.status == "equal"
    lost = [note for note in trial.notes if note.startswith("not recorded: ")]
    assert [note.split(":")[1].strip() for note in lost] == ["graph breaks", "compiled graphs"]
    assert not any("lowered no graph" in note for note in trial.notes)  # it did; nobody saw it
    assert not any(finding.severity == "error" for finding in diagnosis.findings)


def test_settings_hold_inside_and_are_as_before_outside() -> None:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    config = inductor_config()

    def values() -> tuple[object, ...]:
        caches = config.fx_graph_cache, functorch.enable_autograd_cache
        return (config.freezing, *caches, dynamo.automatic_dynamic_shapes, dynamo.suppress_errors)

    before = values()
    with contextlib.suppress(KeyError), compile_settings({"freezing": True, "no_such_setting": 1}):
        inside = values()
        raise KeyError
    assert inside == (True, False, False, False, False)
    assert values() == before


ANOTHER_KIND: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "method": lambda own: lambda self, gm, *, is_inference: own(gm, is_inference=is_inference),
    "class method": lambda own: classmethod(lambda cls, gm, *, is_inference: own(gm, is_inference=is_inference)),
    "further arguments": lambda own: staticmethod(
        lambda gm, *, is_inference, device="cpu": own(gm, is_inference=is_inference)
    ),
    "any arguments": lambda own: staticmethod(lambda *args, **keywords: own(*args, **keywords)),
    **{
        repr(given): lambda own, given=given: staticmethod(lambda gm, *, is_inference: given)
        for given in (None, 1, "yes")
    },
}


@pytest.mark.compile
@pytest.mark.parametrize("kind", ANOTHER_KIND)
def test_a_decision_function_of_another_kind_is_called_as_torch_means_it(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """What is neither true nor false, or about nobody knows which graph, is torch's business and not recorded."""
    monkeypatch.setattr(GraphLowering, "decide_layout_opt", ANOTHER_KIND[kind](GraphLowering.decide_layout_opt))

    capture = compiled_under_capture()

    decided = [graph.decision.rule for graph in capture.graphs if graph.decision is not None]
    if kind in ("method", "class method", "further arguments"):
        assert (decided, capture.failures) == (["no-convolution"], ())
    else:
        (failure,) = capture.failures
        assert failure.startswith("a layout decision: TypeError: expected a graph and True or False, got ")


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


def test_an_undamaged_graph_has_no_failure_and_one_that_cannot_be_read_at_all_counts_too(
    lowered: tuple[Any, Any, list[Any]],
) -> None:
    graph = record_of(lowered[0], lowered)
    assert (graph.hook_failure, graph.not_understood) == (None, ())
    assert graph.buffers
    assert graph.nodes

    graph = record_of(object(), lowered)
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("nothing of it could be read: AttributeError: ")
    assert graph.code_fingerprint is None  # it is the same code as no other

    nodes = [*lowered[0].scheduler.nodes, SimpleNamespace(kind="of tomorrow")]
    graph = record_of(Changed(lowered[0], scheduler=SimpleNamespace(nodes=nodes)), lowered)
    assert graph.buffers == ()
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("buffers: AttributeError: ")
    assert "get_nodes" in graph.hook_failure


def test_a_layout_class_without_sizes_or_strides_is_no_layout(lowered: tuple[Any, Any, list[Any]]) -> None:
    unequal = SimpleNamespace(size=[1, 2], stride=[2])
    no_sequences = SimpleNamespace(size=3, stride=4)
    for layout in (None, object(), SimpleNamespace(size=[1, 2]), no_sequences, unequal):
        lowering = damaged_scheduler(lowered[0], "ir", {"get_layout": lambda layout=layout: layout})
        buffers = buffers_of(lowering, lowered[2])

        assert buffers
        assert all(buffer.layout is None for buffer in buffers)


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


@pytest.mark.compile
def test_symbolic_sizes_everywhere_are_recorded_as_such() -> None:
    capture = compiled_under_capture(lambda x: x.transpose(0, 1).contiguous() + 1, torch.randn(5, 7), dynamic=True)

    assert capture.failures == ()
    (graph,) = capture.graphs
    assert graph.hook_failure is None
    assert graph.conversions == ()
    assert any("symbolic sizes" in line for line in graph.not_understood)


NUMBERS_FOR_REASONS = {object(): [1, None]}  # which can be read, as any text can


@pytest.mark.compile
@pytest.mark.parametrize(
    ("table", "found"),
    [
        *((".counters", found) for found in ({}, {"graph_break": None}, {"graph_break": {"why": "many"}}, None)),
        *((".guard_failures", found) for found in (None, {object(): None}, NUMBERS_FOR_REASONS)),
    ],
)
def test_a_table_of_another_form_costs_what_is_read_from_it_only(
    monkeypatch: pytest.MonkeyPatch, table: str, found: Any
) -> None:
    private = compat.private
    monkeypatch.setattr(compat, "private", lambda path: found if path.endswith(table) else private(path))
    capture = compiled_under_capture()

    lost = "graph breaks: " if table == ".counters" else "reasons of recompiles: "
    assert len(capture.graphs) == 1
    assert capture.recompile_reasons == ()
    assert found is NUMBERS_FOR_REASONS or any(failure.startswith(lost) for failure in capture.failures)


def test_a_compiler_search_that_wants_to_be_asked_otherwise_is_no_missing_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch._inductor.cpp_builder.get_cpp_compiler", lambda device: "g++")
    assert missing_cpp_compiler() is None

    take_away(monkeypatch, "torch._inductor.cpp_builder.get_cpp_compiler", ImportError("moved"))
    assert missing_cpp_compiler() is None


def test_a_diagnosis_under_an_old_torch_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.5.1+cu121")

    with pytest.raises(
        UnsupportedTorchError, match=r"cannot diagnose with torch 2\.5\.1\+cu121: expected 2\.7 or newer"
    ):
        seen_here(Tiny(), torch.ones(2, 3))
