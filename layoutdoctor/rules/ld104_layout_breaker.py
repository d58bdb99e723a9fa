"""LD104: operations (layout breakers) at which a channels-last region ends inside the model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, LayoutBreaker, MemoryFormat, Trial
from layoutdoctor.diagnosis.layout import dispatched_format
from layoutdoctor.examination.counts import all_conversions_of, sum_of_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import OFF, Times, advised, alternative_words, channels_last_ways
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import count_of, distinct, joined, line_words, listing, phrase, shown, speed_words

_CONVOLUTION_CALL = re.compile(r"(aten::)?(conv(_transpose)?\dd|convolution)")
_MODULES_NAMED = 3
_LINES_NAMED = 2
_USER_CALLS = frozenset({"contiguous", "to", "clone"})
_ADVICE = {
    "instance_norm": "stay contiguous around it, or use GroupNorm or BatchNorm where the model allows it",
    "channel_shuffle": "pytorch #197109: call .contiguous(memory_format=torch.channels_last) after channel_shuffle, "
    "or shuffle the last dimension of x.permute(0, 2, 3, 1); indexing the channels gives a contiguous result too",
}
_REPEATED = (
    "instead of repeat, list the slice several times in cat: torch.cat([x[:, :, :1]] * 2 + [x], 2) keeps the format"
)
_UNRECOGNIZED = (
    "torch looks at the strides of dimensions of size 1 too: .clone(memory_format=torch.{wanted}) of the input sets "
    "them as the format wants, .contiguous() leaves them"
)
_SMALL = (
    "on a CPU, ATen runs a small convolution of one image and returns contiguous: convert its result to channels_last, "
    "or stay contiguous if the other convolutions are small too"
)
_CAT = "give every input of the cat channels_last: one contiguous input makes the result contiguous"
_EAGER_ADVICE = {
    **dict.fromkeys(("cat", "concat", "concatenate"), _CAT),
    **dict.fromkeys(("repeat", "repeat_interleave"), _REPEATED),
    "new_zeros": "pad with torch.nn.functional.pad, or with torch.zeros_like of a slice: both keep the format",
    "instance_norm": "in eager mode stay contiguous, or on a CPU use a group norm with one channel per group; or "
    "compile, as Inductor fuses the norm",
}
_VIEWS = ("view", "unsafe_view", "reshape", "flatten", "unflatten", "permute", "transpose")
_PRODUCTS = ("bmm", "baddbmm", "matmul", "mm", "addmm", "linear", "scaled_dot_product_attention")
_VIEW_ADVICE = (
    "a view keeps channels_last only if the channels stay innermost: x.flatten(2).transpose(1, 2) gives [N, HW, C] "
    "without a copy"
)
_COMPILED_ADVICE = (
    "Inductor chose the layout of this result: compare channels_last input, and layout optimization on and off"
)
_AGAINST_THE_MODEL = "Inductor chose this layout against the model's own: compare with eager (pytorch #177277)"
_GENERAL_ADVICE = "stay contiguous around it, or use an operation there that keeps channels_last"
_OPERATOR_ADVICE = (
    "let the operator take and return channels_last, in its fake implementation too (torch.empty_like keeps the "
    "format), or stay contiguous around it"
)
_KERNEL_ADVICE = (
    "let the kernel use the strides of its tensors, and give it channels_last, or stay contiguous around it"
)


def layout_breakers(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    Yields one finding per trial and kind of operation, the baseline's first; no breaker is reported twice.

    The baseline and eager trials are examined for both channels-last formats. Other compiled trials are examined only
    if they are in channels_last, and only for channels_last_3d: layout optimization leaves this format to the model.
    """
    main, seen = evidence.main_trial(diagnosis), set[tuple[str, str | None, str]]()
    for trial in evidence.own_trials(diagnosis):
        found = _breakers(trial)
        if trial is not main and trial.configuration.backend != "eager":
            is_given = evidence.is_channels_last(trial)
            found = [breaker for breaker in found if is_given and _format(breaker) == "channels_last_3d"]
        new = [b for b in found if (b.op, b.module, str(b.location)) not in seen]
        seen.update((b.op, b.module, str(b.location)) for b in new)
        by_op = [[breaker for breaker in new if breaker.op == op] for op in distinct(breaker.op for breaker in new)]
        for alike in sorted(by_op, key=lambda some: -sum(breaker.bytes_moved or 0 for breaker in some)):
            yield _breaker_finding(diagnosis, trial, alike)


def _breakers(trial: Trial) -> list[LayoutBreaker]:
    """Returns the forward's breakers that lose a format of convolutions; LD501 reports the model's own conversions."""
    asked = {(c.graph, c.node) for c in all_conversions_of(trial) if c.owner == "user"}
    used = evidence.formats_in_use(trial)
    return [
        breaker
        for graph in evidence.forward_graphs(trial)
        for breaker in graph.breakers
        if (lost := _format(breaker)) is not None and (lost in used or not used)
        if _op(breaker) not in _USER_CALLS and (graph.name, breaker.node) not in asked
    ]


def _format(breaker: LayoutBreaker) -> MemoryFormat | None:
    """Returns the channels-last format that a breaker loses; None if its input is not channels-last."""
    return next((one for one in breaker.source.memory_formats if one != "contiguous_format"), None)


def _op(breaker: LayoutBreaker) -> str:
    if _CONVOLUTION_CALL.fullmatch(breaker.op):
        return "convolution"
    name = base_name(breaker.op.replace("aten::", "aten."))
    return name.removeprefix("native_").lstrip("_")


def _breaker_finding(diagnosis: Diagnosis, trial: Trial, breakers: Sequence[LayoutBreaker]) -> Finding:
    # Each conversion counts once: two breakers in a row share the conversion between them.
    ids = {id for breaker in breakers for id in breaker.conversions}
    paid = [conversion for conversion in all_conversions_of(trial) if conversion.id in ids]
    worst = max(breakers, key=lambda breaker: (breaker.seconds or 0.0, breaker.bytes_moved or 0))
    lost = distinct(_format(breaker) for breaker in breakers)
    # A compiled graph may have several nodes for one call, with one conversion.
    calls = {(b.module, str(b.location), b.conversions or b.node) for b in breakers}
    unit = "layer" if len(distinct(b.module for b in breakers)) == len(calls) else "call"
    where = f"{listing(lost)} lost at {count_of(len(calls), f'{breakers[0].op} {unit}')}"
    lines = distinct(line_words(b.location) for b in breakers if b.location is not None)
    places = listing(distinct(b.module for b in breakers), _MODULES_NAMED) or listing(lines, _LINES_NAMED)
    there = phrase(" ({})", places)
    what = joined((where + there, worst.reason), ": ")
    if _is_foreign(worst):  # the reason is more important than the place
        what = joined((where, worst.reason), ": ") + there
    return LD104.finding(
        trial.name,
        joined((what, joined((_paid_words(paid), wording.conversion_cost_words(trial, paid)), ", "))),
        _breaker_suggestion(diagnosis, trial, worst),
        severity=evidence.severity_of_cost(trial, sum_of_known(c.seconds for c in paid)),
        conversions=paid,
        evidence=(*(b.node for b in breakers), *(id for b in breakers for id in b.conversions)),
        at=worst,
    )


def _paid_words(paid: Sequence[Conversion]) -> str:
    """Counts the conversions that breakers cause: ``"3 conversions to contiguous and 2 back, 1 of them fused"``."""
    weights, values = (sum((c.tensor == "weight") is is_weight for c in paid) for is_weight in (True, False))
    directions = [c.direction for c in paid if c.tensor != "weight"]
    out, back = directions.count("to_contiguous"), directions.count("to_channels_last")
    fused = sum(c.fused for c in paid)
    words = f"{count_of(values, 'conversion')} {'to contiguous' if out else 'back'}"
    if out + back < values:
        words = f"{count_of(values, 'conversion')} around it"
    elif out and back:
        words = f"{count_of(out, 'conversion')} to contiguous and {back} back"
    words += ", fused" if fused == len(paid) else phrase(", {} of them fused", fused or None)
    behind = f"{count_of(weights, 'weight')} made contiguous after it"
    return listing([*([words] if values else []), *([behind] if weights else [])])


def _breaker_suggestion(diagnosis: Diagnosis, trial: Trial, breaker: LayoutBreaker) -> str:
    op, is_eager, times = _op(breaker), trial.configuration.backend == "eager", Times(diagnosis)
    is_traced = is_eager or _is_contiguous_as_traced(trial, breaker)
    chosen = _AGAINST_THE_MODEL if evidence.is_channels_last(trial) else _COMPILED_ADVICE
    if _is_foreign(breaker):
        advice = _KERNEL_ADVICE if breaker.op.startswith("triton::") else _OPERATOR_ADVICE
        return joined((advice, _around_words(times, trial)))
    if is_traced and dispatched_format(breaker.source.shape, breaker.source.stride) == "contiguous_format":
        advice = _UNRECOGNIZED.format(wanted=_format(breaker))
    elif op == "convolution" and is_traced and diagnosis.subject.device == "cpu":
        advice = _SMALL
    elif is_traced and op in _EAGER_ADVICE:
        advice = _EAGER_ADVICE[op]
    elif op in (*_VIEWS, *_PRODUCTS):
        advice = _VIEW_ADVICE
    else:
        advice = _ADVICE.get(op, _GENERAL_ADVICE if is_traced else chosen)

    def keeps_it(other: Trial) -> bool:
        has_it = evidence.is_channels_last(other) or any(card.applied for card in other.decisions)
        breaks = any(_op(one) == op for graph in other.graphs for one in graph.breakers)
        return has_it and evidence.is_recorded(other) and not breaks

    other = times.clean_alternative(trial, keeps_it)
    if other is not None:
        return f"{advice}; {shown(other.name)} keeps the format there: {alternative_words(times, trial, other)}"
    if advice == _COMPILED_ADVICE:
        advice = advised(times, trial, (*channels_last_ways(trial), *OFF), advice)
        return joined((advice, _around_words(times, trial))) if trial.is_static else advice
    return advice


def _is_contiguous_as_traced(trial: Trial, breaker: LayoutBreaker) -> bool:
    """Whether the model itself, and not Inductor, makes a result contiguous."""
    if not evidence.is_channels_last(trial):
        return False
    found = (node for graph in trial.graphs for node in graph.nodes if node.name == breaker.node)
    return all(node.layout is not None and "contiguous_format" in node.layout.memory_formats for node in found)


def _is_foreign(breaker: LayoutBreaker) -> bool:
    """Whether an operation is not torch's own."""
    namespace, separator, _ = breaker.op.partition("::")
    return bool(separator) and namespace != "aten"


def _around_words(times: Times, trial: Trial) -> str:
    """Describes the best advisable trial that converts no activation inside the model; names all if none was timed."""
    clean = [other for other in times.diagnosis.trials if other is not trial and _converts_nothing_inside(other, trial)]
    if any(times.ratio(other.name) is not None for other in clean):
        gain = times.fastest(other.name for other in clean)
        return phrase("{}, and converts nothing around it", gain, speed_words)
    names = listing([shown(other.name) for other in clean])
    return phrase("nothing is converted around it in {}: measure that", names)


def _converts_nothing_inside(trial: Trial, like: Trial) -> bool:
    found = (c for c in all_conversions_of(trial) if c.tensor != "weight" and c.owner != "library")
    is_known = trial.status == "ok" and bool(trial.graphs) and all(g.hook_failure is None for g in trial.graphs)
    is_like = is_known and trial.configuration.backend == like.configuration.backend
    return is_like and all(conversion.role != "interior" for conversion in found)


LD104 = Rule("LD104", "layout-breaker", layout_breakers)
