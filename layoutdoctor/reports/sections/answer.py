"""
The first lines of a report: one claim, the lines to paste, and what the claim rests on.

They word what the record says and decide nothing: if nothing was run or compared, nothing sounds measured.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, INCONCLUSIVE
from layoutdoctor.examination.choice import KEEPS_MEMORY, eligible_names, is_far_off, wrong_baseline
from layoutdoctor.examination.costs import convolution_count, irrelevance
from layoutdoctor.examination.ratios import EQUALITY
from layoutdoctor.reports.sections.account import conversions_sentence, decision_sentence, why_sentences
from layoutdoctor.reports.sections.wording import (
    baseline_phrase,
    clean,
    clean_line,
    clean_name,
    failure_clause,
    find_ratio,
    format_error,
    is_from_python,
    shown_name,
)
from layoutdoctor.units import format_ratio, format_seconds
from layoutdoctor.words import count_of, listing, ratio_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from layoutdoctor.diagnosis.records import Diagnosis, Ratio, Trial

Situation = Literal[
    "faster",
    "looks faster",
    "nothing faster",
    "default differs",
    "all differ",
    "no convolution",
    "irrelevant",
    "not compared",
    "nothing measured",
    "static",
]
MOST_HOW_LINES = 40
MOST_NAMED = 4
WORTH_A_LINE_CORES = 0.3
"""Cores that other programs used; fewer are not mentioned."""
UNKEPT_DIFFERENCE = 1.1
"""The allocator is mentioned if a call is slower or faster by this factor with glibc's default."""
MANY_TIMES_EAGER = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a reader who stops after five lines knows.

    Attributes:
        how: Lines to paste; empty if there is nothing to change.
        notes: What the claim rests on: a label, such as ``Why``, and a sentence.
        is_short: True if layouts do not matter to this model, so that the report ends here.
    """

    claim: str
    how: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    is_short: bool = False


def build_answer(diagnosis: Diagnosis) -> Answer:
    """The answer that the diagnosis of a model holds, also an interrupted one."""
    situation = situation_of(diagnosis)
    claim = _CLAIMS[situation](diagnosis)
    is_short = situation in ("no convolution", "irrelevant") and _is_harmless(diagnosis)
    if situation == "static":
        return Answer(claim, notes=tuple(_static_notes(diagnosis)))
    notes = [] if is_short else [note for note in _notes(diagnosis, situation) if note[1]]
    return Answer(claim, _lines_to_paste(diagnosis, situation), tuple(notes), is_short)


def situation_of(diagnosis: Diagnosis) -> Situation:
    """Which claim fits; a recorded trace has none of these."""
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    if diagnosis.subject.target is not None:
        return "static"
    if not any(trial.measurement is not None for trial in diagnosis.trials):
        failed = any(trial.status not in ("ok", "same_as", "skipped") for trial in diagnosis.trials)
        return "no convolution" if not failed and _has_no_convolution(diagnosis) else "nothing measured"
    if comparison is None:
        return "not compared"
    if not eligible_names(diagnosis.trials):
        return "all differ"
    ratio = _claimed(diagnosis)
    if advice is not None and advice.configuration not in (None, comparison.baseline):
        is_faster = ratio is not None and ratio.verdict == FASTER
        return "faster" if is_faster and wrong_baseline(diagnosis) is None else "default differs"
    if advice is None and ratio is not None and ratio.verdict == FASTER:
        return "faster"
    if irrelevance(diagnosis) is not None:
        return "no convolution" if _has_no_convolution(diagnosis) else "irrelevant"
    best = _best(diagnosis)
    looks_faster = best is not None and best.verdict == INCONCLUSIVE and best.median > 1 + EQUALITY
    return "looks faster" if looks_faster else "nothing faster"


def _is_harmless(diagnosis: Diagnosis) -> bool:
    """Whether the report may end after the claim: all ran to its end with right outputs, and no rule found a loss."""
    ran = all(trial.status in ("ok", "same_as") or trial.failure is None for trial in diagnosis.trials)
    different = any(t.equivalence is not None and t.equivalence.status == "different" for t in diagnosis.trials)
    notes = all(finding.severity == "note" and finding.code != _SLOW_CODE for finding in diagnosis.findings)
    recorded = all(trial.kernels is not None for trial in diagnosis.trials if trial.status == "ok")
    return ran and recorded and notes and not different and diagnosis.interrupted is None


_SLOW_CODE = "LD305"  # most of what such a model loses, though no layout brings it back


def _has_no_convolution(diagnosis: Diagnosis) -> bool:
    count = convolution_count(diagnosis)
    return (diagnosis.subject.convolution_module_count if count is None else count) == 0


def _best(diagnosis: Diagnosis) -> Ratio | None:
    """The largest ratio among the configurations with right outputs; None if nothing was compared."""
    eligible = eligible_names(diagnosis.trials)
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    return max((one for one in ratios if one.name in eligible), key=lambda one: one.median, default=None)


def _claimed(diagnosis: Diagnosis) -> Ratio | None:
    """The ratio that the claim names: that of the recommended configuration, else the largest."""
    advice = diagnosis.recommendation
    return advice.speedup if advice is not None and advice.speedup is not None else _best(diagnosis)


def _default(diagnosis: Diagnosis) -> str:
    return baseline_phrase(diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE)


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def _claim_faster(diagnosis: Diagnosis) -> str:
    ratio = _claimed(diagnosis)
    if ratio is None:
        return ""
    gain = f"{format_ratio(ratio.median)} faster than {_default(diagnosis)} ({_interval(ratio)})"
    is_certain = ratio.verdict == FASTER
    return f"{'' if is_certain else 'Looks '}{gain}{'' if is_certain else ', not certain'}: {shown_name(ratio.name)}"


def _claim_nothing_faster(diagnosis: Diagnosis) -> str:
    best = _best(diagnosis)
    if best is None:
        return f"Nothing else with right outputs was measured beside {_default(diagnosis)}"
    number = f"{format_ratio(best.median)}, {_interval(best)}: {shown_name(best.name)}"
    if best.median < 1 - EQUALITY:
        return f"{_default(diagnosis)} is faster than anything else tried (next {number})"
    return f"{_default(diagnosis)} is as fast as anything tried (best {number})"


def _claim_default_differs(diagnosis: Diagnosis) -> str:
    advice, wrong = diagnosis.recommendation, wrong_baseline(diagnosis)
    use = shown_name(advice.configuration or "") if advice is not None else ""
    ratio = advice.speedup if advice is not None else None
    speed = "" if ratio is None else f", {format_ratio(ratio.median)} its speed ({_interval(ratio)})"
    trial = wrong or diagnosis.baseline
    what = "computes something else" if trial is not None and is_far_off(trial) else "is less exact than allowed"
    return f"{_default(diagnosis)} {what}: use {use}{speed}"


def _default_time(diagnosis: Diagnosis) -> str:
    trial = diagnosis.baseline
    if trial is None or trial.measurement is None:
        return ""
    return f". {_default(diagnosis)} takes {format_seconds(trial.measurement.median_seconds)} per call"


def _claim_not_compared(diagnosis: Diagnosis) -> str:
    measured = [
        f"{shown_name(trial.name)}, {format_seconds(trial.measurement.median_seconds)} per call"
        for trial in diagnosis.trials
        if trial.measurement is not None
    ]
    if len(measured) > 1:
        return f"Not compared yet: {'; '.join(measured[:MOST_NAMED])}"
    others = {trial.status for trial in diagnosis.trials if trial.measurement is None}
    if others == {"same_as"} and diagnosis.interrupted is None:
        return f"All configurations run the same code: {measured[0]}"
    return f"Only one configuration was measured: {measured[0]}"


def _claim_nothing_measured(diagnosis: Diagnosis) -> str:
    failed = next((trial for trial in diagnosis.trials if trial.status not in ("ok", "same_as")), None)
    return f"Nothing was measured{f': {shown_name(failed.name)} {failure_clause(failed)}' if failed else ''}"


def _claim_static(diagnosis: Diagnosis) -> str:
    target = clean_name(diagnosis.subject.target or "")
    lowered = [trial for trial in diagnosis.trials if trial.status == "ok"]
    if not lowered:
        return f"Static: no graph could be lowered for {target}"
    graphs = count_of(sum(len(trial.graphs) for trial in lowered), "graph")
    configurations = count_of(len(lowered), "configuration")
    return f"Static: {graphs} of {configurations} lowered for {target} without the device: no times"


_CLAIMS: Mapping[Situation, Callable[[Diagnosis], str]] = {
    "faster": _claim_faster,
    "looks faster": _claim_faster,
    "nothing faster": _claim_nothing_faster,
    "default differs": _claim_default_differs,
    "all differ": lambda _: "Nothing can be recommended: all outputs differ from the reference",
    "no convolution": lambda it: f"The model has no convolution: layouts do not matter here{_default_time(it)}",
    "irrelevant": lambda it: f"Layouts do not matter here: {irrelevance(it)}{_default_time(it)}",
    "not compared": _claim_not_compared,
    "nothing measured": _claim_nothing_measured,
    "static": _claim_static,
}


def _lines_to_paste(diagnosis: Diagnosis, situation: Situation) -> tuple[str, ...]:
    """Complete and runnable: they end in a call of the model."""
    advice, comparison = diagnosis.recommendation, diagnosis.comparison
    if advice is None or not advice.how or situation not in ("faster", "default differs"):
        return ()
    lines = [clean_line(line) for line in advice.how.splitlines()[:MOST_HOW_LINES]]
    if not any("model(" in line for line in lines):
        trial = diagnosis.find_trial(advice.configuration or "")
        beats_compiled = situation == "faster" and comparison is not None and comparison.baseline == BASELINE
        adds_nothing = beats_compiled and trial is not None and trial.configuration.backend == "eager"
        lines.append(f"y = model(x){'  # torch.compile adds nothing here' if adds_nothing else ''}")
    return tuple(lines)


def _notes(diagnosis: Diagnosis, situation: Situation) -> Iterator[tuple[str, str]]:
    comparison, advice = diagnosis.comparison, diagnosis.recommendation
    chosen = advice.configuration if advice is not None else None
    why = "Why" if situation in ("faster", "looks faster") else "Costs"
    yield why, "; ".join(why_sentences(diagnosis, chosen))
    if advice is not None and advice.without_freezing is not None:
        free = advice.without_freezing
        best = "nothing is faster" if free.speedup is None else shown_name(free.configuration)
        number = "" if free.speedup is None else f", {ratio_words(free.speedup)}"
        yield "Frozen", f"weights are fixed; without freezing: {best}{number}"
    yield "Run with", _allocator_sentence(diagnosis)
    yield "Accuracy", "; ".join(_accuracy(diagnosis, chosen))
    yield "Sure?", _certainty(diagnosis, situation)
    cores = comparison.other_cores if comparison is not None else None
    if cores is not None and cores > WORTH_A_LINE_CORES:
        yield "Machine", f"other programs used {cores:.1f} cores meanwhile: intervals are wider for it"
    if diagnosis.interrupted is not None and not is_from_python(diagnosis):
        yield "Go on", "the same command with --resume DIR goes on from there, if it was started with --resume DIR"


def _allocator_sentence(diagnosis: Diagnosis) -> str:
    """How the process keeps its memory, if a call takes another time with glibc's default; else empty."""
    default, chosen = diagnosis.baseline, diagnosis.fastest
    slower = {trial.name: _unkept_factor(trial) for trial in (default, chosen) if trial is not None}
    known = [factor for factor in slower.values() if factor is not None]
    if default is None or not any(max(factor, 1 / factor) >= UNKEPT_DIFFERENCE for factor in known):
        return ""
    effects = []
    if chosen is not None and chosen is not default and default.measurement and chosen.measurement:
        pairs = zip(default.measurement.unkept_seconds, chosen.measurement.unkept_seconds, strict=False)
        ratios = [mine / theirs for mine, theirs in pairs]
        if ratios:
            spread = f"{format_ratio(min(ratios))} to {format_ratio(max(ratios))}"
            effects.append(f"page faults decide ({spread}, process by process)")
    factor = slower[default.name]
    if factor is not None and max(factor, 1 / factor) >= UNKEPT_DIFFERENCE:
        word = "slower" if factor > 1 else "faster"
        effects.append(f"the default is {format_ratio(max(factor, 1 / factor))} {word} than here")
    variables = " ".join(f"{name}={value}" for name, value in KEEPS_MEMORY.items())
    return f"{variables}: without it {', and '.join(effects)}"


def _unkept_factor(trial: Trial) -> float | None:
    """How many times longer a call takes with glibc's default allocator; None if that was not measured."""
    measured = trial.measurement
    if measured is None or not measured.unkept_seconds:
        return None
    return statistics.median(measured.unkept_seconds) / measured.median_seconds


def _accuracy(diagnosis: Diagnosis, chosen: str | None) -> Iterator[str]:
    """The error of what is recommended, and what is faster but computes something else."""
    trial = diagnosis.measured_trial(chosen) if chosen is not None else None
    seen = trial.equivalence if trial is not None else None
    if trial is not None and (seen is None or seen.status == "not_checked"):
        detail = f": {clean(seen.detail, 200)}" if seen is not None and seen.detail else ""
        yield f"outputs were not compared with a reference{detail}"
    elif trial is not None and seen is not None:
        gradients = ", gradients included" if seen.gradients_checked else ""
        yield f"{_error_words(trial) or f'outputs are {seen.status}'}{gradients}"
    wrong = wrong_baseline(diagnosis)
    if wrong is not None and wrong is not trial and _error_words(wrong):
        yield f"{baseline_phrase(wrong.name)}: {_error_words(wrong)}"
    for other in diagnosis.trials:
        ratio = find_ratio(diagnosis, other.name)
        differs = other.equivalence is not None and other.equivalence.status == "different"
        if differs and ratio is not None and ratio.median > 1 and other.name != chosen:
            yield f"{shown_name(other.name)} is {ratio_words(ratio)}, but not right: {_error_words(other)}"


def _error_words(trial: Trial) -> str:
    """How far outputs are from the reference, with eager mode's own error beside it; empty if there is no number."""
    seen = trial.equivalence
    if seen is None:
        return ""
    against = f"against {clean_name(seen.reference or 'the reference')}"
    error, own = seen.relative_error, seen.eager_relative_error
    if error is not None:
        words = f"largest error {against} {format_error(error)}"
        if own is None:
            return words
        times = f", {error / own:.0f} times eager's own error" if own and error > MANY_TIMES_EAGER * own else ""
        return f"{words}, eager mode itself {format_error(own)}{times}"
    if seen.max_abs_error is None:
        return clean(seen.detail, 200) if seen.detail else ""
    allowed = "" if seen.tolerance is None else f" ({format_error(seen.tolerance)} is allowed)"
    return f"largest error {against} {format_error(seen.max_abs_error)}{allowed}"


def _certainty(diagnosis: Diagnosis, situation: Situation) -> str:
    """What the ratio of the claim rests on."""
    ratio = _claimed(diagnosis)
    if ratio is None:
        return ""
    if not ratio.start_ratios:
        more = "; a longer measurement (--budget) narrows the interval" if situation == "looks faster" else ""
        return f"{count_of(ratio.round_count, 'round')} in one process, no fresh process{more}"
    shown = ", ".join(f"{one:.2f}" for one in ratio.start_ratios)
    starts = count_of(len(ratio.start_ratios), "fresh process", "fresh processes")
    if situation != "faster":
        return f"{starts} ({shown})"
    return f"{sum(one > 1 for one in ratio.start_ratios)} of {starts} agree ({shown})"


def _static_notes(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """What the compiler decided, what the graphs prove, and what to do next."""
    lowered = [trial for trial in diagnosis.trials if trial.status == "ok"]
    shown = next((trial for trial in lowered if trial.name == BASELINE), next(iter(lowered), None))
    if shown is not None:
        yield "Decision", decision_sentence(shown, in_full=True)
        yield "Converts", conversions_sentence(shown) or "no conversion in the graphs"
        fused = sum(c.fused and c.direction != "none" for graph in shown.graphs for c in graph.conversions)
        if fused:
            yield "Fused", f"{count_of(fused, 'further conversion')} in kernels that compute as well"
    failed = [trial for trial in diagnosis.trials if trial.status not in ("ok", "same_as", "skipped")]
    if failed:
        yield "Failed", listing((f"{shown_name(t.name)} {failure_clause(t)}" for t in failed), MOST_NAMED)
    yield "Next", "on such a GPU, measure: the same call without --target"
