"""
The model's own code calls ``.contiguous()`` on a channels_last tensor.

What it finds:
    Conversions that a line of the model asked for (``.contiguous()``, ``.to(memory_format=...)``,
    ``.clone(memory_format=...)``): one finding per line, in the configuration where it costs something, the
    baseline's if it does there. A call that converts to channels_last is what we recommend, and is not told. A strided
    tensor that is no channels-last one is told only where it takes 2 % of the kernel time; in a recorded trace it is
    among the copies of LD108.

Why it costs:
    The call writes the whole activation again, and the next convolution, whose weights are channels_last, converts it
    back or runs in the slower format. In a contiguous model the same call does nothing, so nobody notices it until
    the model is given channels_last.

Example:
    ``y = torch.relu(self.a(x)).contiguous()`` between two convolutions: eager in channels_last becomes slower than
    eager in contiguous format.

What to do:
    Delete the call, or write ``.contiguous(memory_format=torch.channels_last)``. A diagnosis of the default
    configurations tries it and tells what it brings: ``NAME+without-contiguous``.

When it is fine:
    Something behind it takes no other layout, such as ``view`` or a kernel of your own: then the finding is a note
    that says so. On the model's output, where the reader needs contiguous.

Source:
    pytorch/pytorch issue #172205 ("a classic channels-last performance cliff"), found in a ResNet of diffusers.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.costs import all_conversions_of, dearest_of, launch_count, sum_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import (
    channels_last_only,
    is_call_out_of_channels_last,
    is_convolution_named,
    is_recorded,
    nodes_by_name,
)
from layoutdoctor.words import count_of, distinct, joined, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, TensorKind, Trial

_CALLS = {"contiguous": ".contiguous()", "to": ".to(memory_format=...)", "clone": ".clone(memory_format=...)"}
_COPIES = (*_CALLS, "_to_copy")
_CALL_IN_CODE = re.compile(r"\.(contiguous|to|clone)\(")

_Line = tuple[str, int]  # file and line; for a call whose line was not recorded the module's path and 0
_Called = tuple["Trial", list["Conversion"]]
_Counts = tuple[Counter["TensorKind"], Counter["TensorKind"]]  # all conversions, and those of the model's own calls


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per line of the model."""
    called: dict[_Line, list[_Called]] = {}
    counts: dict[str, _Counts] = {}
    for trial in evidence.own_trials(diagnosis):
        for line, conversions in _calls(trial).items():
            called.setdefault(line, []).append((trial, conversions))
    for calls in called.values():
        trial, conversions = _dearest(diagnosis, calls)
        if _leaves_channels_last(conversions) or _is_felt(trial, conversions):
            counts[trial.name] = counts.get(trial.name) or _counts(trial)
            part = _part_words(trial, conversions, counts[trial.name])
            yield _finding(diagnosis, trial, conversions, [other for other, _ in calls], part)


def _counts(trial: Trial) -> _Counts:
    every, users = (
        evidence.summed((c.tensor, c.count) for c in conversions)
        for conversions in (all_conversions_of(trial), _user_conversions(trial))
    )
    return every, users


def _calls(trial: Trial) -> dict[_Line, list[Conversion]]:
    found: dict[_Line, list[Conversion]] = {}
    for conversion in _user_conversions(trial):
        place = conversion.location
        line = (place.file, place.line) if place is not None else (conversion.module or "", 0)
        found.setdefault(line, []).append(conversion)
    return found


def _user_conversions(trial: Trial) -> list[Conversion]:
    """What the model's own calls convert, other than to channels_last, of tensors that have such a format."""
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if conversion.owner == "user"
        and conversion.direction != "to_channels_last"
        and conversion.source is not None
        and len(conversion.source.shape) in CHANNELS_LAST_BY_RANK
        and (not evidence.is_trace(trial) or is_call_out_of_channels_last(conversion))
    ]


def _dearest(diagnosis: Diagnosis, calls: Sequence[_Called]) -> _Called:
    """The baseline where the call is a step of its own there, else the trial where it costs most."""
    main = evidence.main_trial(diagnosis)
    for trial, conversions in calls:
        if trial is main and any(not conversion.fused for conversion in conversions):
            return trial, conversions
    return max(calls, key=lambda call: _cost(call[1]))


def _cost(conversions: Sequence[Conversion]) -> tuple[float, int]:
    own = [conversion for conversion in conversions if not conversion.fused]
    return (sum_known(c.seconds for c in conversions) or 0.0, sum_known(c.bytes_moved for c in own) or 0)


def _leaves_channels_last(conversions: Sequence[Conversion]) -> bool:
    return any(channels_last_only(conversion.source) is not None for conversion in conversions)


def _is_felt(trial: Trial, conversions: Sequence[Conversion]) -> bool:
    share = evidence.share_of_kernels(trial, sum_known(c.seconds for c in conversions))
    return share is not None and share >= evidence.NEGLIGIBLE_SHARE


def _finding(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], trials: Sequence[Trial], part: str
) -> Finding:
    worst = dearest_of(conversions) or conversions[0]
    needed_by = _needed_by(trial, conversions)
    severity = evidence.severity_of_cost(trial, sum_known(c.seconds for c in conversions))
    return RULE.finding(
        trial.name,
        _message(diagnosis, trial, conversions, trials, needed_by, part),
        _suggestion(trial, worst, conversions, needed_by),
        severity="note" if needed_by or not _leaves_channels_last(conversions) else severity,
        conversions=conversions,
        at=worst,
    )


def _needed_by(trial: Trial, conversions: Sequence[Conversion]) -> list[str]:
    """What takes the converted value in no other layout, other than convolutions, which take both formats."""
    found: list[str] = []
    for conversion in conversions:
        nodes = next((nodes_by_name(graph) for graph in trial.graphs if graph.name == conversion.graph), {})
        found += [name for name in conversion.required_by if not is_convolution_named(name, nodes)]
    return distinct(found)


def _message(
    diagnosis: Diagnosis,
    trial: Trial,
    conversions: Sequence[Conversion],
    trials: Sequence[Trial],
    needed_by: Sequence[str],
    part: str,
) -> str:
    first = conversions[0]
    line = line_words(first.location) if first.location is not None else first.module or "the model"
    formats = " or ".join(distinct(channels_last_only(c.source) or "strided" for c in conversions))
    call = f"{line} calls {_call_words(trial, first)} on a {formats} tensor ({evidence.shape_of(first.source)})"
    cost = joined((part, evidence.conversion_cost_words(trial, conversions)), ", ")
    needed = f"{listing(needed_by)} {'takes' if len(needed_by) == 1 else 'take'} no other layout" if needed_by else None
    free = [
        evidence.shown(other.name)
        for other in evidence.own_trials(diagnosis)
        if other not in trials and _is_known(other) and not _is_called_at(other, first)
    ]
    return joined((f"{call}: {cost}", needed, f"it converts nothing in {listing(free)}" if free else None))


def _part_words(trial: Trial, conversions: Sequence[Conversion], counts: _Counts) -> str:
    """``"1 of the 3 conversions of activations in eager-channels-last (2 with the model's other calls)"``."""
    kinds = {conversion.tensor for conversion in conversions}
    noun = f"{kinds.copy().pop()}s" if len(kinds) == 1 and "unknown" not in kinds else "tensors"
    own = launch_count(conversions)
    every, users = (sum(count[kind] for kind in kinds) for count in counts)
    where = "the trace" if evidence.is_trace(trial) else evidence.shown(trial.name)
    words = f"{own} of the {count_of(every, 'conversion')} of {noun} in {where}"
    if every == own:
        words = f"the only {'conversion' if every == 1 else f'{every} conversions'} of {noun} in {where}"
    remarks = [f"{users} with the model's other calls"] if users > own else []
    if all(c.fused for c in conversions):
        remarks.append("fused")
    return words + (f" ({', '.join(remarks)})" if remarks else "")


def _call_words(trial: Trial, conversion: Conversion) -> str:
    """What the line calls, as a person wrote it."""
    nodes = next((nodes_by_name(graph) for graph in trial.graphs if graph.name == conversion.graph), {})
    node = nodes.get(conversion.node or "")
    called = node.called if node is not None and node.called in _CALLS else None
    if called is None and conversion.location is not None and conversion.location.code is not None:
        match = _CALL_IN_CODE.search(conversion.location.code)
        called = match[1] if match is not None else None
    return _CALLS[called or "contiguous"]


def _is_known(trial: Trial) -> bool:
    """Whether a trial ran and its graphs were captured whole, so that no conversion in them is missing."""
    return trial.status == "ok" and bool(trial.graphs) and all(is_recorded(graph) for graph in trial.graphs)


def _is_called_at(trial: Trial, conversion: Conversion) -> bool:
    """Whether a copy of the same line converts in a trial, whoever is said to have asked for it."""
    return any(
        other.location == conversion.location and base_name((other.op or "").replace("aten::", "aten.")) in _COPIES
        for other in all_conversions_of(trial)
    )


def _suggestion(trial: Trial, worst: Conversion, conversions: Sequence[Conversion], needed_by: Sequence[str]) -> str:
    if needed_by:
        return f"keep it while {listing(needed_by)} {'needs' if len(needed_by) == 1 else 'need'} that layout"
    wanted = CHANNELS_LAST_BY_RANK[len(worst.source.shape)] if worst.source is not None else "channels_last"
    if not _leaves_channels_last(conversions):
        return "delete the call where the operation behind it takes a strided tensor, and measure again"
    advice = f"delete the call, or write {_call_words(trial, worst).partition('(')[0]}(memory_format=torch.{wanted})"
    if any(conversion.role == "exit" for conversion in conversions):
        return f"{advice}; keep it where the reader of the output needs contiguous"
    return advice


RULE = document_rule("LD501", "user-contiguous-call", check, __doc__)
