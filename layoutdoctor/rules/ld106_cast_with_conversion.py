"""LD106: parameters that are cast to another dtype on every call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, FxNode, Kernel, Trial
from layoutdoctor.examination.counts import all_conversions_of, dearest_of, sum_of_known
from layoutdoctor.examination.graphs.buffers import Flow
from layoutdoctor.examination.graphs.layout_agnostic import POINTWISE, REDUCTIONS, VIEWS, base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import DTYPES, count_of, distinct, joined, listing

_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
_COMPUTED_IN = frozenset({"float64", "float32", "float16", "bfloat16"})
_CAST_IN_TRAINING = (
    "expected under autocast, which trains float32 master weights; a larger batch makes the share of the casts smaller"
)
_SEVERAL = 2  # a cast of one parameter is a detail; casts of several show autocast

_Dtypes = tuple[str, str]
_Key = tuple[str | None, str]  # graph and placeholder; None and a conversion's id if the parameter is not known


@dataclass(frozen=True)
class _Weight:
    """A parameter that is cast: its graph, the dtypes before and after, the cast, and its layout conversions."""

    graph: str | None
    dtypes: _Dtypes
    cast: FxNode | None
    conversions: list[Conversion]


def cast_weights(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, about the baseline or else eager; other trials would repeat the finding."""
    for trial in evidence.main_or_eager(diagnosis):
        training = diagnosis.subject.mode == "training"
        weights = [] if evidence.is_trace(trial) else _cast_weights(trial)
        if any(weight.conversions for weight in weights) or (not training and len(weights) >= _SEVERAL):
            yield _finding_about_weights(trial, weights, training=training)
            return


def _cast_weights(trial: Trial) -> list[_Weight]:
    """Returns every parameter that is cast in a trial, with the layout conversions of this parameter."""
    nodes = {graph.name: evidence.nodes_by_name(graph) for graph in trial.graphs}
    found: dict[_Key, _Weight] = {}
    for graph in evidence.forward_graphs(trial):
        readers = Flow(graph).node_readers
        for node in graph.nodes:
            dtypes = _dtypes_of_cast(node, nodes[graph.name])
            if dtypes is not None and not _is_inside_an_operation(node, readers):
                found[graph.name, node.inputs[0]] = _Weight(graph.name, dtypes, node, [])
    of_weights = [conversion for conversion in all_conversions_of(trial) if conversion.tensor == "weight"]
    for conversion in sorted(of_weights, key=lambda c: c.target_dtype is None):  # conversions that also cast come first
        key, dtypes = _weight_of(nodes, conversion), _pair(conversion.dtype, conversion.target_dtype)
        if dtypes is not None:
            found.setdefault(key, _Weight(key[0], dtypes, None, []))
        if key in found:
            found[key].conversions.append(conversion)
    return list(found.values())


def _dtypes_of_cast(node: FxNode, nodes: Mapping[str, FxNode]) -> _Dtypes | None:
    """Returns the dtypes before and after the cast of a weight; None if the node casts no weight."""
    source = evidence.first_input(node, nodes)
    is_cast = node.op == "call_function" and not node.backward and base_name(node.target) in _CASTS
    if not is_cast or source is None or source.op != "placeholder" or source.tensor != "weight":
        return None
    return _pair(source.dtype, node.dtype)


def _is_inside_an_operation(cast: FxNode, readers: Mapping[str, Sequence[tuple[FxNode, int]]]) -> bool:
    """Whether only arithmetic reads a cast, as in a weight norm, which casts a half-precision weight to float32."""
    own = [node for node, _ in readers.get(cast.name, ())]
    return bool(own) and all(
        _is_inside_an_operation(node, readers)
        if base_name(node.target) in VIEWS
        else base_name(node.target) in POINTWISE | REDUCTIONS
        for node in own
    )


def _pair(before: str | None, after: str | None) -> _Dtypes | None:
    """Returns the dtypes of a cast between floating-point types; None for others, such as a quantised weight's."""
    pair = (DTYPES.get(before or "", ""), DTYPES.get(after or "", ""))
    return pair if pair[0] != pair[1] and _COMPUTED_IN.issuperset(pair) else None


def _weight_of(graphs: Mapping[str, Mapping[str, FxNode]], conversion: Conversion) -> _Key:
    """Returns the parameter that a conversion converts; None and the conversion's id if no single parameter fits."""
    for graph, nodes in graphs.items():
        if conversion.graph in (None, graph):
            reader = nodes.get(conversion.node or "")
            read = (*(reader.inputs if reader is not None else ()), conversion.node)
            for names in ((conversion.source_value,), read):
                found = {placeholder for name in names if (placeholder := _placeholder(name, nodes)) is not None}
                if len(found) == 1:
                    return (graph, found.pop())
    return (None, conversion.id)


def _placeholder(name: str | None, nodes: Mapping[str, FxNode]) -> str | None:
    """Returns the name of the parameter that a node is or casts; None for other nodes, and for 1-D parameters."""
    node = nodes.get(name or "")
    if node is not None and _dtypes_of_cast(node, nodes) is not None:
        node = evidence.first_input(node, nodes)
    if node is None or node.tensor != "weight" or (node.layout is not None and len(node.layout.shape) < 2):
        return None
    return node.name


def _finding_about_weights(trial: Trial, weights: Sequence[_Weight], *, training: bool) -> Finding:
    conversions = list({c.id: c for weight in weights for c in weight.conversions}.values())
    # Casts outside of conversions. The time of a conversion includes its cast.
    steps = {(w.graph, w.cast.name) for w in weights if w.cast is not None} - {(c.graph, c.node) for c in conversions}
    seconds = sum_of_known((*(c.seconds for c in conversions), *(k.seconds for k in _kernels_of_steps(trial, steps))))
    kinds = listing(distinct(" -> ".join(weight.dtypes) for weight in weights))
    message = f"casts of {count_of(len(weights), 'parameter')} on every call, {kinds}"
    both = sum(bool(weight.conversions) for weight in weights)
    if both:
        message += f", {'' if both == len(weights) else f'{both} of them '}with a change of layout"
    cost = wording.cost_words(trial, seconds, wording.estimate_words(conversions))
    dtypes = {weight.dtypes[1] for weight in weights}
    cast_once = (
        f"convert the parameters once: model.to({f'torch.{min(dtypes)}' if len(dtypes) == 1 else 'dtype'}), with an "
        "input of that dtype, instead of autocast; compare the outputs, since autocast keeps some operations in float32"
    )
    return LD106.finding(
        trial.name,
        joined((message, cost or wording.conversion_cost_words(trial, conversions)), ": "),
        _CAST_IN_TRAINING if training else cast_once,
        severity="note" if training else evidence.severity_of_cost(trial, seconds),
        conversions=conversions,
        at=dearest_of(conversions) or weights[0].cast,
        seconds=seconds,
        evidence=[n for w in weights for n in (*([w.cast.name] if w.cast else []), *(c.id for c in w.conversions))],
    )


def _kernels_of_steps(trial: Trial, steps: Collection[_Key]) -> list[Kernel]:
    """Returns the kernels that belong to nodes. A generated kernel counts if it writes only values of these nodes."""
    written = [((g.name, b.kernel), (g.name, b.source_node) in steps) for g in trial.graphs for b in g.buffers]
    own = {kernel for kernel, is_step in written if is_step} - {kernel for kernel, is_step in written if not is_step}
    return [k for k in trial.kernel_summary.kernels if (k.graph, k.node) in steps or (k.graph, k.name) in own]


LD106 = Rule("LD106", "cast-with-conversion", cast_weights)
