"""LD103: weights that are converted on every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from layoutdoctor.diagnosis import Conversion, Diagnosis, Finding, Trial
from layoutdoctor.examination.counts import conversions_of, launch_count, sum_of_known
from layoutdoctor.examination.kernels.names import library_of
from layoutdoctor.rules import evidence, wording
from layoutdoctor.rules.advice import Times, alternative_words, refusal, use_instead
from layoutdoctor.rules.base import Rule
from layoutdoctor.words import PROOF_WORDS, count_of, joined, listing, shown

_LOSS_SHARE = 0.05  # from this share on, frozen weights save more than ratios scatter
_EXPECTED = "expected in training, where each step changes the weights; a larger batch makes their share smaller"
_BLOCKED = ("to_blocked", "from_blocked")


def converted_weights(diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yields at most one finding, about the baseline or else eager; other trials would repeat the finding."""
    for trial, weights in evidence.first_showing(evidence.main_or_eager(diagnosis), _weight_conversions):
        is_trace, times = evidence.is_trace(trial), Times(diagnosis)
        training = evidence.has_backward(trial) if is_trace else diagnosis.subject.mode == "training"
        # In inference, a weight that is known only by the order of kernels does not count as a loss.
        sure = [c for c in weights if training or c.confidence != "order"]
        is_dear = evidence.takes_at_least(trial, sum_of_known(c.seconds for c in sure), _LOSS_SHARE)
        if training and not is_dear:
            return
        frozen = None if training else _frozen(diagnosis, trial)
        gain = None if frozen is None else times.over(frozen.name, trial.name)
        is_refuted = gain is not None and not times.is_advisable(gain.name, trial.name)
        is_answered = is_refuted and times.clean_alternative(trial, _is_cure(weights)) is None
        yield LD103.finding(
            trial.name,
            _message(trial, weights),
            _record_again(trial, weights, training=training)
            if is_trace
            else _cure(times, trial, weights, frozen, training=training),
            severity="warning" if is_dear and not training and not is_answered else "note",
            conversions=weights,
        )


def _weight_conversions(trial: Trial) -> list[Conversion]:
    return [conversion for conversion in conversions_of(trial) if conversion.tensor == "weight"]


def _message(trial: Trial, weights: Sequence[Conversion]) -> str:
    guessed = launch_count(c for c in weights if c.confidence == "order")
    is_trace = evidence.is_trace(trial)
    facts = (
        joined((count_of(launch_count(weights), "weight conversion"), wording.owner_words(weights)), " ")
        + ("" if is_trace else " on every call"),
        wording.step_words(weights),
        f"{guessed} of them known {PROOF_WORDS['order']}" if guessed else None,
    )
    cost = wording.cost_words(trial, sum_of_known(c.seconds for c in weights), wording.estimate_words(weights))
    if is_trace:
        cost = wording.conversion_cost_words(trial, weights)
    return joined((joined(facts, ", "), cost), ": ")


def _cure(times: Times, trial: Trial, weights: Sequence[Conversion], frozen: Trial | None, *, training: bool) -> str:
    """
    Suggests frozen weights, or else another advisable trial. If neither helps, says what to measure, or why not.

    A trial helps if it has at most half of the conversions. In training, weight conversions are expected, unless a GPU
    library makes all of them.
    """
    of_a_gpu = all(map(_is_strided_by_gpu_library, weights))
    if training and not of_a_gpu:
        return _EXPECTED

    is_cure = _is_cure(weights)
    if frozen is not None and times.is_advisable(frozen.name, trial.name) and is_cure(frozen):
        return (
            f"freeze the weights (they must not change afterwards): {shown(frozen.name)} "
            f"{_fewer(frozen)}; {alternative_words(times, trial, frozen)}"
        )
    other = times.clean_alternative(trial, lambda other: other is not frozen and is_cure(other))
    if other is not None:
        return use_instead(times, trial, other, _fewer(other))
    if of_a_gpu or trial.is_static:
        why = ", since a step changes their values and not their layout" if training else ""
        return f"{_convert_once(trial, weights)}{why}; measure again"
    tried = [other for other in times.diagnosis.trials if other.configuration.freezes]
    left = [other for other in tried if other.status == "ok" and not is_cure(other)]
    if left:
        return f"frozen weights do not remove them: {listing([f'{shown(one.name)} {_fewer(one)}' for one in left], 2)}"
    if tried or times.diagnosis.subject.device != "cpu":
        no_other = "no configuration with fewer of them is certainly faster"
        return refusal(times, trial, [other.name for other in tried]) or no_other
    return "measure whether frozen weights help: --configurations inductor,inductor-freezing"


def _is_cure(weights: Sequence[Conversion]) -> Callable[[Trial], bool]:
    return lambda other: 2 * launch_count(_weight_conversions(other)) <= launch_count(weights)


def _frozen(diagnosis: Diagnosis, trial: Trial) -> Trial | None:
    """Returns the trial that differs from a compiled trial only by frozen weights; None if there is none."""
    own = trial.configuration
    wanted = msgspec.structs.replace(own, inductor_options={**own.inductor_options, "freezing": True})
    others = (o for o in diagnosis.trials if own.backend == "inductor" and o is not trial)
    return next((o for o in others if msgspec.structs.replace(o.configuration, name=own.name) == wanted), None)


def _fewer(trial: Trial) -> str:
    left = launch_count(_weight_conversions(trial))
    return f"leaves {count_of(left, 'weight conversion')}" if left else "leaves no weight conversions"


def _is_strided_by_gpu_library(conversion: Conversion) -> bool:
    """Whether a GPU's library converts to a memory format of torch, which a parameter can have from the start."""
    is_strided = conversion.direction in ("to_channels_last", "to_contiguous")
    return is_strided and library_of(conversion.kernel or "") in ("cudnn", "miopen")


def _convert_once(trial: Trial, weights: Sequence[Conversion]) -> str:
    wanted = wording.wanted_format(weights)
    if wanted != "torch.contiguous_format" and len(evidence.formats_of_weights(trial, weights)) > 1:
        return f"convert each parameter once, {wording.BY_RANK}"
    return f"convert the parameters once: model.to(memory_format={wanted})"


def _record_again(trial: Trial, weights: Sequence[Conversion], *, training: bool) -> str:
    """Suggests converting the parameters before the next recording; for blocked layouts, a diagnosis of the model."""
    if wording.dearest_direction(weights) in _BLOCKED:
        return _EXPECTED if training else f"to find out whether packed weights help, {wording.DIAGNOSE}"
    is_contiguous = wording.wanted_format(weights) == "torch.contiguous_format"
    further = "" if is_contiguous else wording.miopen_words(weights)
    why = " before the optimizer is made; once is enough, since a step keeps the layout" if training else ""
    return f"{_convert_once(trial, weights)}{why}; record again{further}"


LD103 = Rule("LD103", "weight-converted-every-call", converted_weights)
