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
    In inference, freeze: ``torch._inductor.config.freezing = True`` set globally, before the first call, under
    ``torch.no_grad()``; ``inductor-freezing`` measures what that brings. The weights must not change afterwards, and no
    gradients can be had. Or convert the parameters once, ``model.to(memory_format=torch.channels_last)``, where that
    leaves fewer conversions. Parameters keep the format they were given also in training: each step changes their
    values only, so converting the model before the optimizer is made saves a library's conversion to channels_last.

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

from layoutdoctor.examination.costs import conversions_of, launch_count, sum_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import advised, frozen_ways, use_instead
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Finding, Trial

# From here on it is a loss: a packed weight would save more than paired rounds on a busy machine scatter by.
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
            yield RULE.finding(
                trial.name,
                _message(trial, weights),
                _suggestion(diagnosis, trial, weights, is_training=is_training),
                severity="warning" if is_dear and not is_training else "note",
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


def _suggestion(diagnosis: Diagnosis, trial: Trial, weights: Sequence[Conversion], *, is_training: bool) -> str:
    if evidence.is_trace(trial):
        return _untried_suggestion(weights, is_training=is_training)
    of_a_gpu = all(map(_is_strided_by_gpu_library, weights))
    if is_training and not of_a_gpu:
        return _EXPECTED

    def is_cure(other: Trial) -> bool:
        return 2 * len(_weight_conversions(other)) <= len(weights)

    frozen = None if is_training else _frozen(diagnosis, trial)
    is_faster = frozen is not None and evidence.faster_ratio(diagnosis, frozen.name) is not None
    if frozen is not None and is_faster and frozen.kernels is not None and is_cure(frozen):
        return (
            f"freeze the weights, as {frozen.name} does (they must not change afterwards): it {_fewer(frozen)}; "
            f"{evidence.alternative_words(diagnosis, trial, frozen)}"
        )
    other = evidence.clean_alternative(diagnosis, trial, lambda other: other is not frozen and is_cure(other))
    if other is not None:
        return use_instead(diagnosis, trial, other, _fewer(other))
    if of_a_gpu:
        why = ", since a step changes their values and not their layout" if is_training else ""
        wanted = evidence.wanted_format(weights)
        return f"convert the parameters once: model.to(memory_format={wanted}){why}; and measure that"
    if frozen is not None and frozen.status in ("failed", "crashed", "timed_out"):
        return f"freezing converts them once, but {frozen.name} did not run here"
    ratio = None if frozen is None else evidence.ratio_of(diagnosis, frozen.name)
    if frozen is not None and ratio is not None:
        said = "freezing was tried;" if ratio.decided is False else "freezing is no faster here:"
        return f"{said} {evidence.alternative_words(diagnosis, trial, frozen)}"
    ways = frozen_ways(diagnosis)
    advice = (
        "freeze the model: set torch._inductor.config.freezing = True before the first compiled call, under "
        "torch.no_grad() (given as an option of torch.compile it has no effect)"
    )
    measured = "--configurations inductor,inductor-freezing measures it"
    return advised(diagnosis, trial, ways, advice if ways else f"{advice}; {measured}")


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
    if is_training and is_blocked:
        return _EXPECTED
    if is_training:
        return (
            f"convert the parameters once: model.to(memory_format={wanted}) before the optimizer is made, since a step "
            f"changes their values and not their layout; record again{further}"
        )
    freeze = (
        "torch.compile with torch._inductor.config.freezing = True, set before the first compiled call, under "
        "torch.no_grad()"
    )
    if is_blocked:
        return f"pack the weights once: {freeze}"
    return f"convert the parameters once: model.to(memory_format={wanted}); or freeze them: {freeze}{further}"


RULE = document_rule("LD103", "weight-converted-every-call", check, __doc__)
