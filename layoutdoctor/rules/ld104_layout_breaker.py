"""
A channels-last region ends at an operation, though the layers around it would have stayed in channels-last.

What it finds:
    Operations that are given a channels-last value, return another layout, and so make their neighbours convert: out
    of the region and back into it. One finding per kind of operation, in the baseline; in eager, those that the
    baseline does not have. A ``.contiguous()`` of the model's own is LD501.

Why it costs:
    The value is written in the other layout, and the next convolution converts it back: each time the whole
    activation is read and written, on each call.

Example:
    ``nn.InstanceNorm2d`` in an eager channels_last model: it works on a contiguous copy and returns a contiguous
    result, so each of three norms costs a copy, and the convolution behind it another one.

What to do:
    ``instance_norm``: stay contiguous in eager, or compile, where Inductor fuses the norm. ``channel_shuffle``: call
    ``.contiguous(memory_format=torch.channels_last)`` after it, or shuffle the last dimension of
    ``x.permute(0, 2, 3, 1)``; both stay channels_last in eager and compiled, while ``x[:, order]`` is contiguous
    (torch 2.13). Views for attention: ``x.flatten(2).transpose(1, 2)`` is ``[N, HW, C]`` without a copy in
    channels_last. Behind a module of its own a diagnosis of the default configurations tries what it brings to restore
    the format: ``NAME+restored-format``.

When it is fine:
    It costs less than 2 % of the kernel time, or no time was recorded (then this is a note); or no convolution
    follows, so that nobody converts back.

Source:
    pytorch/pytorch issues #72341 and #59168 (instance norm), #197109 (channel_shuffle under Inductor).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.examination.costs import all_conversions_of, sum_known
from layoutdoctor.examination.graphs.layout_agnostic import base_name
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import OFF, advised, channels_last_ways
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.graph_evidence import channels_last_only, is_recorded
from layoutdoctor.rules.times import Times, alternative_words
from layoutdoctor.words import be, count_of, distinct, joined, line_words, listing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, LayoutBreaker, Trial

_MODULES_NAMED = 6
_LINES_NAMED = 3
_USER_CALLS = frozenset({"contiguous", "to", "clone"})

_ADVICE = {
    "instance_norm": "stay contiguous around it, or use GroupNorm or BatchNorm where the model allows it",
    "channel_shuffle": "known as pytorch issue #197109: call .contiguous(memory_format=torch.channels_last) after it, "
    "or shuffle the last dimension of x.permute(0, 2, 3, 1); an index of the channels is contiguous as well",
}
_EAGER_ADVICE = {
    "cat": "give every input of the cat channels_last: one contiguous input makes the result contiguous",
    "instance_norm": "in eager, stay contiguous; or compile: Inductor fuses the norm, so that no conversion is left",
}
_CONVOLUTIONS = ("convolution", "conv2d", "conv3d", "mkldnn_convolution")
_CONVOLUTION_ADVICE = (
    "this convolution runs outside the library that keeps channels_last, as small ones do: a larger batch, or a Conv3d "
    "whose kernel has depth 1 written as a Conv2d, may run inside it"
)
_VIEWS = ("view", "unsafe_view", "reshape", "flatten", "unflatten", "permute", "transpose")
_PRODUCTS = ("bmm", "baddbmm", "matmul", "mm", "addmm", "linear", "scaled_dot_product_attention")
_VIEW_ADVICE = (
    "a view keeps channels_last only where the channels stay innermost: x.flatten(2).transpose(1, 2) gives [N, HW, C] "
    "without a copy"
)
_COMPILED_ADVICE = (
    "Inductor chose the layout of this result: compare channels_last input, and layout optimization on and off"
)
_GENERAL_ADVICE = "stay contiguous around it, or use an operation there that keeps channels_last"


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding per trial and kind of operation, the baseline's first; what was told is not told of eager again."""
    main, told = evidence.main_trial(diagnosis), set[tuple[str, str | None, str]]()
    for trial in evidence.own_trials(diagnosis):
        if trial is not main and trial.configuration.backend != "eager":
            continue
        new = [breaker for breaker in _breakers(trial) if _fact(breaker) not in told]
        told.update(_fact(breaker) for breaker in new)
        for op in dict.fromkeys(breaker.op for breaker in new):
            yield _finding(diagnosis, trial, [breaker for breaker in new if breaker.op == op])


def _fact(breaker: LayoutBreaker) -> tuple[str, str | None, str]:
    return (breaker.op, breaker.module, str(breaker.location))


def _breakers(trial: Trial) -> list[LayoutBreaker]:
    """Those of a trial, without the model's own calls (LD501 tells of them) and compiled backward graphs (LD206)."""
    asked = {(c.graph, c.node) for c in all_conversions_of(trial) if c.owner == "user"}
    return [
        breaker
        for graph in trial.graphs
        for breaker in graph.breakers
        if graph.direction != "backward"
        and channels_last_only(breaker.source) is not None
        and _op(breaker) not in _USER_CALLS
        and (graph.name, breaker.node) not in asked
    ]


def _op(breaker: LayoutBreaker) -> str:
    name = base_name(breaker.op.replace("aten::", "aten."))
    return name.removeprefix("native_").lstrip("_")


def _finding(diagnosis: Diagnosis, trial: Trial, breakers: Sequence[LayoutBreaker]) -> Finding:
    paid = _paid(trial, breakers)
    worst = max(breakers, key=lambda breaker: (breaker.seconds or 0.0, breaker.bytes_moved or 0))
    seconds = sum_known(c.seconds for c in paid)
    moved = sum_known(c.bytes_moved for c in paid)
    if seconds is None:
        seconds = sum_known(breaker.seconds for breaker in breakers)
    if moved is None:
        moved = sum_known(breaker.bytes_moved for breaker in breakers)
    return RULE.finding(
        trial.name,
        _message(trial, breakers, worst, paid, _cost_words(trial, paid, seconds, moved)),
        _suggestion(diagnosis, trial, worst),
        severity=evidence.severity_of_cost(trial, seconds),
        evidence=(*(b.node for b in breakers), *(id for b in breakers for id in b.conversions)),
        at=worst,
        seconds=seconds,
        bytes_moved=moved,
    )


def _paid(trial: Trial, breakers: Sequence[LayoutBreaker]) -> list[Conversion]:
    """The conversions around some breakers, each once: two breakers in a row share the one between them."""
    ids = {id for breaker in breakers for id in breaker.conversions}
    return [conversion for conversion in all_conversions_of(trial) if conversion.id in ids]


def _cost_words(trial: Trial, paid: Sequence[Conversion], seconds: float | None, moved: int | None) -> str | None:
    if any(c.seconds is not None for c in paid):
        return evidence.conversion_cost_words(trial, paid)
    return evidence.moved_words(moved) if seconds is None else evidence.cost_words(trial, seconds)


def _message(
    trial: Trial, breakers: Sequence[LayoutBreaker], worst: LayoutBreaker, paid: Sequence[Conversion], cost: str | None
) -> str:
    lost = distinct(channels_last_only(breaker.source) for breaker in breakers)
    what = joined((f"{listing(lost)} {be(len(lost))} lost at {_place_words(breakers)}", worst.reason), ": ")
    return joined((what, joined((_paid_words(paid), cost), ", ")))


def _place_words(breakers: Sequence[LayoutBreaker]) -> str:
    modules = distinct(breaker.module for breaker in breakers if breaker.module is not None)
    lines = distinct(line_words(b.location) for b in breakers if b.location is not None)
    places = joined((listing(modules, _MODULES_NAMED), listing(lines, _LINES_NAMED)))
    noun = f"{breakers[0].op} {'layer' if len(modules) == len(breakers) else 'call'}"
    return count_of(len(breakers), noun) + (f" ({places})" if places else "")


def _paid_words(paid: Sequence[Conversion]) -> str:
    """What the neighbours pay: ``"3 conversions out and 2 back in, 1 of them fused"``."""
    if not paid:
        return ""
    back = [c for c in paid if c.direction == "to_channels_last"]
    out = [c for c in paid if c.direction == "to_contiguous"]
    if len(out) + len(back) < len(paid):
        words = f"{count_of(len(paid), 'conversion')} around it"
    elif out and back:
        words = f"{count_of(len(out), 'conversion')} out and {len(back)} back in"
    else:
        words = f"{count_of(len(paid), 'conversion')} {'out' if out else 'back in'}"
    fused = sum(c.fused for c in paid)
    if not fused:
        return words
    return f"{words}, {'fused' if fused == len(paid) else f'{fused} of them fused'}"


def _suggestion(diagnosis: Diagnosis, trial: Trial, breaker: LayoutBreaker) -> str:
    op = _op(breaker)
    advice = _EAGER_ADVICE.get(op) if trial.configuration.backend == "eager" else None
    if advice is None:
        general = _GENERAL_ADVICE if trial.configuration.backend == "eager" else _COMPILED_ADVICE
        runs_on_a_cpu = diagnosis.subject.target is None and diagnosis.subject.device == "cpu"
        general = _CONVOLUTION_ADVICE if op in _CONVOLUTIONS and runs_on_a_cpu else general
        advice = _VIEW_ADVICE if op in (*_VIEWS, *_PRODUCTS) else _ADVICE.get(op, general)
    times = Times(diagnosis)
    other = times.clean_alternative(trial, lambda candidate: _is_without(candidate, breaker))
    if other is None:
        if advice == _COMPILED_ADVICE:
            return advised(times, trial, (*channels_last_ways(trial), *OFF), advice)
        return advice
    return f"{advice}; {evidence.shown(other.name)} does not lose it there: {alternative_words(times, trial, other)}"


def _is_without(trial: Trial, breaker: LayoutBreaker) -> bool:
    """Whether a trial is known to have no breaker of that kind."""
    if not trial.graphs or not all(is_recorded(graph) for graph in trial.graphs):
        return False
    return all(_op(other) != _op(breaker) for graph in trial.graphs for other in graph.breakers)


RULE = document_rule("LD104", "layout-breaker", check, __doc__)
