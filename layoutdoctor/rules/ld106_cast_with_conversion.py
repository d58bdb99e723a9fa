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
    operations in float32.

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

from layoutdoctor.analysis.layout_agnostic import base_name
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import nodes_by_name
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.records import Conversion, Diagnosis, FxNode, Severity, SourceLocation, TensorKind, Trial

CODE = "LD106"
NAME = "cast-with-conversion"

_CASTS = frozenset({"_to_copy", "to", "convert_element_type"})
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "s32": "int32",
    "s8": "int8",
    "u8": "uint8",
}
"""oneDNN's names of dtypes, in torch's words."""

_TENSOR_WORDS: dict[TensorKind, str] = {
    "activation": "activations",
    "weight": "weights",
    "gradient": "gradients",
    "unknown": "tensors of unknown kind",
}

# One parameter that is cast and not re-laid out is a detail; several of them are a model under autocast.
_SEVERAL = 2


_Nodes = dict[str, "dict[str, FxNode]"]  # of each graph, by name


@dataclass(frozen=True)
class _Weight:
    """One parameter that is cast: the graph and name it goes by, from and to which dtype, and what converts it."""

    key: tuple[str | None, str]
    dtypes: tuple[str, str]
    conversions: tuple[Conversion, ...] = ()
    cast: FxNode | None = None


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most: the other configurations repeat what the baseline, or else eager, shows.

    Args:
        diagnosis: Any diagnosis.
    """
    found = recorded.recorded_trial(diagnosis)
    if found is not None:
        yield from _check_trace(found)
        return
    for trial in (evidence.main_trial(diagnosis), diagnosis.measured_trial("eager")):
        weights = _cast_weights(trial) if trial is not None else []
        if trial is not None and _is_told(diagnosis, weights):
            yield _finding(diagnosis, trial, weights)
            return


def _is_told(diagnosis: Diagnosis, weights: list[_Weight]) -> bool:
    if any(weight.conversions for weight in weights):
        return True
    return diagnosis.subject.mode != "training" and len(weights) >= _SEVERAL


def _cast_weights(trial: Trial) -> list[_Weight]:
    """Every parameter of a trial that is cast in it, with the layout conversions of the same parameter."""
    nodes = {graph.name: nodes_by_name(graph) for graph in trial.graphs}
    casts: dict[tuple[str | None, str], FxNode] = {
        (graph.name, node.inputs[0]): node
        for graph in trial.graphs
        if graph.direction != "backward"
        for node in graph.nodes
        if _is_cast_of_a_weight(node, nodes[graph.name])
    }
    conversions: dict[tuple[str | None, str], list[Conversion]] = {}
    for conversion in evidence.all_conversions_of(trial):
        if conversion.tensor == "weight":
            conversions.setdefault(_weight_of(nodes, conversion), []).append(conversion)
    found: list[_Weight] = []
    for key in dict.fromkeys((*casts, *conversions)):
        own, cast = tuple(conversions.get(key, ())), casts.get(key)
        dtypes = _dtypes_of_cast(nodes, key, cast) or next((pair for c in own if (pair := _dtypes(c))), None)
        if dtypes is not None:
            found.append(_Weight(key, dtypes, own, cast))
    return found


def _is_cast_of_a_weight(node: FxNode, nodes: dict[str, FxNode]) -> bool:
    if node.op != "call_function" or node.backward or base_name(node.target) not in _CASTS or not node.inputs:
        return False
    source = nodes.get(node.inputs[0])
    if source is None or source.op != "placeholder" or source.tensor != "weight":
        return False
    return None not in (source.dtype, node.dtype) and source.dtype != node.dtype


def _dtypes(conversion: Conversion) -> tuple[str, str] | None:
    """From and to which dtype a conversion casts; None where it does not, or that was not recorded."""
    if conversion.dtype is None or conversion.target_dtype is None:
        return None
    before, after = (_DTYPES.get(name, name) for name in (conversion.dtype, conversion.target_dtype))
    return (before, after) if before != after else None


def _dtypes_of_cast(nodes: _Nodes, key: tuple[str | None, str], cast: FxNode | None) -> tuple[str, str] | None:
    if cast is None or cast.dtype is None or key[0] is None:
        return None
    source = nodes[key[0]][key[1]]
    return None if source.dtype is None else (source.dtype, cast.dtype)


def _weight_of(graphs: _Nodes, conversion: Conversion) -> tuple[str | None, str]:
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
    if node is not None and _is_cast_of_a_weight(node, nodes):
        node = nodes[node.inputs[0]]
    if node is None or node.tensor != "weight" or (node.layout is not None and len(node.layout.shape) < 2):
        return None
    return node.name


def _finding(diagnosis: Diagnosis, trial: Trial, weights: list[_Weight]) -> Finding:
    conversions = list({c.id: c for weight in weights for c in weight.conversions}.values())
    seconds = evidence.sum_known((*(c.seconds for c in conversions), *_cast_seconds(trial, weights, conversions)))
    location, module = _place(weights)
    return Finding(
        code=CODE,
        rule=NAME,
        severity=_severity(diagnosis, trial, seconds),
        configuration=trial.name,
        message=_message(trial, weights, conversions, seconds),
        suggestion=_suggestion(diagnosis, weights),
        location=location,
        module=module,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in conversions),
        evidence=tuple(
            dict.fromkeys(
                name
                for weight in weights
                for name in (*([weight.cast.name] if weight.cast else []), *(c.id for c in weight.conversions))
            )
        ),
    )


def _cast_seconds(trial: Trial, weights: list[_Weight], conversions: list[Conversion]) -> list[float]:
    """What the casts took that are steps of their own; a conversion's time has its cast in it."""
    if trial.kernels is None:
        return []
    counted = {(c.graph, c.node) for c in conversions}
    casts = {(weight.key[0], weight.cast.name) for weight in weights if weight.cast is not None} - counted
    return [kernel.seconds for kernel in trial.kernels.kernels if (kernel.graph, kernel.node) in casts]


def _place(weights: list[_Weight]) -> tuple[SourceLocation | None, str | None]:
    """Where the dearest conversion is, else the first cast."""
    conversions = [c for weight in weights for c in weight.conversions]
    if conversions:
        worst = max(conversions, key=lambda c: (c.seconds or 0.0, c.bytes_moved or 0))
        return worst.location, worst.module
    cast = weights[0].cast
    return (cast.location, cast.module) if cast is not None else (None, None)


def _severity(diagnosis: Diagnosis, trial: Trial, seconds: float | None) -> Severity:
    return "note" if diagnosis.subject.mode == "training" else evidence.severity_of_cost(trial, seconds)


def _message(trial: Trial, weights: list[_Weight], conversions: list[Conversion], seconds: float | None) -> str:
    kinds = list(dict.fromkeys(" -> ".join(weight.dtypes) for weight in weights))
    is_are = "is" if len(weights) == 1 else "are"
    message = f"{count_of(len(weights), 'parameter')} {is_are} cast {listing(kinds)} on every call"
    both = sum(bool(weight.conversions) for weight in weights)
    if both:
        message += " and re-laid out" if both == len(weights) else f", {both} of them re-laid out as well"
    cost = wording.cost_words(trial, seconds, wording.estimate_words(conversions)) or wording.conversion_cost_words(
        trial, conversions
    )
    return message + (f": {cost}" if cost is not None else "")


def _suggestion(diagnosis: Diagnosis, weights: list[_Weight]) -> str:
    if diagnosis.subject.mode == "training":
        return (
            "expected under autocast, whose point is to train float32 master weights; a larger batch makes it a "
            "smaller part"
        )
    wanted = list(dict.fromkeys(weight.dtypes[1] for weight in weights))
    once = f"model.to(torch.{wanted[0]})" if len(wanted) == 1 else "model.to(dtype)"
    return (
        f"convert the parameters once: {once}, with an input of that dtype, instead of autocast; compare the outputs, "
        "since autocast keeps some operations in float32"
    )


def _check_trace(trial: Trial) -> Iterator[Finding]:
    """One finding at most, for all kernels that cast and convert the layout at once."""
    casts = [c for c in evidence.conversions_of(trial) if _dtypes(c) is not None]
    if not casts:
        return
    is_training = recorded.is_training(trial)
    seconds = evidence.sum_known(c.seconds for c in casts)
    found = recorded.conversion_places(casts)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity="note" if is_training else evidence.severity_of_cost(trial, seconds),
        configuration=trial.name,
        message=_message_in_trace(trial, casts, found),
        suggestion=_suggestion_in_trace(casts, is_training=is_training),
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(c.bytes_moved for c in casts),
        evidence=tuple(c.id for c in casts),
    )


def _message_in_trace(trial: Trial, casts: Sequence[Conversion], found: Sequence[recorded.Place]) -> str:
    count = recorded.launch_count(casts)
    kinds = recorded.named_counts((" -> ".join(_dtypes(c) or ()), c.count) for c in casts)
    tensors = recorded.named_counts((_TENSOR_WORDS[c.tensor], c.count) for c in casts)
    verb = "casts and converts" if count == 1 else "cast and convert"
    parts = [
        f"{count_of(count, 'kernel')} {verb} the layout at once: {kinds}, of {tensors}",
        recorded.conversion_cost_words(trial, casts),
        recorded.dearest_words(found),
    ]
    return "; ".join(part for part in parts if part is not None)


def _ranks(conversions: Sequence[Conversion]) -> list[int]:
    return [len(c.source.shape) for c in conversions if c.source is not None]


def _suggestion_in_trace(casts: Sequence[Conversion], *, is_training: bool) -> str:
    wanted = list(dict.fromkeys(dtypes[1] for c in casts if (dtypes := _dtypes(c)) is not None))
    dtype = f"torch.{wanted[0]}" if len(wanted) == 1 else "dtype"
    if {c.tensor for c in casts} != {"weight"}:
        contiguous = recorded.dearest_direction(casts) == "to_contiguous"
        wanted_format = "torch.contiguous_format" if contiguous else recorded.channels_last_words(_ranks(casts))
        return (
            "look at what stands in front of these kernels: where it returns that dtype and layout already, both steps "
            f"go; an input is best made so once: x.to({dtype}, memory_format={wanted_format})"
        )
    if is_training:
        return (
            "expected under autocast, whose point is to train float32 master weights; a larger batch makes it a "
            "smaller part"
        )
    return (
        f"convert the parameters once: model.to({dtype}), with an input of that dtype, instead of autocast; compare "
        "the outputs, since autocast keeps some operations in float32"
    )


RULE = document_rule(CODE, NAME, check, __doc__)
