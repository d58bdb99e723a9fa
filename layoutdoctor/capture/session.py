"""Captures one compile: makes a record of every graph that the hooks of ``compat`` see."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from layoutdoctor.capture.compat import (
    InductorHooks,
    counts_backward_convolutions,
    inductor_config,
    private,
)
from layoutdoctor.capture.fx_graph import (
    calls_of,
    fx_nodes,
    names_of_modules,
    not_understood_in,
    output_names,
    target_name,
    traced_model,
)
from layoutdoctor.capture.inductor_graph import buffers_of, code_fingerprint, kernel_sources
from layoutdoctor.diagnosis import Buffer, FxNode, Graph, GraphDirection, Lack, Layout, TracedModel
from layoutdoctor.errors import first_line
from layoutdoctor.recording.decision import RawDecision, describe_decision
from layoutdoctor.recording.torch_trace import first_words
from layoutdoctor.recording.weights import placeholder_kinds

_FRAME_NUMBER = re.compile(r"\s*(\d+)/\d+: ")
"""Dynamo's compile id in front of a failed guard: number of the frame, and number of the compile of that frame."""


class CapturedGraph(NamedTuple):
    """A graph's record with its generated code: a Python module with the compiled kernels, or AOTInductor's texts."""

    graph: Graph
    generated: Any


class CompileCapture:
    """
    Records every graph that Inductor lowers between enter and exit; a second block adds to the records of the first.

    Attributes:
        captured: The graphs so far, in the order of lowering.
        model: The model from which the graphs take the names of modules; dynamo's names are kept without a model.
        graph_break_reasons: Reasons of the graph breaks in the finished blocks, one line each.
        recompile_reasons: Guards that failed in the finished blocks and caused a recompile, one line each.
    """

    def __init__(self) -> None:
        self.captured: list[CapturedGraph] = []
        self.model = torch.nn.Module()
        self.graph_break_reasons: tuple[str, ...] = ()
        self.recompile_reasons: tuple[str, ...] = ()
        self._decisions: list[tuple[Any, RawDecision]] = []
        self._traced: list[TracedModel | None] = []
        self._hooks = InductorHooks(self._on_decision, self._on_graph, self._on_traced)
        self._breaks: Counter[str] = Counter()
        self._failed_guards: dict[Any, int] = {}
        self._first_frame = 0

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """Parts of the capture that failed, each with its reason."""
        return tuple(Lack(part="graphs", reason=f"not recorded: {failure}") for failure in self._hooks.failures)

    @property
    def lowered_count(self) -> int | None:
        """Number of graphs that Inductor lowered, recorded or not; None if this torch does not let us see them."""
        return self._hooks.lowered_count

    @property
    def traced(self) -> TracedModel | None:
        """The model as Python code; None unless dynamo traced exactly one graph that ``traced_model`` can write."""
        return self._traced[0] if len(self._traced) == 1 else None

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph records."""
        return tuple(captured.graph for captured in self.captured)

    def __enter__(self) -> CompileCapture:
        with self._hooks.guard("graph breaks"):
            self._breaks = _graph_breaks()
        with self._hooks.guard("reasons of recompiles"):
            self._first_frame = self._first_frame or int(private("torch._dynamo.convert_frame.FRAME_COUNTER"))
            failures = private("torch._dynamo.utils.guard_failures").items()
            self._failed_guards = {code: len(reasons) for code, reasons in failures}
        self._hooks.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._hooks.__exit__(*exception)
        with self._hooks.guard("graph breaks"):
            self.graph_break_reasons += tuple(map(first_words, (_graph_breaks() - self._breaks).elements()))
        with self._hooks.guard("reasons of recompiles"):
            self.recompile_reasons += tuple(self._new_guard_failures())

    def _new_guard_failures(self) -> Iterator[str]:
        for code, reasons in private("torch._dynamo.utils.guard_failures").items():
            for reason in reasons[self._failed_guards.get(code, 0) :]:
                frame = _FRAME_NUMBER.match(reason)
                # A frame after a graph break may be older than this capture; its failed guards do not count here.
                if frame is None or int(frame[1]) >= self._first_frame:
                    yield first_words(reason)

    def _on_traced(self, graph_module: Any) -> None:
        self._traced.append(None)  # counts the graph even if reading it fails
        self._traced[-1] = traced_model(graph_module)

    def _on_decision(self, graph_module: Any, applied: bool, log: list[str], is_inference: bool) -> None:
        self._decisions.append((graph_module, record_decision(applied, log, is_inference)))

    def _on_graph(self, lowering: Any, generated: Any, kernels: list[tuple[str, list[str], str]]) -> None:
        decision = self._decision_of(lowering)
        name = f"graph {len(self.captured)}"
        try:
            graph = _graph_record(name, lowering, generated, kernels, decision, names_of_modules(self.model))
        except Exception as error:  # the graph was compiled, so it gets a record without nodes
            problem = f"no part of the graph could be read: {first_line(error)}"
            graph = Graph(name=name, direction="inference", decision=None, nodes=(), hook_failure=problem)
        self.captured.append(CapturedGraph(graph, generated))

    def _decision_of(self, lowering: Any) -> RawDecision | None:
        """Returns the last decision about this graph, else the first decision since the previous graph, else None."""
        decided, self._decisions = self._decisions, []
        own = [raw for graph_module, raw in decided if graph_module is lowering.module]
        if own:
            return own[-1]
        return decided[0][1] if decided else None


def record_decision(applied: bool, log: Sequence[str], is_inference: bool) -> RawDecision:
    """Records a layout decision with the current settings, under which Inductor has just made it."""
    config, onednn = inductor_config(), torch.backends.mkldnn
    return RawDecision(
        applied,
        tuple(log),
        is_inference,
        enabled=bool(config.layout_optimization),
        forced=bool(config.force_layout_optimization),
        has_onednn=bool(onednn.enabled and onednn.is_available()),
        counts_backward=counts_backward_convolutions(),
    )


def _graph_breaks() -> Counter[str]:
    """Returns the number of dynamo's graph breaks so far, by reason."""
    return Counter(private("torch._dynamo.utils.counters")["graph_break"])


def _graph_record(
    name: str,
    lowering: Any,
    generated: Any,
    kernels: Sequence[tuple[str, list[str], str]],
    raw: RawDecision | None,
    names: Mapping[str, Sequence[str]],
) -> Graph:
    """Makes the record of a lowered graph; ``hook_failure`` names the parts that could not be read."""
    problems: list[str] = []

    @contextlib.contextmanager
    def part(what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # a capture never breaks the compile it watches
            problems.append(f"{what}: {first_line(error)}")

    buffers: tuple[Buffer, ...] = ()
    fields: dict[str, Any] = {}
    graph_module = lowering.orig_gm  # the graph before lowering: torch 2.7 to 2.15
    direction: GraphDirection = "forward"
    with part("direction"):  # both attributes: torch 2.7 to 2.15
        direction = "inference" if lowering.is_inference else "backward" if lowering.is_backward else "forward"
    with part("buffers"):
        buffers = buffers_of(lowering, kernels)
    targets = _extern_targets(buffers)
    with part("decision"):
        fields["decision"] = describe_decision(
            tuple(calls_of(graph_module, targets, names)),
            len(graph_module.graph.nodes),
            raw,
            bool(lowering.layout_opt),
            lowering.num_channels_last_conv,
            _written_layouts(buffers),
        )
    with part("FX nodes"):
        fields["nodes"] = tuple(_nodes_of(graph_module, direction, targets, names))
        fields["output_names"] = output_names(graph_module)
    with part("parts not understood"):
        fields["not_understood"] = not_understood_in(graph_module, buffers)
    with part("generated code"):
        if isinstance(generated, tuple):  # the texts of AOTInductor
            source = "\n".join(text.value for text in generated)
            fields["kernel_sources"] = {kernel: text for kernel, _, text in kernels}
        else:
            source = Path(generated.__file__).read_text(encoding="utf-8")
            fields["kernel_sources"] = kernel_sources(source)
        fields["code_fingerprint"] = code_fingerprint(source)
    return Graph(
        name=name,
        direction=direction,
        buffers=buffers,
        **{"decision": None, **fields},
        kernel_names=tuple(dict.fromkeys(kernel for kernel, _, _ in kernels)),
        hook_failure="; ".join(problems) or None,
    )


def _nodes_of(
    graph_module: Any, direction: GraphDirection, targets: Mapping[str, str], names: Mapping[str, Sequence[str]]
) -> Iterator[FxNode]:
    """Yields the nodes of a graph, with the kind of each input and the operator of each external call."""
    nodes = fx_nodes(graph_module, names)
    kinds = placeholder_kinds(nodes, direction)
    for node in nodes:
        target = target_name(node.name, node.target, targets)
        yield msgspec.structs.replace(node, tensor=kinds.get(node.name), target=target)


def _extern_targets(buffers: Sequence[Buffer]) -> dict[str, str]:
    return {
        name: buffer.kernel.removeprefix("torch.ops.")
        for buffer in buffers
        if buffer.kernel is not None and buffer.kernel.startswith("torch.ops.")
        for name in _made_of(buffer)
    }


def _made_of(buffer: Buffer) -> tuple[str, ...]:
    """
    Returns the names of the FX nodes that an external call computes.

    ``origins`` is preferred: ``source_node`` may be a later node, into which Inductor fused the call's result.
    """
    return buffer.origins or (() if buffer.source_node is None else (buffer.source_node,))


def _written_layouts(buffers: Sequence[Buffer]) -> dict[str, Layout]:
    """Finds the layout of the first output of each call with several outputs, such as a packed convolution."""
    return {
        name: buffer.layout
        for buffer in reversed(buffers)
        if buffer.kernel == "MultiOutput" and buffer.layout is not None
        for name in _made_of(buffer)
    }
