"""
Weights are converted on every call, though they do not change between calls.

What it finds:
    Conversions of weights in the profiled iteration, in the baseline, or else in eager. In training the weights do
    change, so there it is told only where it costs 5 % of the kernel time or more. In a recorded trace: all of them,
    with the steps they ran in. A trace does not say its mode; one with a backward in it is training.

Why it costs:
    A weight is small beside an activation, but it is converted again on each call: at a small batch, with many
    channels, that is a large part of a convolution.

Example:
    A convolution on a CPU runs on oneDNN, which wants the weight as ``ABcd16b16a``; without freezing, each call
    converts it from the parameter.

What to do:
    In inference on a CPU, measure frozen weights (``inductor-freezing``): ``torch._inductor.config.freezing = True``,
    set before the first call, under ``torch.no_grad()``. The weights must not change afterwards, and no gradients can
    be had. Or convert the parameters once, ``model.to(memory_format=torch.channels_last)``, where that leaves fewer
    conversions. Parameters keep the format they were given also in training: each step changes their values only, so
    converting the model before the optimizer is made saves a library's conversion to channels_last.

When it is fine:
    Training; a large batch, where the conversions of the weights are lost in the rest; a model that is short of
    memory, since freezing keeps a packed copy of each weight.

Source:
    ``torch.compile(options={"freezing": True})`` does not freeze in torch 2.13: dynamo reads the global
    ``torch._inductor.config.freezing`` while it traces, before options apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.diagnosis.records import FASTER, INCONCLUSIVE
from layoutdoctor.examination.costs import conversions_of, launch_count, sum_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import refusal, use_instead
from layoutdoctor.rules.base import document_rule
from layoutdoctor.rules.times import Times, alternative_words, ratio_words
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

# From here on it is a loss: packed weights save more than ratios scatter by.
_LOSS_SHARE = 0.05

_EXPECTED = "expected in training, where each step changes the weights; a larger batch makes it a smaller part"
_BLOCKED = ("to_blocked", "from_blocked")


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """One finding at most: the other configurations repeat what the baseline, or else eager, shows."""
    for trial in evidence.main_or_eager(diagnosis):
        weights = _weight_conversions(trial)
        if not weights:
            continue
        is_training = evidence.is_training(diagnosis, trial)
        # What only the order of kernels calls a weight makes it no loss.
        sure = [c for c in weights if is_training or c.confidence != "order"]
        share = evidence.share_of_kernels(trial, sum_known(c.seconds for c in sure))
        is_dear = share is not None and share >= _LOSS_SHARE
        if is_dear or not is_training:
            times = Times(diagnosis)
            is_loss = is_dear and not is_training and not _is_answered(times, trial)
            yield RULE.finding(
                trial.name,
                _message(trial, weights),
                _suggestion(times, trial, weights, is_training=is_training),
                severity="warning" if is_loss else "note",
                conversions=weights,
            )
        return


def _weight_conversions(trial: Trial) -> list[Conversion]:
    return [conversion for conversion in conversions_of(trial) if conversion.tensor == "weight"]


def _message(trial: Trial, weights: Sequence[Conversion]) -> str:
    guessed = launch_count(c for c in weights if c.confidence == "order")
    often = "" if evidence.is_trace(trial) else " on every call"
    facts = (
        f"{count_of(launch_count(weights), 'weight conversion')}{often}",
        evidence.step_words(weights),
        f"{guessed} of them known by the order of kernels only" if guessed else None,
        evidence.owner_words(weights),
    )
    return joined((joined(facts, ", "), joined(_cost_words(trial, weights))), ": ")


def _cost_words(trial: Trial, weights: Sequence[Conversion]) -> tuple[str | None, ...]:
    if not evidence.is_trace(trial):
        return (evidence.cost_words(trial, sum_known(c.seconds for c in weights)),)
    return (evidence.conversion_cost_words(trial, weights), evidence.dearest_place_words(weights))


def _is_answered(times: Times, trial: Trial) -> bool:
    """Whether frozen weights were measured as no faster."""
    frozen = _frozen(times.diagnosis, trial)
    gain = None if frozen is None else times.over(frozen.name, trial.name)
    return frozen is not None and gain is not None and not times.is_advisable(frozen.name, trial.name)


def _suggestion(times: Times, trial: Trial, weights: Sequence[Conversion], *, is_training: bool) -> str:
    if evidence.is_trace(trial):
        return _untried_suggestion(weights, is_training=is_training)
    of_a_gpu = all(map(_is_strided_by_gpu_library, weights))
    if is_training and not of_a_gpu:
        return _EXPECTED

    def is_cure(other: Trial) -> bool:
        return 2 * len(_weight_conversions(other)) <= len(weights)

    frozen = None if is_training else _frozen(times.diagnosis, trial)
    gain = None if frozen is None else times.over(frozen.name, trial.name)
    if frozen is not None and times.is_advisable(frozen.name, trial.name) and is_cure(frozen):
        return (
            f"freeze the weights, as {evidence.shown(frozen.name)} does (they must not change afterwards): it "
            f"{_fewer(frozen)}; {alternative_words(times, trial, frozen)}"
        )
    other = times.clean_alternative(trial, lambda other: other is not frozen and is_cure(other))
    if other is not None:
        return use_instead(times, trial, other, _fewer(other))
    if of_a_gpu or trial.is_static:
        why = ", since a step changes their values and not their layout" if is_training else ""
        wanted = evidence.wanted_format(weights)
        return f"convert the parameters once: model.to(memory_format={wanted}){why}; and measure that"
    if frozen is not None and frozen.status in ("failed", "crashed", "timed_out"):
        return f"freezing converts them once, but {evidence.shown(frozen.name)} did not run here"
    if frozen is not None and gain is not None:
        said = "freezing was tried" if gain.verdict in (FASTER, INCONCLUSIVE) else "freezing is no faster here"
        return f"{said}: measured {ratio_words(gain)}"
    tried = [other.name for other in times.diagnosis.trials if other.configuration.freezes]
    if tried or times.diagnosis.subject.device != "cpu":
        return refusal(times, trial, tried)
    return "measure whether frozen weights help: --configurations inductor,inductor-freezing"


def _frozen(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """The trial that differs from a compiled one in nothing but its frozen weights."""
    own = trial.configuration
    wanted = msgspec.structs.replace(own, inductor_options={**own.inductor_options, "freezing": True})
    others = (o for o in diagnosis.trials if own.backend == "inductor" and o is not trial)
    return next((o for o in others if msgspec.structs.replace(o.configuration, name=own.name) == wanted), None)


def _fewer(trial: Trial) -> str:
    left = len(_weight_conversions(trial)) or "no"
    return f"leaves {left} weight conversion{'' if left == 1 else 's'}"


def _is_strided_by_gpu_library(conversion: Conversion) -> bool:
    """Whether a library of a GPU makes a memory format of torch's, which a parameter can have from the start."""
    is_strided = conversion.direction in ("to_channels_last", "to_contiguous")
    return is_strided and conversion.kernel is not None and library_of(conversion.kernel) in ("cudnn", "miopen")


def _untried_suggestion(weights: Sequence[Conversion], *, is_training: bool) -> str:
    """By the direction that most of them have: what the library asks for."""
    wanted, is_blocked = evidence.wanted_format(weights), evidence.dearest_direction(weights) in _BLOCKED
    further = "" if wanted == "torch.contiguous_format" else evidence.miopen_words(weights)
    if is_blocked:
        return _EXPECTED if is_training else f"to find out whether packed weights help, {evidence.DIAGNOSE}"
    convert = f"convert the parameters once: model.to(memory_format={wanted})"
    if is_training:
        why = "before the optimizer is made, since a step changes their values and not their layout"
        return f"{convert} {why}; record again{further}"
    return f"{convert}; record again{further}"


RULE = document_rule("LD103", "weight-converted-every-call", check, __doc__)
