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
    ``torch.no_grad()``. Or convert the parameters once, ``model.to(memory_format=torch.channels_last)``, where that
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

from layoutdoctor.kernel_names import library_of
from layoutdoctor.records import Finding
from layoutdoctor.rules import evidence, recorded, wording
from layoutdoctor.rules.base import document_rule
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.records import Conversion, Diagnosis, Severity, Trial

CODE = "LD103"
NAME = "weight-converted-every-call"

# From here on it is a loss: a packed weight would save more than paired rounds on a busy machine scatter by.
_LOSS_SHARE = 0.05


def check(diagnosis: Diagnosis) -> Iterator[Finding]:
    """
    One finding at most: the other configurations repeat what the baseline, or else eager, shows.

    Args:
        diagnosis: Any diagnosis.
    """
    found = recorded.recorded_trial(diagnosis)
    if found is not None:
        yield from _check_trace(found)
        return
    for trial in (evidence.main_trial(diagnosis), diagnosis.measured_trial("eager")):
        weights = _weight_conversions(trial) if trial is not None else ()
        if trial is None or not weights:
            continue
        seconds = evidence.sum_known(conversion.seconds for conversion in weights)
        severity = _severity(diagnosis, evidence.share_of_kernels(trial, seconds))
        if severity is not None:
            yield _finding(diagnosis, trial, weights, severity)
        return


def _weight_conversions(trial: Trial) -> tuple[Conversion, ...]:
    return tuple(conversion for conversion in evidence.conversions_of(trial) if conversion.tensor == "weight")


def _severity(diagnosis: Diagnosis, share: float | None) -> Severity | None:
    is_dear = share is not None and share >= _LOSS_SHARE
    if diagnosis.subject.mode == "training":
        return "note" if is_dear else None
    return "warning" if is_dear else "note"


def _finding(diagnosis: Diagnosis, trial: Trial, weights: tuple[Conversion, ...], severity: Severity) -> Finding:
    dearest = max(weights, key=lambda conversion: (conversion.seconds or 0.0, conversion.bytes_moved or 0))
    seconds = evidence.sum_known(conversion.seconds for conversion in weights)
    cost = wording.cost_words(trial, seconds)
    owners = sorted({conversion.owner for conversion in weights})
    return Finding(
        code=CODE,
        rule=NAME,
        severity=severity,
        configuration=trial.name,
        message=f"{count_of(len(weights), 'weight conversion')} on every call, "
        f"inserted by the {listing(owners)}" + (f": {cost}" if cost is not None else ""),
        suggestion=_suggestion(diagnosis, trial, weights),
        location=dearest.location,
        module=dearest.module,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(conversion.bytes_moved for conversion in weights),
        evidence=tuple(conversion.id for conversion in weights),
    )


def _suggestion(diagnosis: Diagnosis, trial: Trial, weights: tuple[Conversion, ...]) -> str:
    is_training, of_a_gpu = diagnosis.subject.mode == "training", all(map(_is_strided_by_gpu_library, weights))
    if is_training and not of_a_gpu:
        return "expected in training, where each step changes the weights; a larger batch makes it a smaller part"
    other = evidence.clean_alternative(
        diagnosis, trial, lambda candidate: 2 * len(_weight_conversions(candidate)) <= len(weights)
    )
    if other is not None:
        left = len(_weight_conversions(other)) or "no"
        fewer = f"it leaves {left} weight conversion{'' if left == 1 else 's'}"
        return f"use {other.name}: {fewer}; {wording.alternative_words(diagnosis, trial, other)}"
    if of_a_gpu:
        why = ", since a step changes their values and not their layout" if is_training else ""
        return f"convert the parameters once: model.to(memory_format={_wanted(weights)}){why}; and measure that"
    return (
        "freeze the model: set torch._inductor.config.freezing = True before the first compiled call, under "
        "torch.no_grad() (given as an option of torch.compile it has no effect); "
        "--configurations all measures it as inductor-freezing"
    )


def _is_strided_by_gpu_library(conversion: Conversion) -> bool:
    """Whether a library of a GPU makes a memory format of torch's, which a parameter can have from the start."""
    is_strided = conversion.direction in ("to_channels_last", "to_contiguous")
    return is_strided and conversion.kernel is not None and library_of(conversion.kernel) in ("cudnn", "miopen")


def _wanted(weights: tuple[Conversion, ...]) -> str:
    """The memory format that most time goes into making."""
    if recorded.dearest_direction(weights) == "to_contiguous":
        return "torch.contiguous_format"
    return recorded.channels_last_words(len(c.source.shape) for c in weights if c.source is not None)


def _check_trace(trial: Trial) -> Iterator[Finding]:
    """One finding at most; what only the order of kernels calls a weight makes it no loss."""
    weights = _weight_conversions(trial)
    is_training = recorded.is_training(trial)
    seconds = evidence.sum_known(conversion.seconds for conversion in weights)
    proven = evidence.sum_known(conversion.seconds for conversion in weights if conversion.confidence != "order")
    share = evidence.share_of_kernels(trial, seconds if is_training else proven)
    is_dear = share is not None and share >= _LOSS_SHARE
    if not weights or (is_training and not is_dear):
        return
    found = recorded.conversion_places(weights)
    yield Finding(
        code=CODE,
        rule=NAME,
        severity="warning" if is_dear and not is_training else "note",
        configuration=trial.name,
        message=_message_in_trace(trial, weights, found),
        suggestion=_suggestion_in_trace(weights, is_training=is_training),
        location=found[0].location if found else None,
        module=found[0].module if found else None,
        seconds=seconds,
        bytes_moved=evidence.sum_bytes(conversion.bytes_moved for conversion in weights),
        evidence=tuple(conversion.id for conversion in weights),
    )


def _message_in_trace(trial: Trial, weights: tuple[Conversion, ...], found: list[recorded.Place]) -> str:
    owners = sorted({conversion.owner for conversion in weights})
    guessed = recorded.launch_count(c for c in weights if c.confidence == "order")
    facts = [
        count_of(recorded.launch_count(weights), "weight conversion"),
        recorded.step_words(weights),
        f"{guessed} of them known by the order of kernels only" if guessed else None,
        f"inserted by the {listing(owners)}",
    ]
    parts = [recorded.conversion_cost_words(trial, weights), recorded.dearest_words(found)]
    cost = "; ".join(part for part in parts if part is not None)
    return ", ".join(fact for fact in facts if fact is not None) + (f": {cost}" if cost else "")


def _suggestion_in_trace(weights: tuple[Conversion, ...], *, is_training: bool) -> str:
    """By the direction that most of them have: what the library asks for."""
    directions = recorded.dearest_direction(weights)
    wanted, is_contiguous = _wanted(weights), directions == "to_contiguous"
    further = "" if is_contiguous else recorded.miopen_words(weights)
    is_blocked = directions in ("to_blocked", "from_blocked")
    if is_training and is_blocked:
        return "expected in training, where each step changes the weights; a larger batch makes it a smaller part"
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


RULE = document_rule(CODE, NAME, check, __doc__)
