"""
Tensors that are contiguous and channels_last at once, by dimensions of size 1: nothing needs to be done about them.

What it finds:
    In training, gradients whose strides differ from their parameter's though both satisfy a common memory format (1x1
    kernels, one input channel). And inputs of convolutions that satisfy both formats: one channel, or height and
    width of 1. Plain 1x1 weights are not told.

Why it costs:
    Nothing: both formats are the same bytes, so none has to be moved. An operation that takes such a tensor for the
    other format and returns that one is left out here.

Example:
    A 1x1 convolution: weight strides (64, 1, 1, 1), gradient strides (64, 1, 64, 64). DistributedDataParallel warns
    that "Grad strides do not match bucket view strides" and may impair performance; here it does not.

What to do:
    Nothing. To silence the warning, compile with ``options={"layout_optimization": False}`` where that makes the
    gradients equal, and measure what it costs; or give the parameters the strides of their gradients once.

When it is fine:
    Always: it is a note. Gradients that really lie in another order are not among these.

Source:
    pytorch/pytorch issue #47163: "the warning is spurious, strides are nominally different but physical layout is the
    same"; ``c10/core/Contiguity.h``, torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import all_conversions_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import (
    channels_last_only,
    first_input,
    is_convolution,
    nodes_by_name,
)
from layoutdoctor.words import listing, shape_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, GradientLayout, Trial

_NAMED = 3
_OFF = "inductor-layout-opt-off"


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """At most one about gradients and one about inputs of convolutions, each in the first trial that shows it."""
    trials = evidence.own_trials(diagnosis)
    for trial, gradients in evidence.first_showing(trials, _ambiguous_gradients):
        yield _finding_about_gradients(diagnosis, trial, gradients)
    for trial, inputs in evidence.first_showing(trials, _ambiguous_inputs):
        yield _finding_about_inputs(trial, inputs)


def _ambiguous_gradients(trial: Trial) -> list[GradientLayout]:
    return [
        entry
        for entry in trial.gradient_layouts
        if entry.layout.stride != entry.gradient.stride
        and entry.layout.shape == entry.gradient.shape
        and set(entry.layout.memory_formats) & set(entry.gradient.memory_formats)
    ]


def _ambiguous_inputs(trial: Trial) -> list[FxNode]:
    """The activations in both formats that convolutions read, each once."""
    found: dict[str, FxNode] = {}
    # A library may still convert it, into a format of its own or because its weight says so: there it is not the same.
    converted = {
        (c.graph, c.node) for c in all_conversions_of(trial) if c.tensor == "activation" and c.node is not None
    }
    for graph in trial.graphs:
        nodes = nodes_by_name(graph)
        for node in graph.nodes:
            source = first_input(node, nodes)
            if source is None or node.backward or not is_convolution(node) or source.tensor == "weight":
                continue
            if (graph.name, node.name) not in converted and _costs_nothing(source.layout, node.layout):
                found[f"{graph.name} {source.name}"] = source
    return list(found.values())


def _costs_nothing(given: Layout | None, returned: Layout | None) -> bool:
    """Whether an input satisfies both formats, and its strides did not make the result channels-last."""
    if given is None or len(given.memory_formats) < 2 or 0 in given.shape:
        return False
    return given.dispatched in (None, "contiguous_format") or channels_last_only(returned) is None


def _finding_about_gradients(diagnosis: Diagnosis, trial: Trial, gradients: list[GradientLayout]) -> Finding:
    names = [f"{g.parameter}: {_strides(g.layout.stride)} and {_strides(g.gradient.stride)}" for g in gradients]
    noun, verb = ("gradient", "has") if len(gradients) == 1 else ("gradients", "have")
    cause = _cause(diagnosis, trial, {g.parameter for g in gradients})
    return RULE.finding(
        trial.name,
        f"{len(gradients)} {noun} {verb} nominally other strides than the parameter, but the same bytes in "
        f"both formats ({listing(names, _NAMED)}): the warning 'Grad strides do not match bucket view strides' "
        f"(pytorch issue #47163) is spurious here, no byte has to be moved for it{cause}",
        None,
        evidence=[g.parameter for g in gradients],
    )


def _cause(diagnosis: Diagnosis, trial: Trial, parameters: set[str]) -> str:
    """Layout optimization, where it was applied and without it these gradients lie as their parameters do."""
    off = diagnosis.measured_trial(_OFF)
    applied = any(card.applied for card in evidence.cards_of(trial))
    if not applied or off is None or off is trial or off.status != "ok" or off.measurement is None:
        return ""
    if parameters & {entry.parameter for entry in off.gradient_layouts}:
        return ""
    return f"; it comes from layout optimization: {evidence.shown(_OFF)} does not have it"


def _strides(stride: tuple[int | str, ...] | None) -> str:
    return f"({', '.join(str(step) for step in stride or ())})"


def _finding_about_inputs(trial: Trial, inputs: list[FxNode]) -> Finding:
    names = [f"{node.name} {shape_words(node.layout.shape)}" for node in inputs if node.layout is not None]
    first = inputs[0]
    wanted = dict.fromkeys(CHANNELS_LAST_BY_RANK[len(n.layout.shape)] for n in inputs if n.layout is not None)
    subject, verb = ("an input", "satisfies") if len(inputs) == 1 else (f"{len(inputs)} inputs", "satisfy")
    pronoun = "it" if len(inputs) == 1 else "them"
    return RULE.finding(
        trial.name,
        f"{subject} of convolutions {verb} contiguous_format and {' or '.join(wanted)} at once "
        f"({listing(names, _NAMED)}): the same bytes in both, so no conversion of {pronoun} can be due, and "
        "is_contiguous() is true for both formats",
        None,
        evidence=[node.name for node in inputs],
        at=first,
    )


RULE = document_rule("LD504", "ambiguous-format", check, __doc__)
