"""
Hooks that meet a torch, a graph or a node they do not know: the compile goes on, and the record names what is lost.

A name that torch's own compiler needs cannot be deleted without breaking torch itself, so it is taken away from us
alone: ``compat._look_up``, through which every hook looks, does not find it any more.
"""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from live_trials import seen_here
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.graph import GraphLowering

from layoutdoctor.capture import compat
from layoutdoctor.capture.compat import (
    PRIVATE_NAMES,
    InductorHooks,
    building_kernels,
    compile_settings,
    inductor_config,
    notes_on_torch,
)
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.capture.session import CompileCapture
from layoutdoctor.errors import UnsupportedTorchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.graph import Graph


ALWAYS = {path: loses for path, loses in PRIVATE_NAMES.items() if loses != "lowering for a GPU that is not there"}


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

    def without(name: str) -> Any:
        if name == path:
            raise error
        return look_up(name)

    monkeypatch.setattr(compat, "_look_up", without)


@pytest.mark.compile
def test_without_its_private_names_the_compile_goes_on_and_every_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for path, loses in ALWAYS.items():
        with monkeypatch.context() as patches:
            take_away(patches, path, AttributeError("no such attribute"))
            (note,) = notes_on_torch("2.16.0")
            assert f"{loses} ({path} is missing" in note
    take_away(monkeypatch, "torch._dynamo.utils.counters", RuntimeError("gone in 2.16"))
    assert notes_on_torch("2.13.0") == (
        "torch 2.13.0 lacks private names that layoutdoctor reads; lost: graph breaks and their reasons "
        "(torch._dynamo.utils.counters raises RuntimeError: gone in 2.16)",
    )

    for path in ALWAYS:
        take_away(monkeypatch, path, AttributeError("no such attribute"))
    capture = compiled_under_capture()

    assert list(dict.fromkeys(lack.reason.split(":")[1].strip() for lack in capture.lacks)) == [
        "graph breaks",
        "reasons of recompiles",
        "traced model",
        "layout decisions",
        "compiled graphs",
        "packaged graphs",
        "generated kernels",
    ]


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
            "is there, but Inductor's decisions are explained by the rules of torch 2.15",
        )
    for version in ("1.13.1", "2.6.0+cu124", "2.6.0a0+df5bbc09d1.nv24.12"):
        with pytest.raises(UnsupportedTorchError) as raised:
            notes_on_torch(version)
        assert str(raised.value) == (
            f"cannot diagnose with torch {version}: expected 2.7 or newer, the oldest that layoutdoctor was checked "
            "with; upgrade torch, or record a trace with torch.profiler and run `layoutdoctor show` on it"
        )


def test_a_hook_that_raises_many_times_is_one_line_and_the_decision_stands() -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("boom")

    with InductorHooks(failing, lambda *_: None) as hooks:
        results = [decided() for _ in range(3)]

    assert results == [False] * 3
    assert hooks.failures == ["a layout decision: RuntimeError: boom (3 times)"]


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


def test_an_eager_iteration_runs_without_a_private_name_or_a_layout_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(value: Any) -> Any:
        raise RuntimeError("no layout for you")

    def failure() -> str | None:
        results: list[torch.Tensor] = []
        graph = record_eager_iteration(lambda: results.append(torch.ones(3).relu()), torch.nn.Module(), lambda: results)
        assert torch.equal(results[0], torch.ones(3))
        return graph.hook_failure

    for path in ("torch._C._current_autograd_node", "torch.autograd._get_sequence_nr"):
        with monkeypatch.context() as patches:
            take_away(patches, path, AttributeError("gone"))
            assert path in (failure() or "")
    monkeypatch.setattr("layoutdoctor.capture.eager_graph.layout_of", failing)
    assert failure() == (
        "aten.ones.default: RuntimeError: no layout for you; aten.relu.default: RuntimeError: no layout for you; "
        "outputs of the iteration: RuntimeError: no layout for you"
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
    lost = [lack.reason.split(": ")[:2] for lack in trial.lacks if lack.part == "graphs"]
    assert lost == [["not recorded", "graph breaks"], ["not recorded", "compiled graphs"]]
    assert not any("lowered no graph" in note for note in trial.notes)  # it did; nobody saw it
    assert not any(finding.severity == "error" for finding in diagnosis.findings)


def test_settings_hold_inside_and_are_as_before_outside() -> None:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    config = inductor_config()

    def values() -> tuple[object, ...]:
        caches = config.fx_graph_cache, functorch.enable_autograd_cache
        return (config.freezing, *caches, dynamo.suppress_errors)

    before = values()
    with contextlib.suppress(KeyError), compile_settings({"freezing": True, "no_such_setting": 1}):
        inside = values()
        raise KeyError
    assert inside == (True, False, False, False)
    assert dynamo.automatic_dynamic_shapes  # as it is for the user
    assert values() == before


@pytest.mark.compile
def test_a_graph_lowered_inside_another_one_leaves_it_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    original, define_kernel = GraphLowering.compile_to_module, CppScheduling.define_kernel
    inner = SimpleNamespace(aot_mode=False, is_const_graph=False, module=None)

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


def test_an_undamaged_graph_has_no_failure_and_one_that_cannot_be_read_at_all_counts_too(
    lowered: tuple[Any, Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = record_of(lowered[0], lowered)
    assert (graph.hook_failure, graph.not_understood) == (None, ())
    assert graph.buffers
    assert graph.nodes

    graph = record_of(object(), lowered)
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("no part of the graph could be read: AttributeError: ")
    assert graph.code_fingerprint is None  # it is the same code as no other

    nodes = [*lowered[0].scheduler.nodes, SimpleNamespace(kind="of tomorrow")]
    monkeypatch.setattr(lowered[0], "scheduler", SimpleNamespace(nodes=nodes))
    graph = record_of(lowered[0], lowered)
    assert graph.nodes
    assert graph.buffers == ()
    assert graph.hook_failure is not None
    assert graph.hook_failure.startswith("buffers: AttributeError: ")
    assert "get_nodes" in graph.hook_failure


def test_kernels_are_built_side_by_side_and_no_thread_is_left() -> None:
    before = {thread.ident for thread in threading.enumerate()}
    with building_kernels(2):
        assert AsyncCompile.submit(threading.get_ident).result() != threading.get_ident()

    assert AsyncCompile.pool.cache_info().currsize == 0
    assert {thread.ident for thread in threading.enumerate()} <= before
    with building_kernels(1):
        assert AsyncCompile.submit(threading.get_ident) == threading.get_ident()
