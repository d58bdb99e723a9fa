"""
The first lines of a report: one claim, the lines to paste, and the facts behind the claim.

These lines describe the record and decide nothing. No sentence suggests a run or a comparison that did not take place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from layoutdoctor.diagnosis import Diagnosis, Ratio, Trial
from layoutdoctor.diagnosis.answer import FASTER, INCONCLUSIVE, SLOWER
from layoutdoctor.diagnosis.configurations import AHEAD_OF_TIME, BASELINE, STATIC_SIZES, SYMBOLIC_SIZES
from layoutdoctor.examination.advice.applying import compile_words
from layoutdoctor.examination.advice.choice import (
    EQUALITY,
    FEWEST_STARTS,
    WIDEST,
    eligible_names,
    is_crowded,
    is_far_off,
    speed_change,
    times_less_exact,
    undecided,
    wrong_baseline,
)
from layoutdoctor.examination.counts import convolution_count, irrelevance
from layoutdoctor.reports.sections.account import conversions_sentence, decision_sentence, why_sentence
from layoutdoctor.reports.sections.rows import error_cell, tensors_in_short
from layoutdoctor.reports.sections.wording import (
    baseline_phrase,
    clean,
    clean_line,
    clean_name,
    failure_clause,
    format_error,
    is_from_python,
    shown_name,
)
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import be, count_of, gain_words, listing, phrase

MOST_NAMED = 4
WORTH_A_LINE_CORES = 0.3
"""Number of cores used by other programs above which a report mentions them."""
_MANY_CORES = 0.5
"""Number of cores used by other programs above which ratios on a CPU may be far from those on a quiet machine."""
WORTH_A_LINE_CHANGE = 1.3
"""Factor of a change of the machine's speed above which a report mentions the change."""


@dataclass(frozen=True, slots=True)
class ReportAnswer:
    """
    The first lines of a report, enough for a reader who stops after five lines.

    Attributes:
        how: Lines to paste; empty if there is nothing to change.
        notes: The facts behind the claim: a label, such as ``Why``, and a sentence.
        is_short: True if layouts do not matter to this model, so that the report ends here.
    """

    claim: str
    how: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    is_short: bool = False


class Situation(NamedTuple):
    """
    The kind of answer that a diagnosis of a model gives.

    Attributes:
        claim: Function that makes the first sentence of the report.
        in_table: Words for the table of several models; empty if the ratio says enough.
        why: Label of the sentence on the default's time.
    """

    claim: Callable[[Diagnosis], str]
    in_table: str = ""
    why: str = "Costs"


def build_answer(diagnosis: Diagnosis) -> ReportAnswer:
    """Returns the answer of a model's diagnosis, which may be interrupted."""
    situation = situation_of(diagnosis)
    claim = situation.claim(diagnosis)
    if situation is IRRELEVANT and _is_harmless(diagnosis):
        return ReportAnswer(claim, is_short=True)
    notes = _static_notes(diagnosis) if situation is STATIC else _notes(diagnosis, situation)
    return ReportAnswer(claim, _lines_to_paste(diagnosis, situation), tuple(note for note in notes if note[1]))


def situation_of(diagnosis: Diagnosis) -> Situation:
    """Returns the situation of a model's diagnosis; a recorded trace has none of these situations."""
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    if diagnosis.subject.target is not None:
        return STATIC
    if comparison is None:
        skipped = all(trial.status == "skipped" and trial.failure is None for trial in diagnosis.trials)
        return IRRELEVANT if skipped and _has_no_convolution(diagnosis) else NOT_COMPARED
    if not eligible_names(diagnosis.trials):
        return DIFFERENT
    ratio = _claimed(diagnosis)
    is_faster = ratio is not None and ratio.verdict == FASTER
    if advice is not None and advice.configuration not in (None, comparison.baseline):
        return FOUND if is_faster and wrong_baseline(diagnosis) is None else DIFFERENT
    if advice is None and is_faster:
        return FOUND
    if irrelevance(diagnosis) is not None:
        return IRRELEVANT
    if is_faster:
        return TOO_LITTLE
    if ratio is None or ratio.verdict != INCONCLUSIVE:
        return NOTHING_FASTER
    crowded = is_crowded(diagnosis.subject.device, diagnosis.environment, comparison.other_cores)
    if crowded or ratio.high > WIDEST * ratio.low:
        return BUSY
    return UNCERTAIN if ratio.median > 1 + EQUALITY else NOTHING_FASTER


def _is_harmless(diagnosis: Diagnosis) -> bool:
    """Whether the report may end after the claim: all ran, no rule found a loss, and no package was requested."""
    ran = all(trial.status in ("ok", "same_as") or trial.failure is None for trial in diagnosis.trials)
    ran = ran and not any(trial.configuration.ahead_of_time for trial in diagnosis.trials)
    return ran and diagnosis.interrupted is None and all(one.severity == "note" for one in diagnosis.findings)


def _has_no_convolution(diagnosis: Diagnosis) -> bool:
    count = convolution_count(diagnosis)
    return (diagnosis.subject.convolution_module_count if count is None else count) == 0


def _claimed(diagnosis: Diagnosis) -> Ratio | None:
    """
    Returns the ratio that the claim names; None if there is no ratio.

    Normally, this is the ratio of the recommended configuration. If two configurations compete for the recommendation,
    it is the ratio of the less demanding one, or of the faster one if the less demanding one gains hardly anything.
    Without a recommendation, it is the largest ratio with right outputs. Configurations that ran in several processes
    then come before configurations that ran in one.
    """
    if diagnosis.speedup is not None:
        return diagnosis.speedup
    if diagnosis.comparison is not None and (names := undecided(diagnosis.trials, diagnosis.comparison)):
        least_demanding, fastest = (diagnosis.ratios[name] for name in names)
        return least_demanding if least_demanding.median > 1 + EQUALITY else fastest
    eligible = eligible_names(diagnosis.trials)
    right = [ratio for name, ratio in diagnosis.ratios.items() if name in eligible]
    started = [one for one in right if one.start_ratios]
    return max(started or right, key=lambda one: one.median, default=None)


def _default(diagnosis: Diagnosis) -> str:
    name, trial = diagnosis.baseline_name, diagnosis.find_trial(diagnosis.baseline_name)
    given = "" if trial is None or name != BASELINE else compile_words(trial.configuration)
    return f"torch.compile with {clean(given)}" if given else baseline_phrase(name)


def _claim_faster(diagnosis: Diagnosis) -> str:
    ratio = _claimed(diagnosis)
    if ratio is None:
        return ""
    gain = gain_words(ratio, _default(diagnosis))
    keep = "" if ratio.verdict == FASTER else f"; keep {_default(diagnosis)}"
    return f"{gain[0].upper()}{gain[1:]}: {shown_name(ratio.name)}{keep}"


def _claim_nothing_faster(diagnosis: Diagnosis) -> str:
    best = _claimed(diagnosis)
    if best is None:
        return f"Besides {_default(diagnosis)}, no configuration with right outputs was measured"
    speed = f"{shown_name(best.name)}, {gain_words(best)}"
    if best.verdict == SLOWER and best.median < 1 - EQUALITY:
        return f"{_default(diagnosis)} is faster than anything else tried; next best: {speed}"
    return f"{_default(diagnosis)} is as fast as anything tried; next best: {speed}"


def _claim_different(diagnosis: Diagnosis) -> str:
    if diagnosis.recommended_name is None:
        return "Nothing can be recommended: all outputs differ from the reference"
    speed = phrase(", {}", diagnosis.speedup, gain_words)
    trial = wrong_baseline(diagnosis) or diagnosis.baseline
    verb = "gives wrong outputs" if trial is not None and is_far_off(trial) else "is less exact than allowed"
    return f"{_default(diagnosis)} {verb}: use {shown_name(diagnosis.recommended_name)}{speed}"


def _claim_irrelevant(diagnosis: Diagnosis) -> str:
    reason = None if _has_no_convolution(diagnosis) else irrelevance(diagnosis)
    claim = (
        f"Layouts do not matter here: {reason}" if reason else "The model runs no convolution: layouts do not matter"
    )
    trial = diagnosis.baseline
    if trial is None or trial.seconds is None:
        return claim
    return f"{claim}. {_default(diagnosis)} takes {format_seconds(trial.seconds)} per call"


def _claim_not_compared(diagnosis: Diagnosis) -> str:
    measured = [
        f"{shown_name(trial.name)}, {format_seconds(trial.seconds)} per call"
        for trial in diagnosis.trials
        if trial.seconds is not None
    ]
    if measured:
        others = {trial.status for trial in diagnosis.trials if trial.measurement is None}
        is_same = others == {"same_as"} and diagnosis.interrupted is None
        start = "All configurations run the same code" if is_same else "Nothing was compared"
        return f"{start}: {'; '.join(measured[:MOST_NAMED])}"
    failed = next((trial for trial in diagnosis.trials if trial.status not in ("ok", "same_as")), None)
    return "Nothing was measured" + phrase(": {}", failed, lambda one: f"{shown_name(one.name)} {failure_clause(one)}")


def _claim_static(diagnosis: Diagnosis) -> str:
    target = clean_name(diagnosis.subject.target or "")
    lowered = [trial for trial in diagnosis.trials if trial.status == "ok"]
    if not lowered:
        return f"Static: no graph could be lowered for {target}"
    graphs = count_of(sum(len(trial.graphs) for trial in lowered), "graph")
    configurations = count_of(len(lowered), "configuration")
    start = f"Static: {graphs} of {configurations} lowered for {target} without the device"
    return f"{start}: there are no times, and cuDNN's own conversions are not seen"


FOUND = Situation(_claim_faster, why="Why")
UNCERTAIN = Situation(_claim_faster, "something looks faster, not certain", why="Why")
BUSY = Situation(lambda _: "Nothing can be said: the machine was busy", "nothing can be said: the machine was busy")
TOO_LITTLE = Situation(
    lambda diagnosis: f"Only {_claim_faster(diagnosis)}; keep {_default(diagnosis)}", "too little is gained by a change"
)
NOTHING_FASTER = Situation(_claim_nothing_faster, "nothing is faster")
DIFFERENT = Situation(_claim_different, "outputs of the default differ")
IRRELEVANT = Situation(_claim_irrelevant, "layouts do not matter")
NOT_COMPARED = Situation(_claim_not_compared, "nothing compared")
STATIC = Situation(_claim_static, "static")


def _lines_to_paste(diagnosis: Diagnosis, situation: Situation) -> tuple[str, ...]:
    """Returns complete, runnable lines, which end in a call of the model; empty if nothing is to change."""
    advice = diagnosis.recommendation
    if advice is None or not advice.how:
        return ()
    lines = [clean_line(line) for line in advice.how.splitlines()]
    trial = diagnosis.find_trial(advice.configuration)
    is_eager = trial is not None and trial.configuration.backend == "eager"
    if is_eager and situation is FOUND and diagnosis.baseline_name == BASELINE:
        lines[-1] += "  # torch.compile adds nothing here"
    return tuple(lines)


def _notes(diagnosis: Diagnosis, situation: Situation) -> Iterator[tuple[str, str]]:
    free = diagnosis.without_freezing
    yield situation.why, why_sentence(diagnosis)
    if free is not None:
        best = f"keep {_default(diagnosis)}"
        if free.speedup is not None:
            best = f"{shown_name(free.configuration)}, {gain_words(free.speedup)}"
        yield "Frozen", f"weights are fixed; without frozen weights: {best}"
    yield "Package", _package_sentence(diagnosis)
    yield "Sizes", _sizes_sentence(diagnosis)
    yield "Accuracy", "; ".join(_accuracy(diagnosis))
    yield "Sure?", _certainty(diagnosis, situation)
    if situation is BUSY:
        yield "Next", "run again on a quiet machine, or measure longer (--budget)"
    yield "Machine", _machine_sentence(diagnosis)
    if diagnosis.interrupted is not None and not is_from_python(diagnosis):
        yield "Go on", "if this run was started with --resume DIR, the same command continues it"


def _machine_sentence(diagnosis: Diagnosis) -> str:
    """Says how busy other programs were and how the machine's speed changed, if that may have widened the intervals."""
    comparison, default = diagnosis.comparison, diagnosis.baseline
    cores = comparison.other_cores or 0.0 if comparison is not None else 0.0
    found = [f"other programs used {cores:.1f} cores"] if cores > WORTH_A_LINE_CORES else []
    if cores > _MANY_CORES and diagnosis.subject.device == "cpu":
        found.append("on a quiet machine ratios may be nearer to 1")
    if default is not None and default.measurement is not None:
        change = speed_change(default.measurement)
        if change > WORTH_A_LINE_CHANGE:
            found.append(f"its speed changed by {format_ratio(change)}; the times are from its fast phase")
    return "; ".join(found)


def _package_sentence(diagnosis: Diagnosis) -> str:
    """Compares AOTInductor's default with torch.compile's; empty if one of the two was not compiled."""
    of_torch, of_package = (diagnosis.measured_trial(name) for name in (BASELINE, f"{AHEAD_OF_TIME}{BASELINE}"))
    if of_torch is None or of_package is None or not of_torch.status == of_package.status == "ok":
        return ""
    said = []
    if (own := decision_sentence(of_package, in_full=True)) != (other := decision_sentence(of_torch, in_full=True)):
        said.append(f"{own or 'no layout decision'} (torch.compile: {other or 'none'})")
    own, other = (listing(tensors_in_short(one), None) or "nothing" for one in (of_package, of_torch))
    if own != other:
        said.append(f"converts {own} (torch.compile: {other})")
    return f"AOTInductor's default: {'; '.join(said) or 'the same decision and conversions as torch.compile'}"


def _accuracy(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields the errors of the recommended configuration, of a wrong baseline, and of faster wrong configurations."""
    trial = diagnosis.measured_trial(diagnosis.recommended_name)
    if trial is not None:
        yield _error_words(trial)
        free = diagnosis.without_freezing
        unfrozen = diagnosis.measured_trial(free.configuration) if free is not None else None
        if times_less_exact(trial) and unfrozen is not None and not times_less_exact(unfrozen):
            yield f"without frozen weights: {error_cell(unfrozen.equivalence)} ({shown_name(unfrozen.name)})"
    wrong = wrong_baseline(diagnosis)
    if wrong is not None and wrong is not trial:
        yield f"{baseline_phrase(wrong.name)}: {_error_words(wrong)}"
    for other in diagnosis.trials:
        ratio = diagnosis.ratios.get(other.name)
        if other.is_wrong and ratio is not None and ratio.median > 1 and other.name != diagnosis.recommended_name:
            yield f"{shown_name(other.name)}: {gain_words(ratio)}, but with wrong outputs: {_error_words(other)}"


def _error_words(trial: Trial) -> str:
    """Says how far the outputs are from the reference, beside eager mode's own error."""
    seen = trial.equivalence
    detail = phrase(": {}", seen.detail if seen is not None else None, clean)
    if seen is None or seen.status == "not_checked":
        return f"outputs were not compared with a reference{detail}"
    gradients = ", gradients included" if seen.gradients_checked else ""
    if seen.error is None:
        return f"outputs are {seen.status}{detail}{gradients}"
    words = f"largest error against {clean_name(seen.reference or 'the reference')} {format_error(seen.error)}"
    words += phrase(", eager mode itself {}", seen.eager_relative_error, format_error)
    times = times_less_exact(trial)
    if times is not None:
        words = f"{times:.{0 if times >= 10 else 1}f} times less exact than eager mode: {words}"
    return f"{words}{gradients}"


def _certainty(diagnosis: Diagnosis, situation: Situation) -> str:
    """Says how many processes or rounds support the ratio of the claim."""
    ratio = _claimed(diagnosis)
    if ratio is None:
        return ""
    if not ratio.start_ratios:
        more = "; a longer measurement (--budget) narrows the interval" if situation is UNCERTAIN else ""
        return f"{count_of(ratio.round_count, 'round')} in one process, not repeated in a fresh process{more}"
    shown = ", ".join(f"{one:.2f}" for one in ratio.start_ratios)
    if situation is BUSY:
        shown = f"{shown_name(ratio.name)}: {shown}"
    if len(ratio.start_ratios) == FEWEST_STARTS - 1:
        shown += "; the first process counts as one more"
    starts = count_of(len(ratio.start_ratios), "fresh process", "fresh processes")
    if situation is not FOUND:
        return f"{starts} ({shown})"
    return f"{sum(one > 1 for one in ratio.start_ratios)} of {starts} agree ({shown})"


def _sizes_sentence(diagnosis: Diagnosis) -> str:
    """Names the symbolic sizes of the inputs and the compiler's decision for them; empty if no size is symbolic."""
    named = [
        f"dimension {number} of {clean_name(tensor.name or 'the input')} (here {size})"
        for tensor in diagnosis.subject.inputs
        for number, size in enumerate(tensor.shape)
        if number in tensor.symbolic
    ]
    if not named:
        return ""
    words = [f"{listing(named)} {be(len(named))} symbolic: no other size was diagnosed"]
    for name, sizes in ((SYMBOLIC_SIZES, "as symbols"), (STATIC_SIZES, "as numbers")):
        other = diagnosis.find_trial(name)
        if other is not None and other.status == "ok":
            words.append(f"with sizes {sizes}, {decision_sentence(other, in_full=True)}")
    return "; ".join(words)


def _static_notes(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yields the compiler's decision, the conversions in the graphs, and the next step."""
    shown = diagnosis.find_trial(BASELINE)
    if shown is None or shown.status != "ok":
        shown = next((trial for trial in diagnosis.trials if trial.status == "ok"), None)
    if shown is not None:
        count, cards = diagnosis.subject.convolution_module_count, shown.decisions
        is_outside = bool(count and cards) and len(cards) == len(shown.graphs)
        is_outside = is_outside and not any(card.convolution_count for card in cards)
        outside = f"no graph holds any of the model's convolutions ({count}), so their decision is unknown"
        yield "Decision", outside if is_outside else decision_sentence(shown, in_full=True)
        yield "Converts", conversions_sentence(shown) or "no conversion in the graphs"
    yield "Sizes", _sizes_sentence(diagnosis)
    yield "Next", "measure on such a GPU: the same call on device cuda, without --lower-for"
