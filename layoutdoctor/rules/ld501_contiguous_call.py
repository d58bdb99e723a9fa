"""LD501: calls of .contiguous() on channels_last tensors in the model's own code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, TensorKind, Trial
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.examination.counts import all_conversions_of, dearest_of, launch_count, sum_of_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import channels_last_only, is_call_out_of_channels_last
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, phrase, shown

_CALLS = {"contiguous": ".contiguous()", "to": ".to(memory_format=...)", "clone": ".clone(memory_format=...)"}
_COPIES = (*_CALLS, "_to_copy")
_ASSIGNMENT = "copy_"
"""Name of the call if the model's line assigns to a slice."""
_CALL_IN_CODE = re.compile(r"\.(contiguous|to|clone)\(")


def contiguous_calls(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields one finding per line of the model, or per module if no line was recorded."""
    main, trials = evidence.main_trial(diagnosis), evidence.own_trials(diagnosis)
    called: dict[tuple[str, int], dict[str, tuple[Trial, list[Conversion]]]] = {}
    for trial in trials:
        for c in _user_conversions(trial):
            line = (c.location.file, c.location.line) if c.location is not None else (c.module or "", 0)
            called.setdefault(line, {}).setdefault(trial.name, (trial, []))[1].append(c)
    counts = {one.name: wording.summed((c.tensor, c.count) for c in all_conversions_of(one)) for one in trials}
    for by_trial in called.values():
        calls = by_trial.values()
        # Report the baseline if the call is not fused there, else the trial in which the call costs most.
        of_main = [call for call in calls if call[0] is main and not all(c.fused for c in call[1])]
        trial, conversions = of_main[0] if of_main else max(calls, key=lambda call: _cost(call[1]))
        seconds = sum_of_known(c.seconds for c in conversions)
        if _leaves_channels_last(conversions) or evidence.takes_at_least(trial, seconds, evidence.NEGLIGIBLE_SHARE):
            part = _part_words(trial, conversions, counts[trial.name])
            yield _finding_about_call(diagnosis, trial, conversions, [other for other, _ in calls], part)


def _user_conversions(trial: Trial) -> list[Conversion]:
    """
    Returns 4-D and 5-D conversions by the model's own calls, except conversions to channels_last.

    In a trace, only conversions out of channels_last count.
    """
    return [
        conversion
        for conversion in all_conversions_of(trial)
        if conversion.owner == "user"
        and conversion.direction != "to_channels_last"
        and conversion.rank in CHANNELS_LAST_BY_RANK
        and (not evidence.is_trace(trial) or is_call_out_of_channels_last(conversion))
    ]


def _cost(conversions: Sequence[Conversion]) -> tuple[float, int]:
    return sum(c.seconds or 0.0 for c in conversions), sum(c.bytes_moved or 0 for c in conversions if not c.fused)


def _leaves_channels_last(conversions: Sequence[Conversion]) -> bool:
    return any(channels_last_only(conversion.source) is not None for conversion in conversions)


def _finding_about_call(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], trials: Sequence[Trial], part: str
) -> Finding:
    first, worst = conversions[0], dearest_of(conversions) or conversions[0]
    # Readers that accept only this layout. Convolutions accept both formats.
    needed_by = distinct(
        name
        for c in conversions
        for name in c.required_by
        if not evidence.runs_convolution_named(name, evidence.nodes_of_graph(trial, c.graph))
    )
    place = phrase(" at {}", first.location, line_words) or phrase(" in {}", first.module)
    formats = " or ".join(distinct(channels_last_only(c.source) or "strided" for c in conversions))
    call, tensor = _call_words(trial, first), f"{formats} tensor ({wording.shape_of(first.source)})"
    is_assignment = _called(trial, first) == _ASSIGNMENT
    what = f"{call}{place} on a {tensor}"
    if is_assignment:
        what = f"copy{place} of a {tensor} into a tensor of another layout"
    cost = joined((part, wording.conversion_cost_words(trial, conversions)), ", ")
    free = [shown(o.name) for o in evidence.own_trials(diagnosis) if o not in trials and _is_free(o, first)]
    severity = evidence.severity_of_cost(trial, sum_of_known(c.seconds for c in conversions))
    if needed_by:
        suggestion = f"keep it as long as this layout is needed by {listing(needed_by)}"
    elif is_assignment:
        suggestion = "make the destination tensor in the same memory format, or build it by torch.cat or torch.stack"
    elif not _leaves_channels_last(conversions):
        suggestion = "delete the call if the operation after it takes a strided tensor, and measure again"
    else:
        wanted = wording.channels_last_words([worst.rank])
        instead = f"{_call_words(trial, worst).partition('(')[0]}(memory_format={wanted})"
        suggestion = f"delete the call, or write {instead}"
        if any(conversion.role == "exit" for conversion in conversions):
            suggestion += "; keep it if the reader of the output needs a contiguous tensor"
    message = (
        f"{what}: {cost}",
        phrase("needed by {}", needed_by, listing),
        f"no conversion in {listing(free, 2)}" if free and not is_assignment else None,
    )
    return LD501.finding(
        trial.name,
        joined(message),
        suggestion,
        severity="note" if needed_by or not _leaves_channels_last(conversions) else severity,
        conversions=conversions,
        at=worst,
    )


def _part_words(trial: Trial, conversions: Sequence[Conversion], counts: Counter[TensorKind]) -> str:
    """Counts the conversions: ``"1 of 3 conversions of activations in eager + channels_last (fused)"``."""
    kinds = {conversion.tensor for conversion in conversions}
    noun = f"{min(kinds)}s" if len(kinds) == 1 and "unknown" not in kinds else "tensors"
    where = "the trace" if evidence.is_trace(trial) else shown(trial.name)
    every = count_of(sum(counts[kind] for kind in kinds), "conversion")
    words = f"{launch_count(conversions)} of {every} of {noun} in {where}"
    return f"{words} (fused)" if all(c.fused for c in conversions) else words


def _called(trial: Trial, conversion: Conversion) -> str:
    node = evidence.nodes_of_graph(trial, conversion.graph).get(conversion.node or "")
    return "" if node is None else node.called or ""


def _call_words(trial: Trial, conversion: Conversion) -> str:
    """Returns the call as written in the model: ``".contiguous()"``, ``".clone(memory_format=...)"``."""
    called = _called(trial, conversion)
    if called not in _CALLS and conversion.location is not None:
        match = _CALL_IN_CODE.search(conversion.location.code or "")
        called = match[1] if match is not None else ""
    return _CALLS.get(called, _CALLS["contiguous"])


def _is_free(trial: Trial, conversion: Conversion) -> bool:
    """Whether a trial was recorded completely, and has no conversion at the line of ``conversion``."""
    copies = (
        other.location == conversion.location and base_name((other.op or "").replace("aten::", "aten.")) in _COPIES
        for other in all_conversions_of(trial)
    )
    return trial.status == "ok" and evidence.is_recorded(trial) and not any(copies)


LD501 = Rule("LD501", "user-contiguous-call", contiguous_calls)
