"""
A channels-last graph converts its input at the entry and its output at the exit, and nothing in between.

What it finds:
    In the baseline's compiled graphs whose convolutions run channels-last: the conversions of graph inputs (entry)
    and of graph outputs (exit), where no activation is converted in the interior. Weights are counted apart. Not told
    where channels_last input was measured to be faster: LD205 says that with its numbers.

Why it costs:
    Little: one conversion each, for all the convolutions between. It is told so that nobody takes them for waste.

Example:
    Four convolutions with a contiguous input: one kernel writes the input in channels-last, the last fused kernel
    writes the output back. Without layout optimization the library would convert seven activations instead.

What to do:
    Nothing, or give the model channels_last input, which saves the entry. The exit keeps the strides that eager
    returns; it is needed unless whoever reads the output takes channels_last. In inference, freezing saves the
    weights.

When it is fine:
    Always: it is a note.

Source:
    Inductor keeps the strides a user can see: ``keep_output_stride``, pytorch/pytorch PR #102376. Layout optimization:
    PR #99773.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import channels_last_ways, is_worth_trying, refusal
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import is_convolution_named, nodes_by_name
from layoutdoctor.rules.times import Times
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Graph, Trial


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, about the baseline."""
    trial = evidence.main_trial(diagnosis)
    if trial is None or Times(diagnosis).fastest(evidence.CHANNELS_LAST_CONFIGURATIONS) is not None:
        return
    graphs = [graph for graph in trial.graphs if _is_clean(graph)]
    found = [c for graph in graphs for c in _activations(graph) if c.role == "exit" or _is_for_convolution(graph, c)]
    if found:
        message, suggestion = _message(diagnosis, trial, graphs, found), _suggestion(diagnosis, trial, found)
        yield RULE.finding(trial.name, message, suggestion, conversions=found, at=found[0])


def _is_clean(graph: Graph) -> bool:
    """Whether a forward graph has channels-last convolutions and converts activations at its edges only."""
    if graph.direction == "backward" or not _channels_last_count(graph):
        return False
    return all(conversion.role in ("entry", "exit") for conversion in _activations(graph))


def _is_for_convolution(graph: Graph, conversion: Conversion) -> bool:
    """Whether an input is made ready for convolutions, or computed on, and not for a matrix product."""
    nodes, readers = nodes_by_name(graph), conversion.required_by
    return not readers or any(is_convolution_named(name, nodes) for name in readers)


def _channels_last_count(graph: Graph) -> int:
    if graph.decision is None:
        return 0
    seen = sum(c.channels_last is True and not c.is_backward for c in graph.decision.convolutions)
    return seen or graph.decision.channels_last_convolution_count


def _activations(graph: Graph) -> list[Conversion]:
    return [c for c in graph.conversions if c.tensor == "activation" and c.direction != "none"]


def _message(diagnosis: Diagnosis, trial: Trial, graphs: Sequence[Graph], found: Sequence[Conversion]) -> str:
    count = sum(_channels_last_count(graph) for graph in graphs)
    entries = _count_words([c for c in found if c.role == "entry"], "conversion", "in")
    exits = _count_words([c for c in found if c.role == "exit"], "", "out")
    runs = "runs" if count == 1 else "run"
    message = f"{entries}, {exits} for {count_of(count, 'convolution')} that {runs} channels-last"
    weights = sum(c.tensor == "weight" and c.direction != "none" for graph in graphs for c in graph.conversions)
    often = "on each step" if diagnosis.subject.mode == "training" else "once per call without freezing"
    also = f"and {count_of(weights, 'weight')}, {often}" if weights else None
    return joined((joined((message, evidence.conversion_cost_words(trial, found)), ": "), also))


def _count_words(conversions: Sequence[Conversion], noun: str, side: str) -> str:
    """``"1 conversion in"``, ``"2 out (1 fused)"``."""
    written = {(c.graph, c.value or c.id): c for c in conversions}.values()
    count, fused = len(written), sum(c.fused for c in written)
    counted = f"{count or 'none'}" if not noun else count_of(count, noun) if count else f"no {noun}"
    remark = "" if not fused else " (fused)" if fused == count else f" ({fused} fused)"
    return f"{counted} {side}{remark}"


def _suggestion(diagnosis: Diagnosis, trial: Trial, found: Sequence[Conversion]) -> str:
    roles = {c.role for c in found}
    parts: list[str] = []
    if "entry" in roles:
        tensors = evidence.inputs_not_channels_last(diagnosis)
        wanted = dict.fromkeys(CHANNELS_LAST_BY_RANK[len(tensor.shape)] for tensor in tensors)
        advice = f"a {' or '.join(wanted) or 'channels_last'} input saves the conversion at the entry"
        times, ways = Times(diagnosis), channels_last_ways(trial)
        parts.append(advice if is_worth_trying(times, trial, ways) else refusal(times, trial, ways))
    if "exit" in roles:
        parts.append(
            "the exit keeps the strides that eager returns (keep_output_stride, pytorch PR #102376), which is needed "
            "unless the consumer takes channels_last"
        )
    return "; ".join(parts)


RULE = document_rule("LD105", "entry-exit-conversion", check, __doc__)
