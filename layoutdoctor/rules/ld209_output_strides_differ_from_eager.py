"""
A compiled model returns another memory format than the model itself does.

What it finds:
    Outputs of a compiled configuration with the right values that share no memory format with eager's, for the same
    format of model and input; the operation at which the format was lost, where the records tell. One finding per
    change, with all configurations that show it.

Why it costs:
    Whoever reads the output pays for a conversion, or runs another kernel; code that calls ``view`` on it may fail. And
    a configuration that returns channels-last where eager returns contiguous looks faster by the conversion it leaves
    to its caller. A warning where that conversion, at the device's measured copy bandwidth, takes at least 2 % of the
    kernel time, which is told; else a note.

Example:
    ``channel_shuffle`` in a channels_last ShuffleNet: eager returns channels_last, Inductor contiguous. Or a frozen
    model, which returns what its last packed convolution made.

What to do:
    Convert the output where it is needed, ``.contiguous(memory_format=torch.channels_last)``, and time the model with
    that conversion in it before choosing such a configuration.

When it is fine:
    Strides that differ in dimensions of size 1 only are the same bytes: no finding. Otherwise, where the reader of the
    output takes any layout, as a reduction does.

Source:
    pytorch/pytorch issues #197109 (channel_shuffle) and #114070 (differing output strides should be no silent error).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.graphs.conversions import tensor_bytes
from layoutdoctor.examination.graphs.regions import known_sum
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import LosingOperation, OutputChange, lost_at, output_changes, output_node
from layoutdoctor.units import format_seconds
from layoutdoctor.words import distinct, layout_words, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per pair of formats, and per eager configuration that has the first of them."""
    groups: dict[tuple[str, str, str], list[OutputChange]] = {}
    for change in output_changes(diagnosis):
        key = (change.eager.name, layout_words(change.expected), layout_words(change.returned))
        groups.setdefault(key, []).append(change)
    for (eager, expected, returned), changes in groups.items():
        place, trial = lost_at(changes[0]), changes[0].trial
        seconds = _seconds_back(diagnosis, [change for change in changes if change.trial is trial])
        yield RULE.finding(
            trial.name,
            _message(eager, expected, returned, changes, place) + _cost_words(trial, seconds),
            _suggestion(changes[0]),
            severity=evidence.severity_of_cost(trial, seconds),
            evidence=[change.trial.name for change in changes],
            at=place,
        )


def _seconds_back(diagnosis: Diagnosis, changes: Sequence[OutputChange]) -> float | None:
    """What the conversions take that some outputs of one trial leave to their reader; None where not known."""
    bandwidth = diagnosis.environment.copy_bandwidth_bytes_per_second
    nodes = [(change.returned, output_node(change)) for change in changes]
    moved = known_sum(*(tensor_bytes(layout, node.dtype, node.dtype) if node else None for layout, node in nodes))
    return moved / bandwidth if bandwidth and moved is not None else None


def _cost_words(trial: Trial, seconds: float | None) -> str:
    if seconds is None:
        return ""
    whole = trial.kernels.seconds if trial.kernels is not None else None
    beside = f" beside {format_seconds(whole)} kernel time" if whole is not None else ""
    return f"; to convert it back takes an estimated {format_seconds(seconds)}{beside}"


def _message(
    eager: str, expected: str, returned: str, changes: Sequence[OutputChange], place: LosingOperation | None
) -> str:
    outputs = distinct(str(change.number) for change in changes)
    names = distinct(change.trial.name for change in changes)
    configurations = listing(names, 9)
    subject = f"output {outputs[0]}" if len(outputs) == 1 else f"outputs {listing(outputs)}"
    verb = "returns" if len(names) == 1 else "return"
    message = f"{configurations} {verb} {subject} as {returned} where {eager} returns {expected}, with equal values"
    if place is not None:
        message += f"; {'lost at' if place.is_proven else 'the last operation that sets a layout is'} {place.op}"
        message += f" ({line_words(place.location)})" if place.location is not None else ""
    if _leaves_conversion_out(changes[0]):
        return f"{message}; so the time leaves out the conversion back (pytorch #114070)"
    return f"{message} (pytorch #197109 is such a case)"


def _leaves_conversion_out(change: OutputChange) -> bool:
    """Whether the caller's contiguous format is not restored at the end."""
    return "contiguous_format" in change.expected.memory_formats


def _suggestion(change: OutputChange) -> str:
    if _leaves_conversion_out(change):
        return "append .contiguous() to the output and measure again before choosing such a configuration"
    wanted = next(iter(change.expected.memory_formats), None)
    if wanted is None:
        return "do not rely on the strides of the output; convert it where a layout is needed"
    return f"where the reader needs it, append .contiguous(memory_format=torch.{wanted}) to the output, and time that"


RULE = document_rule("LD209", "output-strides-differ-from-eager", check, __doc__)
