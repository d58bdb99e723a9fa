"""LD108, LD110 and LD501: copies in eager code, and those that a line of the model asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, stride_order
from layoutdoctor.examination.costs import (
    all_conversions_of,
    conversion_places,
    conversions_of,
    dearest_of,
    launch_count,
    sum_known,
)
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.base import Rule
from layoutdoctor.rules.evidence import channels_last_only, is_call_out_of_channels_last
from layoutdoctor.words import DIRECTION_WORDS, count_of, distinct, joined, line_words, listing, op_words

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion, TensorKind
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.layout import Layout
    from layoutdoctor.diagnosis.trial import Trial


# ------------------------------------------------------------------------------------------------ LD108 and LD110
def strided_copies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all eager copies of a trace that change the memory format."""
    for trial in evidence.trace_trials(diagnosis):
        owners = ("framework", "user")
        copies = [c for c in conversions_of(trial) if c.owner in owners and not is_call_out_of_channels_last(c)]
        if not copies:
            return
        # A conversion to channels_last by the model's own code is what we recommend: it is counted, and no loss.
        unasked = sum_known(c.seconds for c in copies if c.owner != "user" or c.direction != "to_channels_last")
        count, asked = launch_count(copies), launch_count(c for c in copies if c.owner == "user")
        ways = wording.named_counts((DIRECTION_WORDS[c.direction], c.count) for c in copies)
        names = wording.named_counts((op_words(c.op) if c.op is not None else None, c.count) for c in copies)
        facts = (
            f"{count} eager {'copy changes' if count == 1 else 'copies change'} the memory format {ways}",
            f"by {names}" if names is not None else None,
            wording.on_dearest_shapes(copies),
            wording.step_words(copies),
            f"{asked} asked for by the model's own code" if asked else None,
        )
        costs = (wording.conversion_cost_words(trial, copies), wording.dearest_words(conversion_places(copies)))
        again = "; no line was recorded: record again with torch.profiler.profile(with_stack=True)"
        if any(conversion.location is not None for conversion in copies):
            again = ", and record again"
        yield LD108.finding(
            trial.name,
            joined((joined(facts, ", "), *costs)),
            "look there for a permute or transpose, an input in another format than the model, or an operation that "
            f"returns contiguous; keep one memory format from the input to the output{again}",
            severity=evidence.severity_of_cost(trial, unasked),
            conversions=copies,
        )


LD108 = Rule("LD108", "strided-copy", strided_copies)

_LEAST_SHARE = 0.01  # smaller ones explain nothing that anybody sees in the run


def permuted_copies(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most, for all copies of a trace that permute tensors without a channels-last format."""
    for trial in evidence.trace_trials(diagnosis):
        copies = [c for graph in trial.graphs for c in graph.conversions if c.owner != "library" and _is_permuting(c)]
        seconds, count = sum_known(c.seconds for c in copies), launch_count(copies)
        permutes = "copy permutes a tensor and changes" if count == 1 else "copies permute a tensor and change"
        facts = joined((f"{count} {permutes} no memory format", wording.on_dearest_shapes(copies)), ", ")
        if evidence.takes_at_least(trial, seconds, _LEAST_SHARE):
            yield LD110.finding(
                trial.name,
                joined((facts, wording.cost_words(trial, seconds), wording.dearest_words(conversion_places(copies)))),
                "nothing about memory formats: no format saves them; where they feed attention, "
                "scaled_dot_product_attention takes the permuted views as they are",
                conversions=copies,
            )


def _is_permuting(conversion: Conversion) -> bool:
    before, after = _order(conversion.source), _order(conversion.target)
    return conversion.direction == "none" and before is not None and after is not None and before != after


def _order(layout: Layout | None) -> tuple[int, ...] | None:
    return None if layout is None or layout.stride is None else stride_order(layout.shape, layout.stride)


LD110 = Rule("LD110", "permuted-copy", permuted_copies)

# ---------------------------------------------------------------------------------------------------------- LD501
_CALLS = {"contiguous": ".contiguous()", "to": ".to(memory_format=...)", "clone": ".clone(memory_format=...)"}
_COPIES = (*_CALLS, "_to_copy")
_CALL_IN_CODE = re.compile(r"\.(contiguous|to|clone)\(")


def contiguous_calls(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per line of the model, or per module if no line was recorded."""
    called: dict[tuple[str, int], list[tuple[Trial, list[Conversion]]]] = {}
    for trial in evidence.own_trials(diagnosis):
        lines: dict[tuple[str, int], list[Conversion]] = {}
        for c in _user_conversions(trial):
            line = (c.location.file, c.location.line) if c.location is not None else (c.module or "", 0)
            lines.setdefault(line, []).append(c)
        for line, conversions in lines.items():
            called.setdefault(line, []).append((trial, conversions))
    main = evidence.main_trial(diagnosis)
    counts: dict[str, Counter[TensorKind]] = {}  # of all conversions of a trial
    for calls in called.values():
        # The baseline if the call is a step of its own there, else the trial in which it costs most.
        of_main = [call for call in calls if call[0] is main and not all(c.fused for c in call[1])]
        trial, conversions = of_main[0] if of_main else max(calls, key=lambda call: _cost(call[1]))
        seconds = sum_known(c.seconds for c in conversions)
        if _leaves_channels_last(conversions) or evidence.takes_at_least(trial, seconds, evidence.NEGLIGIBLE_SHARE):
            if trial.name not in counts:
                counts[trial.name] = wording.summed((c.tensor, c.count) for c in all_conversions_of(trial))
            part = _part_words(trial, conversions, counts[trial.name])
            yield _finding(diagnosis, trial, conversions, [other for other, _ in calls], part)


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


def _cost(conversions: Sequence[Conversion]) -> tuple[float, int]:
    moved = sum_known(c.bytes_moved for c in conversions if not c.fused)
    return (sum_known(c.seconds for c in conversions) or 0.0, moved or 0)


def _leaves_channels_last(conversions: Sequence[Conversion]) -> bool:
    return any(channels_last_only(conversion.source) is not None for conversion in conversions)


def _finding(
    diagnosis: Diagnosis, trial: Trial, conversions: Sequence[Conversion], trials: Sequence[Trial], part: str
) -> Finding:
    first, worst = conversions[0], dearest_of(conversions) or conversions[0]
    # Readers that take no other layout; convolutions take both formats.
    needed_by = distinct(
        name
        for c in conversions
        for name in c.required_by
        if not evidence.is_convolution_named(name, evidence.nodes_of_graph(trial, c.graph))
    )
    place = line_words(first.location) if first.location is not None else first.module or "the model"
    formats = " or ".join(distinct(channels_last_only(c.source) or "strided" for c in conversions))
    call = f"{place} calls {_call_words(trial, first)} on a {formats} tensor ({wording.shape_of(first.source)})"
    cost = joined((part, wording.conversion_cost_words(trial, conversions)), ", ")
    needed = f"{listing(needed_by)} {'takes' if len(needed_by) == 1 else 'take'} no other layout" if needed_by else None
    free = [wording.shown(o.name) for o in evidence.own_trials(diagnosis) if o not in trials and _is_free(o, first)]
    severity = evidence.severity_of_cost(trial, sum_known(c.seconds for c in conversions))
    if needed_by:
        suggestion = f"keep it while {listing(needed_by)} {'needs' if len(needed_by) == 1 else 'need'} that layout"
    elif not _leaves_channels_last(conversions):
        suggestion = "delete the call where the operation behind it takes a strided tensor, and measure again"
    else:
        wanted = wording.channels_last_words([len(worst.source.shape)] if worst.source is not None else ())
        instead = f"{_call_words(trial, worst).partition('(')[0]}(memory_format={wanted})"
        suggestion = f"delete the call, or write {instead}"
        if any(conversion.role == "exit" for conversion in conversions):
            suggestion += "; keep it where the reader of the output needs contiguous"
    return LD501.finding(
        trial.name,
        joined((f"{call}: {cost}", needed, f"it converts nothing in {listing(free)}" if free else None)),
        suggestion,
        severity="note" if needed_by or not _leaves_channels_last(conversions) else severity,
        conversions=conversions,
        at=worst,
    )


def _part_words(trial: Trial, conversions: Sequence[Conversion], counts: Counter[TensorKind]) -> str:
    """``"1 of the 3 conversions of activations in eager + channels_last (fused)"``."""
    kinds = {conversion.tensor for conversion in conversions}
    noun = f"{min(kinds)}s" if len(kinds) == 1 and "unknown" not in kinds else "tensors"
    own = launch_count(conversions)
    every = sum(counts[kind] for kind in kinds)
    where = "the trace" if evidence.is_trace(trial) else wording.shown(trial.name)
    words = f"{own} of the {count_of(every, 'conversion')} of {noun} in {where}"
    if every == own:
        words = f"the only {'conversion' if every == 1 else f'{every} conversions'} of {noun} in {where}"
    return f"{words} (fused)" if all(c.fused for c in conversions) else words


def _call_words(trial: Trial, conversion: Conversion) -> str:
    """The call of a line, as a person wrote it."""
    node = evidence.nodes_of_graph(trial, conversion.graph).get(conversion.node or "")
    called = node.called if node is not None and node.called in _CALLS else None
    if called is None and conversion.location is not None:
        match = _CALL_IN_CODE.search(conversion.location.code or "")
        called = match[1] if match is not None else None
    return _CALLS[called or "contiguous"]


def _is_free(trial: Trial, conversion: Conversion) -> bool:
    """Whether a trial was recorded whole, and no copy of the same line converts in it."""
    copies = (
        other.location == conversion.location and base_name((other.op or "").replace("aten::", "aten.")) in _COPIES
        for other in all_conversions_of(trial)
    )
    return trial.status == "ok" and evidence.is_recorded(trial) and not any(copies)


LD501 = Rule("LD501", "user-contiguous-call", contiguous_calls)
