"""
Parameters are cast to another dtype on every call, and re-laid out with it.

What it finds:
    Weights that are converted from one dtype to another in the profiled iteration or in the graph: a conversion that
    casts as well, or a cast of a parameter whose result is then converted. In inference also two or more parameters
    that are only cast. In the baseline, or else in eager. Casts of activations are not looked at. In a recorded trace:
    every kernel that casts and converts the layout at once, of weights, activations and gradients.

Why it costs:
    Autocast keeps the parameters in float32 and casts each of them on each call; what it makes is contiguous or is
    laid out anew for the convolution, so every call reads and writes every weight before it computes anything.
    A kernel that does both is cheaper than two, but it is there on every call as well.

Example:
    A stack of Conv3d under ``torch.autocast("cuda", torch.bfloat16)`` in inference: one cast and one layout
    conversion per convolution and call, for weights that never change.

What to do:
    Convert the parameters once: ``model.to(torch.bfloat16)``, with an input of that dtype, instead of autocast; then
    the layout too, ``model.to(memory_format=torch.channels_last)``. Compare the outputs: autocast leaves some
    operations in float32. A diagnosis of the default configurations tries it in inference and tells what it brings:
    ``NAME+autocast-dtype``.

When it is fine:
    Training: the float32 parameters are the master weights that autocast is for. Large activations, beside which the
    weights are little (a note below 2 % of the kernel time).

Source:
    A question from pytorch's forum, answered by an Inductor developer's question: "is there a reason you are using
    autocast instead of converting parameters to bfloat16 before running model?"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import all_conversions_of, conversions_of, dearest_of, launch_count, sum_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import first_input, nodes_by_name
from layoutdoctor.words import DTYPES, TENSOR_WORDS, be, count_of, distinct, joined, listing, plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, FxNode, Trial

_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
# One parameter that is cast and not re-laid out is a detail; several of them are a model under autocast.
_SEVERAL = 2

_Nodes = dict[str, "dict[str, FxNode]"]  # of each graph, by name
_Key = tuple[str | None, str]  # a graph and a placeholder in it; no graph: a conversion of no known parameter


@dataclass(frozen=True)
class _Weight:
    """One parameter that is cast: the graph and name it goes by, from and to which dtype, and what converts it."""

    key: _Key
    dtypes: tuple[str, str]
    conversions: tuple[Conversion, ...] = ()
    cast: FxNode | None = None


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: the other configurations repeat what the baseline, or else eager, shows."""
    for trial in evidence.main_or_eager(diagnosis):
        is_training = evidence.is_training(diagnosis, trial)
        if evidence.is_trace(trial):
            casts = [c for c in conversions_of(trial) if _dtypes(c) is not None]
            if casts:
                yield _finding_about_kernels(trial, casts, is_training=is_training)
            return
        weights = _cast_weights(trial)
        if any(weight.conversions for weight in weights) or (not is_training and len(weights) >= _SEVERAL):
            yield _finding(trial, weights, is_training=is_training)
            return


def _cast_weights(trial: Trial) -> list[_Weight]:
    """Every parameter of a trial that is cast in it, with the layout conversions of the same parameter."""
    nodes = {graph.name: nodes_by_name(graph) for graph in trial.graphs}
    casts: dict[_Key, tuple[FxNode | None, tuple[str, str] | None]] = {
        (graph.name, node.inputs[0]): (node, dtypes)
        for graph in trial.graphs
        if graph.direction != "backward"
        for node in graph.nodes
        if (dtypes := _dtypes_of_cast(node, nodes[graph.name])) is not None
    }
    conversions: dict[_Key, list[Conversion]] = {}
    for conversion in all_conversions_of(trial):
        if conversion.tensor == "weight":
            conversions.setdefault(_weight_of(nodes, conversion), []).append(conversion)
    found: list[_Weight] = []
    for key in dict.fromkeys((*casts, *conversions)):
        own, (cast, dtypes) = tuple(conversions.get(key, ())), casts.get(key, (None, None))
        dtypes = dtypes or next((pair for c in own if (pair := _dtypes(c))), None)
        if dtypes is not None:
            found.append(_Weight(key, dtypes, own, cast))
    return found


def _dtypes_of_cast(node: FxNode, nodes: dict[str, FxNode]) -> tuple[str, str] | None:
    """From and to which dtype a node casts a weight; None where it does not."""
    source = first_input(node, nodes)
    is_cast = node.op == "call_function" and not node.backward and base_name(node.target) in _CASTS
    if not is_cast or source is None or source.op != "placeholder" or source.tensor != "weight":
        return None
    if source.dtype is None or node.dtype is None or source.dtype == node.dtype:
        return None
    return (source.dtype, node.dtype)


def _dtypes(conversion: Conversion) -> tuple[str, str] | None:
    """From and to which dtype a conversion casts; None where it does not, or that was not recorded."""
    if conversion.dtype is None or conversion.target_dtype is None:
        return None
    before, after = (DTYPES.get(name, name) for name in (conversion.dtype, conversion.target_dtype))
    return (before, after) if before != after else None


def _weight_of(graphs: _Nodes, conversion: Conversion) -> _Key:
    """Which parameter a conversion converts; the conversion's own id where the graph leaves several."""
    for graph, nodes in graphs.items():
        if conversion.graph in (None, graph):
            reader = nodes.get(conversion.node or "")
            names = (conversion.source_value, *(reader.inputs if reader is not None else ()), conversion.node)
            for start in (names[:1], names[1:]):
                found = {placeholder for name in start if (placeholder := _placeholder(name, nodes)) is not None}
                if len(found) == 1:
                    return (graph, found.pop())
    return (None, conversion.id)


def _placeholder(name: str | None, nodes: dict[str, FxNode]) -> str | None:
    """The parameter of more than one dimension that a node is, or is a cast of."""
    node = nodes.get(name or "")
    if node is not None and _dtypes_of_cast(node, nodes) is not None:
        node = first_input(node, nodes)
    if node is None or node.tensor != "weight" or (node.layout is not None and len(node.layout.shape) < 2):
        return None
    return node.name


def _finding(trial: Trial, weights: list[_Weight], *, is_training: bool) -> Finding:
    conversions = list({c.id: c for weight in weights for c in weight.conversions}.values())
    seconds = sum_known((*(c.seconds for c in conversions), *_cast_seconds(trial, weights, conversions)))
    casts = [(*([weight.cast.name] if weight.cast else []), *(c.id for c in weight.conversions)) for weight in weights]
    return RULE.finding(
        trial.name,
        _message(trial, weights, conversions, seconds),
        _suggestion_about_weights([weight.dtypes[1] for weight in weights], is_training=is_training),
        severity="note" if is_training else evidence.severity_of_cost(trial, seconds),
        conversions=conversions,
        at=dearest_of(conversions) or weights[0].cast,
        seconds=seconds,
        evidence=[name for names in casts for name in names],
    )


def _cast_seconds(trial: Trial, weights: list[_Weight], conversions: list[Conversion]) -> list[float]:
    """What the casts took that are steps of their own; a conversion's time has its cast in it."""
    if trial.kernels is None:
        return []
    counted = {(c.graph, c.node) for c in conversions}
    casts = {(weight.key[0], weight.cast.name) for weight in weights if weight.cast is not None} - counted
    return [kernel.seconds for kernel in trial.kernels.kernels if (kernel.graph, kernel.node) in casts]


def _message(trial: Trial, weights: list[_Weight], conversions: list[Conversion], seconds: float | None) -> str:
    kinds = distinct(" -> ".join(weight.dtypes) for weight in weights)
    message = f"{count_of(len(weights), 'parameter')} {be(len(weights))} cast {listing(kinds)} on every call"
    both = sum(bool(weight.conversions) for weight in weights)
    if both:
        message += " and re-laid out" if both == len(weights) else f", {both} of them re-laid out as well"
    cost = evidence.cost_words(trial, seconds, evidence.estimate_words(conversions))
    return joined((message, cost or evidence.conversion_cost_words(trial, conversions)), ": ")


def _suggestion_about_weights(dtypes: Sequence[str], *, is_training: bool) -> str:
    if is_training:
        return (
            "expected under autocast, whose point is to train float32 master weights; a larger batch makes it a "
            "smaller part"
        )
    return (
        f"convert the parameters once: model.to({_one_dtype(dtypes)}), with an input of that dtype, instead of "
        "autocast; compare the outputs, since autocast keeps some operations in float32"
    )


def _one_dtype(dtypes: Sequence[str]) -> str:
    return f"torch.{dtypes[0]}" if len(set(dtypes)) == 1 else "dtype"


def _finding_about_kernels(trial: Trial, casts: Sequence[Conversion], *, is_training: bool) -> Finding:
    """One for all kernels that cast and convert the layout at once."""
    count = launch_count(casts)
    kinds = evidence.named_counts((" -> ".join(_dtypes(c) or ()), c.count) for c in casts)
    tensors = evidence.named_counts((plural(TENSOR_WORDS[c.tensor]), c.count) for c in casts)
    verb = "casts and converts" if count == 1 else "cast and convert"
    message = (
        f"{count_of(count, 'kernel')} {verb} the layout at once: {kinds}, of {tensors}",
        evidence.conversion_cost_words(trial, casts),
        evidence.dearest_place_words(casts),
    )
    dtypes = [dtypes[1] for c in casts if (dtypes := _dtypes(c)) is not None]
    suggestion = (
        "look at what stands in front of these kernels: where it returns that dtype and layout already, both steps go; "
        f"an input is best made so once: x.to({_one_dtype(dtypes)}, memory_format={evidence.wanted_format(casts)})"
    )
    if {c.tensor for c in casts} == {"weight"}:
        suggestion = _suggestion_about_weights(dtypes, is_training=is_training)
    seconds = sum_known(c.seconds for c in casts)
    severity = "note" if is_training else evidence.severity_of_cost(trial, seconds)
    return RULE.finding(trial.name, joined(message), suggestion, severity=severity, conversions=casts)


RULE = document_rule("LD106", "cast-with-conversion", check, __doc__)
