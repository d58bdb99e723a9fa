"""LD502: a model that runs in two memory formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from layoutdoctor.diagnosis import Diagnosis, Finding, FxNode, Graph, Layout, MemoryFormat, Trial
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.counts import all_conversions_of, conversions_of, sum_of_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, channels_last_ways, unless_refuted
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import channels_last_only, first_input, nodes_by_name, runs_convolution
from layoutdoctor.words import count_of, distinct, joined, line_words, phrase, shown, speed_words

_CHOSEN_BY = frozenset({"contiguous", "to", "clone"})


def mixed_formats(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding: about parameters in both formats, or else about a change of format between layers."""
    trial = _trial_as_given(diagnosis)
    if trial is None:
        return
    nodes = (node for graph in evidence.forward_graphs(trial) for node in graph.nodes)
    weights = [node.layout for node in nodes if node.tensor == "weight" and _is_of_rank(node.layout)]
    ranks = {len(one.shape) for one in weights}
    last = [wanted for one in weights if (wanted := channels_last_only(one)) is not None]
    contiguous_count = sum(map(_is_contiguous_only, weights))
    inputs = (t.memory_formats for t in diagnosis.subject.inputs if len(t.shape) in CHANNELS_LAST_BY_RANK)
    if last and contiguous_count:
        yield _finding_about_parameters(trial, contiguous_count, last, ranks)
    elif not last and trial.name == "eager" and all(not one or "contiguous_format" in one for one in inputs):
        flips = (flip for graph in trial.graphs if (flip := _first_flip(trial, graph)) is not None)
        yield from (_finding_about_flip(diagnosis, trial, *flip) for flip in list(flips)[:1])


def _trial_as_given(diagnosis: Diagnosis) -> Trial | None:
    """Returns eager in the caller's formats, else the baseline if it keeps the model's format, else None."""
    eager = diagnosis.find_trial("eager")
    if eager is not None and eager.graphs:
        return eager
    main = evidence.main_trial(diagnosis)
    return main if main is not None and main.configuration.model_format == "preserve" else None


def _finding_about_parameters(
    trial: Trial, contiguous_count: int, last: Sequence[MemoryFormat], ranks: set[int]
) -> Finding:
    formats, how = distinct(last), f"each parameter {wording.BY_RANK}"
    if len(ranks) == 1:
        how = f"model = model.to(memory_format=torch.{formats[0]})"
    return LD502.finding(
        trial.name,
        f"parameters in both formats: {contiguous_count} of the 4-D and 5-D ones contiguous and {len(last)} "
        f"{' or '.join(formats)}, so that values change their layout between the layers",
        f"convert all of them to one format: {how}",
        evidence=(f"{contiguous_count} contiguous", f"{len(last)} channels-last"),
    )


def _is_of_rank(layout: Layout | None) -> TypeGuard[Layout]:
    return layout is not None and len(layout.shape) in CHANNELS_LAST_BY_RANK


def _is_contiguous_only(layout: Layout | None) -> bool:
    """Whether a 4-D or 5-D layout is contiguous and not channels-last as well."""
    return _is_of_rank(layout) and layout.memory_formats == ("contiguous_format",)


def _first_flip(trial: Trial, graph: Graph) -> tuple[Graph, FxNode, FxNode] | None:
    """Returns the first convolution with channels_last input, and the operation that chose this format; else None."""
    nodes = nodes_by_name(graph)
    for node in graph.nodes:
        if runs_convolution(node) and not node.backward and channels_last_only(_input_layout(node, nodes)):
            flip = _source_of_format(nodes[node.inputs[0]], nodes)
            is_mixture = flip.op == "call_function" and not _is_chosen(trial, graph, flip)
            return (graph, node, flip) if is_mixture else None
    return None


def _input_layout(convolution: FxNode, nodes: Mapping[str, FxNode]) -> Layout | None:
    source = first_input(convolution, nodes)
    return source.layout if source is not None else None


def _source_of_format(node: FxNode, nodes: Mapping[str, FxNode]) -> FxNode:
    """Follows a channels-last value back to the node that made this format from inputs in other formats."""
    rank = len(node.layout.shape) if node.layout is not None else 0
    while True:
        earlier = [nodes[name] for name in node.inputs if name in nodes]
        before = next(
            (o for o in earlier if o.layout and len(o.layout.shape) == rank and channels_last_only(o.layout)), None
        )
        if before is None:
            return node
        node = before


def _is_chosen(trial: Trial, graph: Graph, node: FxNode) -> bool:
    """Whether the model's own code asked for the format that a node makes."""
    if node.called in _CHOSEN_BY and node.is_called_directly is not False:
        return True
    return any(
        c.owner == "user" and c.direction == "to_channels_last" and (c.graph, c.node) == (graph.name, node.name)
        for c in all_conversions_of(trial)
    )


def _finding_about_flip(diagnosis: Diagnosis, trial: Trial, graph: Graph, convolution: FxNode, flip: FxNode) -> Finding:
    # A library's conversions for a contiguous convolution do not come from mixed formats.
    conversions = [c for c in conversions_of(trial) if c.owner == "framework"]
    costs = (count_of(len(conversions), "conversion"), wording.conversion_cost_words(trial, conversions))
    wanted, name = channels_last_only(flip.layout) or "channels_last", flip.called or base_name(flip.target)
    known = joined((name if flip.module else None, phrase("{}", flip.location, line_words)), ", ")
    message = (
        f"{wanted} in a contiguous model after {flip.module or name}{phrase(' ({})', known)}: {_count_words(graph)}"
    )
    return LD502.finding(
        trial.name,
        joined((message, joined(costs, ", ") if conversions else None)),
        _one_format(diagnosis, trial, wanted),
        severity=evidence.severity_of_cost(trial, sum_of_known(c.seconds for c in conversions)),
        evidence=(flip.name, convolution.name, *(c.id for c in conversions)),
        at=flip,
        conversions=conversions,
    )


def _count_words(graph: Graph) -> str:
    """Counts the convolutions that read each format; an input that satisfies both formats counts for neither."""
    nodes = nodes_by_name(graph)
    layouts = [_input_layout(node, nodes) for node in graph.nodes if runs_convolution(node) and not node.backward]
    last = sum(channels_last_only(layout) is not None for layout in layouts)
    contiguous_count = sum(map(_is_contiguous_only, layouts))
    words = f"{last} of {count_of(len(layouts), 'convolution')} with channels_last input"
    return f"{words}, {contiguous_count} with contiguous input" if contiguous_count else words


def _one_format(diagnosis: Diagnosis, trial: Trial, wanted: MemoryFormat) -> str:
    times, ways = Times(diagnosis), channels_last_ways(trial)
    advice = (
        f"convert the input and the parameters too: model = model.to(memory_format=torch.{wanted}); "
        f"x = x.to(memory_format=torch.{wanted})"
    )
    gains = (times.over(name, trial.name) for name in ways if times.is_advisable(name, trial.name))
    measured = (speed_words(gain, shown(trial.name)) for gain in gains if gain is not None)
    return unless_refuted(times, trial, ways, joined((advice, *measured)))


LD502 = Rule("LD502", "mixed-formats-in-model", mixed_formats)
