"""LD504: tensors that are in both formats at once."""

from __future__ import annotations

from collections.abc import Iterator

from layoutdoctor.diagnosis import Diagnosis, Finding, FxNode, GradientLayout, Layout, Trial
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, dispatched_format
from layoutdoctor.examination.counts import all_conversions_of
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import channels_last_only, first_input, nodes_by_name, runs_convolution
from layoutdoctor.words import count_of, distinct, listing, shown

_NAMED = 3
_OFF = "inductor-layout-opt-off"


def ambiguous_formats(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding about gradients and one about inputs of convolutions, for the first trial with it."""
    trials = evidence.own_trials(diagnosis)
    for trial, gradients in evidence.first_showing(trials, _ambiguous_gradients):
        pairs = [f"{g.parameter}: {_strides(g.layout)} and {_strides(g.gradient)}" for g in gradients]
        cause = _cause(diagnosis, trial, {g.parameter for g in gradients})
        yield LD504.finding(
            trial.name,
            f"{count_of(len(gradients), 'gradient')} in its parameter's order, with other strides "
            f"({listing(pairs, 1)}): 'Grad strides do not match bucket view strides' is spurious "
            f"(pytorch #47163){cause}",
            None,
            evidence=[g.parameter for g in gradients],
        )
    for trial, inputs in evidence.first_showing(trials, _ambiguous_inputs):
        shapes = [node.layout.shape for node in inputs if node.layout is not None]
        names = listing([f"{node.name} {wording.shape_of(node.layout)}" for node in inputs], _NAMED)
        formats = " or ".join(distinct(CHANNELS_LAST_BY_RANK[len(shape)] for shape in shapes))
        yield LD504.finding(
            trial.name,
            f"input of convolutions in contiguous_format and {formats} at once: {names}; the bytes are the same, so no "
            "conversion is needed",
            None,
            evidence=[node.name for node in inputs],
            at=inputs[0],
        )


def _ambiguous_gradients(trial: Trial) -> list[GradientLayout]:
    return [
        entry
        for entry in trial.gradient_layouts
        if entry.layout.stride != entry.gradient.stride
        and entry.layout.shape == entry.gradient.shape
        and set(entry.layout.memory_formats) & set(entry.gradient.memory_formats)
    ]


def _ambiguous_inputs(trial: Trial) -> list[FxNode]:
    """Returns the activations in both formats that convolutions read, each once."""
    found: dict[str, FxNode] = {}
    # A library may still convert such an input, into its own format or because the weight asks for it.
    converted = {(c.graph, c.node) for c in all_conversions_of(trial) if c.tensor == "activation"}
    for graph in trial.graphs:
        nodes = nodes_by_name(graph)
        for node in graph.nodes:
            source = first_input(node, nodes)
            if source is None or node.backward or not runs_convolution(node) or source.tensor == "weight":
                continue
            if (graph.name, node.name) not in converted and _costs_nothing(source.layout, node.layout):
                found[f"{graph.name} {source.name}"] = source
    return list(found.values())


def _costs_nothing(given: Layout | None, returned: Layout | None) -> bool:
    """Whether an input satisfies both formats, and its strides did not make the result channels-last."""
    if given is None or len(given.memory_formats) < 2 or 0 in given.shape:
        return False
    is_dispatched = dispatched_format(given.shape, given.stride) not in (None, "contiguous_format")
    return not is_dispatched or channels_last_only(returned) is None


def _cause(diagnosis: Diagnosis, trial: Trial, parameters: set[str]) -> str:
    """Names layout optimization if it was applied, and the gradients' strides agree without it; else empty."""
    off = diagnosis.measured_trial(_OFF)
    applied = any(card.applied for card in trial.decisions)
    if not applied or off is None or off.status != "ok" or parameters & {one.parameter for one in off.gradient_layouts}:
        return ""
    return f"; not in {shown(_OFF)}"


def _strides(layout: Layout) -> str:
    return f"({', '.join(str(step) for step in layout.stride or ())})"


LD504 = Rule("LD504", "ambiguous-format", ambiguous_formats)
