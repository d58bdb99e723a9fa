"""
A contiguous model runs channels_last from some layer on, or its parameters are in both formats.

What it finds:
    In eager, with contiguous parameters and inputs: a convolution whose input is channels_last. It names the layer
    after which that is so: the first operation on the way to that convolution that returns channels_last though it
    was not given it. Also a model with parameters in both formats. What satisfies both formats, such as a 1x1 weight,
    never counts.

Why it costs:
    A convolution that meets a contiguous and a channels_last tensor converts one of them, on each call; and the part
    before the flip stays in the other format than the rest.

Example:
    A LayerNorm2d written as permute, layer_norm, permute: the second permute is a view with channels_last strides, and
    all layers behind it follow.

What to do:
    Choose one format on purpose: convert the input and the parameters too, or call ``.contiguous()`` behind the layer
    that flips, and measure both.

When it is fine:
    The input, or a call in the model, asks for channels_last: then it was chosen, and it is not told. The mixture
    costs less than 2 % of the kernel time (a note).

Source:
    huggingface/pytorch-image-models PR #1340: a LayerNorm2d by permutes "accidentally turns most of the network into
    channels last mode"; an A100 trains 573 img/s kept contiguous and 619 img/s in channels_last throughout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import all_conversions_of, conversions_of, sum_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import channels_last_ways, is_worth_trying, refusal
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import (
    channels_last_only,
    first_input,
    is_convolution,
    nodes_by_name,
)
from layoutdoctor.rules.times import Times, alternative_words
from layoutdoctor.words import count_of, distinct, joined, line_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.layout import Layout, MemoryFormat
    from layoutdoctor.diagnosis.records import Diagnosis, Finding, FxNode, Graph, Trial

_EAGER = "eager"
_CHOSEN_BY = frozenset({"contiguous", "to", "clone"})


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: parameters in both formats explain a flip as well."""
    trial = _trial_as_given(diagnosis)
    if trial is None:
        return
    weights = [
        node.layout
        for graph in trial.graphs
        if graph.direction != "backward"
        for node in graph.nodes
        if node.tensor == "weight" and node.layout is not None and len(node.layout.shape) in CHANNELS_LAST_BY_RANK
    ]
    last = [wanted for layout in weights if (wanted := channels_last_only(layout)) is not None]
    contiguous_count = sum(map(_is_contiguous_only, weights))
    if last and contiguous_count:
        yield _finding_about_parameters(trial, contiguous_count, last)
    elif not last and trial.name == _EAGER and not _has_channels_last_input(diagnosis):
        for graph in trial.graphs:
            flip = _first_flip(trial, graph)
            if flip is not None:
                yield _finding(diagnosis, trial, graph, *flip)
                return


def _trial_as_given(diagnosis: Diagnosis) -> Trial | None:
    """Eager in the caller's formats; where nothing ran, the baseline, whose graph inputs are the parameters."""
    eager = diagnosis.find_trial(_EAGER)
    if eager is not None and eager.graphs:
        return eager
    main = evidence.main_trial(diagnosis)
    return main if main is not None and main.configuration.model_format == "preserve" else None


def _has_channels_last_input(diagnosis: Diagnosis) -> bool:
    return any(
        CHANNELS_LAST_BY_RANK.get(len(tensor.shape)) in tensor.memory_formats
        and "contiguous_format" not in tensor.memory_formats
        for tensor in diagnosis.subject.inputs
    )


def _first_flip(trial: Trial, graph: Graph) -> tuple[FxNode, FxNode] | None:
    """The first convolution that reads channels_last, and where that came from; None where it was chosen."""
    nodes = nodes_by_name(graph)
    for node in graph.nodes:
        if is_convolution(node) and not node.backward and channels_last_only(_input_layout(node, nodes)):
            flip = _source_of_format(nodes[node.inputs[0]], nodes)
            is_mixture = flip.op == "call_function" and not _is_chosen(trial, graph, flip)
            return (node, flip) if is_mixture else None
    return None


def _input_layout(convolution: FxNode, nodes: dict[str, FxNode]) -> Layout | None:
    source = first_input(convolution, nodes)
    return source.layout if source is not None else None


def _source_of_format(node: FxNode, nodes: dict[str, FxNode]) -> FxNode:
    """From a channels-last value back to the first one of its rank: what made that had none for an input."""
    rank = len(node.layout.shape) if node.layout is not None else 0
    seen = {node.name}
    while True:
        earlier = [nodes[name] for name in node.inputs if name in nodes and name not in seen]
        before = next((other for other in earlier if _is_channels_last_of(other.layout, rank)), None)
        if before is None:
            return node
        node = before
        seen.add(node.name)


def _is_channels_last_of(layout: Layout | None, rank: int) -> bool:
    return layout is not None and len(layout.shape) == rank and channels_last_only(layout) is not None


def _is_chosen(trial: Trial, graph: Graph, node: FxNode) -> bool:
    """Whether the model's own code asked for that format."""
    if node.called in _CHOSEN_BY and node.is_called_directly is not False:
        return True
    return any(
        c.owner == "user" and c.direction == "to_channels_last" and (c.graph, c.node) == (graph.name, node.name)
        for c in all_conversions_of(trial)
    )


def _finding(diagnosis: Diagnosis, trial: Trial, graph: Graph, convolution: FxNode, flip: FxNode) -> Finding:
    # What a library converts inside a contiguous convolution is no matter of mixed formats.
    conversions = [c for c in conversions_of(trial) if c.owner == "framework"]
    wanted = channels_last_only(flip.layout) or "channels_last"
    message = f"the contiguous model runs {wanted} after {_flip_words(flip)}: {_count_words(graph)}"
    costs = (count_of(len(conversions), "conversion"), evidence.conversion_cost_words(trial, conversions))
    return RULE.finding(
        trial.name,
        joined((message, joined(costs, ", ") if conversions else None)),
        _suggestion(diagnosis, trial, wanted),
        severity=evidence.severity_of_cost(trial, sum_known(c.seconds for c in conversions)),
        evidence=(flip.name, convolution.name, *(c.id for c in conversions)),
        at=flip,
        conversions=conversions,
    )


def _flip_words(flip: FxNode) -> str:
    """``"n1 (permute, model.py:7)"``."""
    name = flip.called or base_name(flip.target)
    facts = [name] if flip.module is not None else []
    if flip.location is not None:
        facts.append(line_words(flip.location))
    return (flip.module or name) + (f" ({', '.join(facts)})" if facts else "")


def _is_contiguous_only(layout: Layout | None) -> bool:
    """Whether a 4-D or 5-D layout is contiguous and not channels-last as well."""
    if layout is None or len(layout.shape) not in CHANNELS_LAST_BY_RANK:
        return False
    return layout.memory_formats == ("contiguous_format",)


def _count_words(graph: Graph) -> str:
    """How many convolutions read each format; one whose input satisfies both counts for neither."""
    nodes = nodes_by_name(graph)
    layouts = [_input_layout(node, nodes) for node in graph.nodes if is_convolution(node) and not node.backward]
    last = sum(channels_last_only(layout) is not None for layout in layouts)
    contiguous_count = sum(map(_is_contiguous_only, layouts))
    total = count_of(len(layouts), "convolution")
    words = f"{last} of {total} {'reads' if last == 1 else 'read'} it"
    if not contiguous_count:
        return words
    return f"{words}, {contiguous_count} {'reads' if contiguous_count == 1 else 'read'} contiguous"


def _suggestion(diagnosis: Diagnosis, trial: Trial, wanted: MemoryFormat) -> str:
    advice = (
        f"convert the input and the parameters too: model = model.to(memory_format=torch.{wanted}); "
        f"x = x.to(memory_format=torch.{wanted})"
    )
    times = Times(diagnosis)
    if not is_worth_trying(times, trial, channels_last_ways(trial)):
        return refusal(times, trial, channels_last_ways(trial))
    other = diagnosis.measured_trial("eager-channels-last")
    measured = alternative_words(times, trial, other) if other is not None and other is not trial else ""
    return f"{advice}; {measured}" if measured else advice


def _finding_about_parameters(trial: Trial, contiguous_count: int, last: list[MemoryFormat]) -> Finding:
    formats, how = distinct(last), "each parameter to the channels-last format of its rank"
    if formats == ["channels_last"]:
        how = "model = model.to(memory_format=torch.channels_last)"
    return RULE.finding(
        trial.name,
        f"the parameters are in both formats: {contiguous_count} of the 4-D and 5-D ones "
        f"{'is' if contiguous_count == 1 else 'are'} contiguous and {len(last)} {' or '.join(formats)}, so values "
        "change their layout between the layers",
        f"convert all of them to one format: {how}",
        evidence=(f"{contiguous_count} contiguous", f"{len(last)} channels-last"),
    )


RULE = document_rule("LD502", "mixed-formats-in-model", check, __doc__)
