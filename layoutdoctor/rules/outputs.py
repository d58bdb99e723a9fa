"""LD209, LD402 and LD505: outputs in another memory format, or with other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.layout import stride_order
from layoutdoctor.examination.choice import is_far_off, wrong_baseline
from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.layout_agnostic import ALIASES, base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import Times
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import first_input, nodes_by_name
from layoutdoctor.units import format_seconds, sum_if_all_known
from layoutdoctor.words import distinct, layout_words, line_words, listing, shape_words, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import FxNode, LayoutBreaker
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.trial import Equivalence, Trial


# ---------------------------------------------------------------------------------------- LD209: other strides
@dataclass(frozen=True)
class OutputChange:
    """An output, from 0, that a compiled trial returns in another layout than eager on the same formats does."""

    trial: Trial
    eager: Trial
    number: int
    expected: Layout
    returned: Layout


def output_changes(diagnosis: Diagnosis) -> Iterator[OutputChange]:
    """Outputs with equal values whose bytes lie in another order than eager's on the same formats."""
    for trial in diagnosis.trials:
        equivalence, eager = trial.equivalence, evidence.eager_of_same_formats(diagnosis, trial)
        if eager is None or eager.equivalence is None or equivalence is None or equivalence.status != "equal":
            continue
        pairs = zip(eager.equivalence.output_layouts, equivalence.output_layouts, strict=False)
        for number, (expected, returned) in enumerate(pairs):
            if _is_other_order(expected, returned):
                yield OutputChange(trial, eager, number, expected, returned)


def _is_other_order(first: Layout, second: Layout) -> bool:
    """Whether bytes must move between two strided layouts of one shape; False if that is not certain."""
    if first.shape != second.shape or first.stride is None or second.stride is None:
        return False
    if first.memory_formats and second.memory_formats:
        return set(first.memory_formats).isdisjoint(second.memory_formats)
    orders = stride_order(first.shape, first.stride), stride_order(second.shape, second.stride)
    return None not in orders and orders[0] != orders[1]


def output_strides(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per pair of formats, and per eager configuration that has the first of them."""
    groups: dict[tuple[str, str, str], list[OutputChange]] = {}
    for change in output_changes(diagnosis):
        key = (change.eager.name, layout_words(change.expected), layout_words(change.returned))
        groups.setdefault(key, []).append(change)
    for (eager, expected, returned), changes in groups.items():
        first = changes[0]
        breaker = _breaker(first)
        seconds = _seconds_back(diagnosis, [change for change in changes if change.trial is first.trial])
        outputs, names = distinct(str(c.number) for c in changes), distinct(c.trial.name for c in changes)
        message = (
            f"{listing(map(shown, names), 9)} {'returns' if len(names) == 1 else 'return'} "
            f"{'output' if len(outputs) == 1 else 'outputs'} {listing(outputs)} as {returned} where {shown(eager)} "
            f"returns {expected}, with equal values"
        )
        if breaker is not None:
            message += f"; lost at {breaker.op}"
            message += f" ({line_words(breaker.location)})" if breaker.location is not None else ""
        if "contiguous_format" in first.expected.memory_formats:
            message += "; so the time leaves out the conversion back (pytorch #114070)"
        else:
            message += " (pytorch #197109 is such a case)"
        if seconds is not None:
            whole = first.trial.kernel_seconds
            message += f"; to convert it back takes an estimated {format_seconds(seconds)}"
            message += f" beside {format_seconds(whole)} kernel time" if whole is not None else ""
        yield LD209.finding(
            first.trial.name,
            message,
            _convert_back(first.expected),
            severity=evidence.severity_of_cost(first.trial, seconds),
            evidence=[change.trial.name for change in changes],
            at=breaker,
        )


def _convert_back(expected: Layout) -> str:
    if "contiguous_format" in expected.memory_formats:
        return "append .contiguous() to the output and measure again before choosing such a configuration"
    if not expected.memory_formats:
        return "do not rely on the strides of the output; convert it where a layout is needed"
    wanted = expected.memory_formats[0]
    return f"where the reader needs it, append .contiguous(memory_format=torch.{wanted}) to the output, and time that"


def _seconds_back(diagnosis: Diagnosis, changes: Sequence[OutputChange]) -> float | None:
    """The time of the conversions that some outputs of one trial leave to their reader; None if not known."""
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    nodes = [(change.returned, _output_node(change)) for change in changes]
    moved = sum_if_all_known(
        *(tensor_bytes(layout, node.dtype, node.dtype) if node else None for layout, node in nodes)
    )
    return moved / bandwidth if bandwidth and moved is not None else None


def _breaker(change: OutputChange) -> LayoutBreaker | None:
    """The last breaker that made the output's format: the graph proves that the format changes there."""
    returned, expected = set(change.returned.memory_formats), set(change.expected.memory_formats)
    breakers = [
        breaker
        for graph in evidence.forward_graphs(change.trial)
        for breaker in graph.breakers
        if returned & set(breaker.target.memory_formats) and not expected & set(breaker.target.memory_formats)
    ]
    return breakers[-1] if breakers else None


def _output_node(change: OutputChange) -> FxNode | None:
    """The node whose value is the output, in the only forward graph of the compiled trial; None if not recorded."""
    graphs = evidence.forward_graphs(change.trial)
    names = graphs[0].output_names if len(graphs) == 1 else ()
    node = nodes_by_name(graphs[0]).get(names[change.number]) if change.number < len(names) else None
    return node if node is not None and node.layout and node.layout.shape == change.returned.shape else None


LD209 = Rule("LD209", "output-strides-differ-from-eager", output_strides)


# ----------------------------------------------------------------------------------------- LD402: other values
def other_values(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial whose outputs differ."""
    for trial in evidence.own_trials(diagnosis):
        if trial.equivalence is not None and trial.equivalence.status == "different":
            cause, advice = _cause(diagnosis, trial)
            is_error = trial is wrong_baseline(diagnosis) and is_far_off(trial)
            message = f"the outputs of {shown(trial.name)} differ from the {_error_words(trial.equivalence)}{cause}"
            yield LD402.finding(trial.name, message, advice, severity="error" if is_error else "warning")


def _error_words(equivalence: Equivalence) -> str:
    detail = f" ({equivalence.detail})" if equivalence.detail else ""
    return f"{equivalence.reference or 'eager'} reference{detail}"


def _cause(diagnosis: Diagnosis, trial: Trial) -> tuple[str, str]:
    """The reason, by the other trials, as the end of the message; and what to do about it."""
    times, last = Times(diagnosis), "eager-channels-last"
    if not times.computes_right("eager"):
        too = "" if trial.name == "eager" else "; eager differs too"
        return (
            f"{too}: the model is random, or float32 alone is too coarse for it",
            "make the model deterministic (no dropout, a fixed seed) before its configurations are compared",
        )
    if evidence.is_channels_last(trial) and not times.computes_right(last):
        too = "" if trial.name == last else f"; {shown(last)} differs too"
        return (
            f"{too}: the model itself depends on the strides of its tensors, as as_strided() does",
            "keep the input's layout, or replace as_strided() by indexing that does not see strides",
        )
    same = msgspec.structs.replace(trial.configuration, name="", layout_optimization="off")
    for other in evidence.own_trials(diagnosis):
        is_same = other is not trial and msgspec.structs.replace(other.configuration, name="") == same
        if is_same and other.equivalence is not None and other.equivalence.status == "equal":
            return (
                f"; {shown(other.name)} does not, so it comes with layout optimization",
                'compile with options={"layout_optimization": False} until torch is mended; '
                "the reproducer belongs into a bug report to PyTorch",
            )
    return (
        "; eager does not, so it comes from compiling" if diagnosis.find_trial("eager") is not None else "",
        "do not use this configuration; the reproducer belongs into a bug report to PyTorch",
    )


LD402 = Rule("LD402", "outputs-differ", other_values)

# ------------------------------------------------------------------------------------ LD505: reading raw storage
_CALL = "as_strided"
_VIEWS = ALIASES | set(
    "_reshape_alias _unsafe_view expand permute select slice squeeze t transpose unsqueeze view".split()
)
"""Views of a parameter are the parameter."""

_Read = tuple["FxNode", "FxNode | None"]  # the call, and the value it reads


def raw_reads(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: from eager, which runs what the code says, else from the first graph that shows it."""
    trials = sorted(evidence.own_trials(diagnosis), key=lambda trial: trial.name != "eager")
    for trial, found in evidence.first_showing(trials, _raw_reads):
        lines = listing(distinct(line_words(n.location) for n, _ in found if n.location is not None), 3)
        at = f" at {lines}" if lines else ""
        calls = f"as_strided{at} reads" if len(found) == 1 else f"{len(found)} calls of as_strided{at} read"
        value, source = "activations", found[0][1]
        if len(found) == 1 and source is not None:
            value = source.name + (f" ({shape_words(source.layout.shape)})" if source.layout is not None else "")
        different = [
            shown(other.name)
            for other in evidence.own_trials(diagnosis)
            if other.configuration.input_format == "channels_last" and not Times(diagnosis).computes_right(other.name)
        ]
        yield LD505.finding(
            trial.name,
            f"comparing memory formats is unsafe: {calls} the raw storage of {value}"
            + (f"; the outputs of {listing(different)} differ" if different else ""),
            "write it with unfold, narrow, slicing or indexing, which follow the strides; until then keep the "
            "memory format that the model was written for",
            severity="warning",
            evidence=[node.name for node, _ in found],
            at=found[0][0],
        )


def _raw_reads(trial: Trial) -> list[_Read]:
    """The calls of the model's own code on a value that is no parameter."""
    found: list[_Read] = []
    for graph in evidence.forward_graphs(trial):
        nodes = nodes_by_name(graph)
        for node in graph.nodes:
            is_call = node.op == "call_function" and not node.backward and _CALL in base_name(node.target)
            if is_call and _is_users(node, is_eager=trial.configuration.backend == "eager"):
                made = source = first_input(node, nodes)
                while made is not None and made.op == "call_function" and base_name(made.target) in _VIEWS:
                    made = first_input(made, nodes)
                if made is None or made.tensor != "weight":
                    found.append((node, source))
    return found


def _is_users(node: FxNode, *, is_eager: bool) -> bool:
    """
    Whether the model's own code called it.

    Torch calls it as well: ``adaptive_avg_pool2d`` on a channels_last value, and AOTAutograd for views of inputs.
    """
    if node.is_called_directly is False:
        return False
    if node.called is not None:
        return _CALL in node.called
    if node.location is not None and node.location.code is not None:
        return _CALL in node.location.code
    return node.is_called_directly is True or is_eager


LD505 = Rule("LD505", "as-strided-on-activation", raw_reads)
