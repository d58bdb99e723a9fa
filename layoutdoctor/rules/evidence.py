"""Looks up facts that several rules need: the trials that matter, shares of the kernel time, nodes of graphs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from layoutdoctor.diagnosis import (
    Conversion,
    Convolution,
    Decision,
    Diagnosis,
    FxNode,
    Graph,
    InputTensor,
    Kernel,
    Layout,
    MemoryFormat,
    Severity,
    Size,
    Trial,
)
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.counts import all_conversions_of, sum_of_known
from layoutdoctor.examination.graphs.buffers import densified
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.examination.graphs.products import LEAST_WORK_SHARE, convolved, is_matrix_product, share_of
from layoutdoctor.examination.kernels.primitives import ranks_of_problems

Found = TypeVar("Found")
NEGLIGIBLE_SHARE = 0.02
"""
Least share of the kernel time that makes a loss a warning; a smaller loss is a note.

Timing on a shared machine cannot resolve much smaller differences.
"""

CHANNELS_LAST_CONFIGURATIONS = ("inductor-channels-last", "inductor-channels-last-opt-off")
_FORMAT_PAIRS = (("inductor", "inductor-channels-last"), ("eager", "eager-channels-last"))
# Parts of names of kernels and operations that run only in a training step.
_BACKWARD = re.compile(r"backward|dgrad|wgrad|_bwd|bn_bw", re.IGNORECASE)
# aten.convolution, mkldnn._convolution_pointwise, aten._slow_conv2d_forward; not prims.convert_element_type
_CONVOLUTION = re.compile(r"(^|_)conv(olution)?(_|[123]d|$)")


# ------------------------------------------------------------------------------------------------------- trials
def main_trial(diagnosis: Diagnosis) -> Trial | None:
    """Returns the trial that the user has today: the baseline, else the only trial (of a recorded trace), else None."""
    trial = diagnosis.measured_trial(diagnosis.baseline_name)
    return diagnosis.trials[0] if trial is None and len(diagnosis.trials) == 1 else trial


def own_trials(diagnosis: Diagnosis) -> tuple[Trial, ...]:
    """Returns the trials, the main trial first; leaves out trials that only repeat another one (``same_as``)."""
    main = main_trial(diagnosis)
    return tuple(sorted(diagnosis.own_trials, key=lambda trial: trial is not main))


def main_or_eager(diagnosis: Diagnosis) -> list[Trial]:
    """Returns the main trial, then the eager trial, for rules to which other trials show nothing new."""
    return [trial for trial in (main_trial(diagnosis), diagnosis.measured_trial("eager")) if trial is not None]


def trace_trials(diagnosis: Diagnosis) -> list[Trial]:
    """Returns the only trial of a recorded trace; empty for a model, whose graphs show the same facts better."""
    main = main_trial(diagnosis)
    return [main] if main is not None and is_trace(main) else []


def first_showing(trials: Iterable[Trial], find: Callable[[Trial], list[Found]]) -> Iterator[tuple[Trial, list[Found]]]:
    """Yields at most one pair: the first trial in which ``find`` finds something, and the things found."""
    found = ((trial, find(trial)) for trial in trials)
    yield from itertools.islice(((trial, seen) for trial, seen in found if seen), 1)


def is_trace(trial: Trial) -> bool:
    """Whether a trial comes from a recorded trace. A trace has no other trial, and no graph that shows readers."""
    return trial.configuration.backend == "recorded"


def is_channels_last(trial: Trial) -> bool:
    """Whether a configuration gives the model or its input channels_last."""
    return "channels_last" in (trial.configuration.model_format, trial.configuration.input_format)


def has_backward(trial: Trial) -> bool:
    """Whether a trial ran a backward, as its kernels and conversions show."""
    if any(c.tensor == "gradient" or _BACKWARD.search(c.op or "") for c in all_conversions_of(trial)):
        return True
    kernels = trial.kernel_summary.kernels
    names = {name for kernel in kernels for name in (kernel.name, kernel.op or "")}
    names.update(total.name for total in trial.kernel_summary.totals if total.kind in ("kernel", "operation"))
    return any(kernel.backward for kernel in kernels) or any(_BACKWARD.search(name) for name in names)


def inputs_not_channels_last(diagnosis: Diagnosis) -> tuple[InputTensor, ...]:
    """Returns 4-D and 5-D inputs that are not channels-last, unless all recorded convolutions have other ranks."""
    return tuple(
        tensor
        for tensor in diagnosis.subject.inputs
        if (wanted := CHANNELS_LAST_BY_RANK.get(len(tensor.shape))) and wanted not in tensor.memory_formats
        if all(wanted in used for used in (formats_in_use(trial) for trial in own_trials(diagnosis)) if used)
    )


def eager_of_same_formats(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """Returns the eager trial with the model and input formats of a compiled trial; None for any other trial."""
    wanted = (trial.configuration.model_format, trial.configuration.input_format)
    if trial.configuration.backend != "inductor":
        return None
    others = (other for other in diagnosis.trials if other.configuration.backend == "eager")
    return next((o for o in others if (o.configuration.model_format, o.configuration.input_format) == wanted), None)


def format_pairs(diagnosis: Diagnosis) -> Iterator[tuple[Trial, Trial]]:
    """Yields pairs of trials with kernel times: first in the caller's formats, then the same in channels_last."""
    for names in _FORMAT_PAIRS:
        first, second = (diagnosis.measured_trial(name) for name in names)
        if first is None or second is None or first is second:
            continue
        if None not in (first.kernel_seconds, second.kernel_seconds):
            yield first, second


# ------------------------------------------------------------------------------------------------------ kernels
def node_of(trial: Trial, kernel: Kernel) -> FxNode | None:
    """Returns the graph node that ran a kernel; None if the node was not recorded, or if several nodes fit."""
    graphs = [graph for graph in trial.graphs if kernel.graph in (None, graph.name)]
    found = [node for graph in graphs for node in graph.nodes if node.name == kernel.node]
    return found[0] if len(found) == 1 else None


def seconds_of_kernel(trial: Trial, graph: Graph, kernel: str) -> float | None:
    """Returns the time of a graph's generated kernel; None if not recorded, or if the graph is uncertain."""
    graphs = [other for other in trial.graphs if any(buffer.kernel == kernel for buffer in other.buffers)]
    ran = (k for k in trial.kernel_summary.kernels if k.name == kernel)
    return sum_of_known(k.seconds for k in ran if k.graph == graph.name or (k.graph is None and len(graphs) == 1))


def seconds_of(kernels: Iterable[Kernel]) -> float:
    """Adds up the times of kernels; a kernel without a time counts as zero."""
    return sum(kernel.seconds or 0.0 for kernel in kernels)


def share_of_kernels(trial: Trial, seconds: float | None) -> float | None:
    """Returns a duration divided by the trial's kernel time; None if either time was not recorded."""
    return seconds / trial.kernel_seconds if seconds is not None and trial.kernel_seconds else None


def takes_at_least(trial: Trial, seconds: float | None, share: float) -> bool:
    """Whether a duration is known to be at least this share of the kernel time."""
    own = share_of_kernels(trial, seconds)
    return own is not None and own >= share


def severity_of_cost(trial: Trial, seconds: float | None) -> Severity:
    """Returns ``warning`` for a loss of at least 2 % of the kernel time, else ``note``."""
    return "warning" if not trial.is_static and takes_at_least(trial, seconds, NEGLIGIBLE_SHARE) else "note"


# ------------------------------------------------------------------------------------------------------- graphs
def forward_graphs(trial: Trial) -> list[Graph]:
    """Returns the graphs of a trial except backward graphs."""
    return [graph for graph in trial.graphs if graph.direction != "backward"]


def cards_of(graphs: Iterable[Graph]) -> list[Decision]:
    """Returns the layout decisions of graphs, as far as recorded."""
    return [graph.decision for graph in graphs if graph.decision is not None]


def convolutions_of(graphs: Iterable[Graph]) -> list[Convolution]:
    """Returns the convolutions in the layout decisions of graphs."""
    return [convolution for card in cards_of(graphs) for convolution in card.convolutions]


def forward_convolutions(trial: Trial) -> list[Convolution]:
    """Returns the convolutions of a trial except backward convolutions."""
    return [c for c in convolutions_of(forward_graphs(trial)) if not c.is_backward]


def matrix_products(trial: Trial) -> list[tuple[Convolution, tuple[Size, ...]]]:
    """Returns convolutions that equal matrix products, with their image sizes; empty if they do little work."""
    found: dict[int, tuple[Convolution, tuple[Size, ...]]] = {}
    for graph in trial.graphs:
        known = {c.node: c for c in convolutions_of([graph])}
        for node, source in convolved(graph):
            image = source.layout.shape[2:] if source.layout is not None else ()
            if node.name in known and _is_product(known[node.name], image):
                found[id(node)] = known[node.name], image
    return list(found.values()) if share_of(trial.graphs, lambda node: id(node) in found) >= LEAST_WORK_SHARE else []


def _is_product(convolution: Convolution, image: Sequence[Size]) -> bool:
    kernel, stride = (convolution.weight_shape or ())[2:], convolution.stride
    padding, dilation = convolution.padding, convolution.dilation
    if convolution.is_transposed or convolution.groups != 1 or not stride or padding is None or not dilation:
        return False
    return len(kernel) == len(dilation) and is_matrix_product(kernel, stride, padding, dilation, image)


def is_of_other_ranks(decision: Decision) -> bool:
    """Whether a decision lists only 1-D or 3-D convolutions, which layout optimization does not change."""
    return bool(decision.convolutions) and all(convolution.rank in (1, 3) for convolution in decision.convolutions)


def ranks_of(trial: Trial, conversions: Iterable[Conversion]) -> set[int]:
    """
    Returns the ranks of the convolutions' inputs, as the shapes of converted tensors show them.

    A weight in oneDNN does not show the rank, because its groups may be a further dimension. If only weights are
    converted, the ranks come from oneDNN's log of the convolutions.
    """
    shapes = [(c.tensor, c.rank) for c in conversions if c.rank is not None]
    of_problems = ranks_of_problems(trial.kernel_summary.kernels)
    if not of_problems:
        return {rank for _, rank in shapes}
    return {rank for tensor, rank in shapes if tensor != "weight"} or (of_problems if shapes else set())


def formats_of_weights(trial: Trial, converted: Iterable[Conversion] = ()) -> set[MemoryFormat]:
    """Returns the channels-last formats that fit the weights of a trial's convolutions, and the converted weights."""
    return formats_of_ranks((*(c.tensor_rank for c in trial.convolutions), *ranks_of(trial, converted)))


def formats_in_use(trial: Trial) -> set[MemoryFormat]:
    """Returns the channels-last formats that fit the results of convolutions; empty if no result was recorded."""
    results = (node.layout for graph in trial.graphs for node in graph.nodes if runs_convolution(node))
    ranks = (len(layout.shape) for layout in results if layout is not None)
    return formats_of_ranks((*ranks, *(c.tensor_rank for c in trial.convolutions)))


def formats_of_ranks(ranks: Iterable[int | None]) -> set[MemoryFormat]:
    """Returns the channels-last formats of some ranks; other ranks have none."""
    return {CHANNELS_LAST_BY_RANK[rank] for rank in ranks if rank in CHANNELS_LAST_BY_RANK}


def runs_convolution(node: FxNode) -> bool:
    """Whether a node runs a convolution forward, in any library."""
    name = base_name(node.target)
    return node.op == "call_function" and bool(_CONVOLUTION.search(name)) and "backward" not in name


def runs_convolution_named(name: str, nodes: Mapping[str, FxNode]) -> bool:
    """Whether a node runs a convolution forward; a node that was not recorded is judged by its name."""
    return runs_convolution(nodes[name]) if name in nodes else bool(_CONVOLUTION.search(name))


def nodes_by_name(graph: Graph) -> dict[str, FxNode]:
    """Returns a graph's nodes by name."""
    return {node.name: node for node in graph.nodes}


def nodes_of_graph(trial: Trial, name: str | None) -> dict[str, FxNode]:
    """Returns the nodes of a trial's graph by name; empty if there is no such graph."""
    return next((nodes_by_name(graph) for graph in trial.graphs if graph.name == name), {})


def first_input(node: FxNode, nodes: Mapping[str, FxNode]) -> FxNode | None:
    """Returns the node that makes a node's first input; None if no such node was recorded."""
    return nodes.get(node.inputs[0]) if node.inputs else None


def channels_last_only(layout: Layout | None) -> MemoryFormat | None:
    """Returns the channels-last format of a layout or slice; None without one, or if it is contiguous as well."""
    formats = densified(layout).memory_formats if layout is not None else ()
    return None if "contiguous_format" in formats else next(iter(formats), None)


def is_call_out_of_channels_last(conversion: Conversion) -> bool:
    """Whether the model's own code asked for a copy out of channels-last: such a copy is LD501, not LD108."""
    is_asked = conversion.owner == "user" and conversion.direction != "to_channels_last"
    return is_asked and channels_last_only(conversion.source) is not None


def is_recorded(trial: Trial) -> bool:
    """Whether all graphs of a trial were captured completely: an operation that is in no graph did not run."""
    return bool(trial.graphs) and all(g.nodes and g.hook_failure is None and not g.not_understood for g in trial.graphs)
