"""
The first lines of a report: what to do, how sure that is, and what is wasted now.

Faces the view; imports records, units and the sums only. It words what the record says and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.costs import convolution_count, counted_conversions, irrelevance, sum_seconds
from layoutdoctor.configurations import BASELINE
from layoutdoctor.records import FASTER, NO_DIFFERENCE, SLOWER, Equivalence
from layoutdoctor.reports.sections.costs import is_measured, waste_of
from layoutdoctor.reports.sections.rows import failure_clause, find_ratio
from layoutdoctor.reports.sections.wording import (
    STATUS_WORDS,
    clean,
    clean_line,
    clean_name,
    count_of,
    cut_list,
    format_error,
    in_words,
    share_of,
)
from layoutdoctor.units import format_bytes, format_ratio, format_seconds, format_significant

if TYPE_CHECKING:
    from layoutdoctor.records import Comparison, Diagnosis, Recommendation, Trial

MOST_NAMED = 6
MOST_HOW_LINES = 40


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a reader who stops after five lines knows.

    Attributes:
        headline: The answer in one sentence.
        how: Lines to paste; empty where there is nothing to change.
        lines: What the answer rests on, and what is wasted now.
        is_short: True where layouts do not matter to this model, so that the report ends here.
    """

    headline: str
    how: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    is_short: bool = False


def build_answer(diagnosis: Diagnosis) -> Answer:
    """
    The answer that a diagnosis holds.

    Args:
        diagnosis: Any diagnosis, also an interrupted one.
    """
    measured = [trial for trial in diagnosis.trials if is_measured(trial)]
    if not measured:
        return _nothing_measured(diagnosis)
    if diagnosis.comparison is None:
        return _nothing_compared(diagnosis, measured)
    recommendation = diagnosis.recommendation
    if recommendation is None or diagnosis.interrupted is not None or not diagnosis.comparison.fastest:
        return _no_recommendation(diagnosis, diagnosis.comparison)
    if recommendation.configuration in (None, diagnosis.comparison.baseline):
        reason = irrelevance(diagnosis)
        if reason is not None:
            return _layout_is_irrelevant(diagnosis, diagnosis.comparison, reason)
        return _keep_baseline(diagnosis, diagnosis.comparison)
    return _change(diagnosis, diagnosis.comparison, recommendation)


def baseline_phrase(name: str) -> str:
    """
    The baseline as a person calls it.

    Args:
        name: The configuration's name.
    """
    return "torch.compile's default" if name == BASELINE else clean_name(name)


def _nothing_measured(diagnosis: Diagnosis) -> Answer:
    failures = [
        f"{clean_name(t.name)} {failure_clause(t)}" for t in diagnosis.trials if t.status not in ("ok", "same_as")
    ]
    lines = [f"No result: {failures[0]}"] if failures else []
    if len(failures) > 1:
        lines.append(f"{count_of(len(failures) - 1, 'other configuration')} had no result either")
    ran = [trial.name for trial in diagnosis.trials if trial.status == "ok"]
    costs = _cost_lines(diagnosis, BASELINE if BASELINE in ran else ran[0]) if ran else ()
    return Answer("Nothing could be concluded: no configuration was measured", lines=(*lines, *costs))


def _nothing_compared(diagnosis: Diagnosis, measured: list[Trial]) -> Answer:
    times = [f"{clean_name(trial.name)}{_median_text(diagnosis, trial.name)}" for trial in measured]
    if len(times) > 1:
        headline = f"Not compared yet: {cut_list(times, MOST_NAMED)}"
    elif _all_are_the_same(diagnosis):
        headline = f"Nothing to choose: every configuration is the same as {times[0]} for this model"
    else:
        headline = f"Only {times[0]} was measured, so there is nothing to compare it with"
    failed = [trial for trial in diagnosis.trials if trial.failure is not None]
    lines = [f"No result: {clean_name(trial.name)} {failure_clause(trial)}" for trial in failed[:MOST_NAMED]]
    if convolution_count(diagnosis) == 0:
        lines.append("The model has no convolution, so Inductor's layout optimization has nothing to change")
    return Answer(headline, lines=(*lines, *_cost_lines(diagnosis, measured[0].name)))


def _all_are_the_same(diagnosis: Diagnosis) -> bool:
    others = [trial for trial in diagnosis.trials if trial.measurement is None]
    return bool(others) and all(trial.status == "same_as" for trial in others) and diagnosis.interrupted is None


def _no_recommendation(diagnosis: Diagnosis, comparison: Comparison) -> Answer:
    costs = (*_without_result(diagnosis, comparison), *_cost_lines(diagnosis, comparison.baseline))
    reason = diagnosis.recommendation.reason if diagnosis.recommendation else None
    leader = _leader_text(diagnosis, comparison)
    if diagnosis.interrupted is not None and leader:
        return Answer(f"{leader}; nothing is recommended yet", lines=(*([clean(reason)] if reason else []), *costs))
    why = clean(reason) if reason else "no configuration may be recommended"
    return Answer(f"No recommendation: {why}", lines=(*([leader] if leader else []), *costs))


def _leader_text(diagnosis: Diagnosis, comparison: Comparison) -> str:
    fastest = [clean_name(name) for name in comparison.fastest]
    if len(fastest) > 1:
        return f"Tie: {cut_list(fastest, MOST_NAMED)}, no measurable difference between them"
    return f"Fastest measured: {fastest[0]}{_against(diagnosis, comparison, comparison.fastest[0])}" if fastest else ""


def _against(diagnosis: Diagnosis, comparison: Comparison, name: str) -> str:
    ratio = find_ratio(diagnosis, name)
    if ratio is None or ratio.verdict != FASTER:
        return ""
    interval = _interval(ratio.low, ratio.high, ratio.coverage)
    return f", {format_ratio(ratio.median)} faster than {baseline_phrase(comparison.baseline)} ({interval})"


def _interval(low: float, high: float, coverage: float | None) -> str:
    name = "range" if coverage is None else f"{format_significant(100 * coverage, 2)} % interval"
    return f"{name} {low:.2f} to {high:.2f}"


def _layout_is_irrelevant(diagnosis: Diagnosis, comparison: Comparison, reason: str) -> Answer:
    median = _median_text(diagnosis, comparison.baseline)
    kept = baseline_phrase(comparison.baseline)
    headline = f"Layout does not matter to this model: {reason}. Keep {kept}{median}; nothing measured is faster"
    lines = _without_result(diagnosis, comparison)
    return Answer(headline, lines=lines, is_short=_nothing_else_to_say(diagnosis))


def _nothing_else_to_say(diagnosis: Diagnosis) -> bool:
    """Whether the report may end after the answer: all ran to its end and was recorded, and no rule found a loss."""
    ran = all(trial.status in ("ok", "same_as") for trial in diagnosis.trials)
    different = any(t.equivalence is not None and t.equivalence.status == "different" for t in diagnosis.trials)
    harmless = all(finding.severity == "note" for finding in diagnosis.findings)
    recorded = all(trial.kernels is not None for trial in diagnosis.trials if trial.status == "ok")
    return ran and recorded and not different and harmless and diagnosis.interrupted is None


def _median_text(diagnosis: Diagnosis, name: str) -> str:
    trial = diagnosis.measured_trial(name)
    if trial is None or trial.measurement is None:
        return ""
    return f" ({format_seconds(trial.measurement.median_seconds)})"


def _keep_baseline(diagnosis: Diagnosis, comparison: Comparison) -> Answer:
    tied = comparison.fastest if comparison.baseline in comparison.fastest else ()
    unjudged = {ratio.name for ratio in comparison.unjudged}
    ties = [clean_name(name) for name in tied if name != comparison.baseline and name not in unjudged]
    kept = f"Keep {baseline_phrase(comparison.baseline)}{_median_text(diagnosis, comparison.baseline)}"
    if ties:
        headline = f"{kept}: a tie, no measurable difference from {cut_list(ties, MOST_NAMED)}"
    elif any(ratio.verdict == FASTER for ratio in comparison.ratios):
        headline = f"{kept}: {_reason_to_keep(diagnosis)}"
    elif unjudged:
        rounds = max(ratio.round_count or 0 for ratio in comparison.unjudged)
        headline = f"{kept}: {count_of(rounds, 'round')}, too few to compare; give a larger --budget"
    else:
        headline = f"{kept}: nothing measured is faster"
    return Answer(
        headline, lines=(*_why_others_lose(diagnosis, comparison), *_cost_lines(diagnosis, comparison.baseline))
    )


def _reason_to_keep(diagnosis: Diagnosis) -> str:
    reason = diagnosis.recommendation.reason if diagnosis.recommendation else None
    return clean(reason) if reason else "what looked faster may not be recommended"


def _why_others_lose(diagnosis: Diagnosis, comparison: Comparison) -> tuple[str, ...]:
    different = {t.name for t in diagnosis.trials if t.equivalence is not None and t.equivalence.status == "different"}
    groups: dict[str, list[str]] = {}
    for ratio in sorted(comparison.ratios, key=lambda ratio: -ratio.median):
        if ratio.name in different:
            why = "Not eligible, outputs differ"
        elif ratio.lacks_rounds:
            why = "Not judged, too few rounds"
        elif ratio.name in comparison.fastest and ratio.verdict == NO_DIFFERENCE:
            continue  # the headline has called it a tie
        elif ratio.verdict == FASTER:
            why = "Looked faster, not confirmed"
        else:
            why = {SLOWER: "Slower", NO_DIFFERENCE: "No measurable difference"}[ratio.verdict]
        groups.setdefault(why, []).append(f"{clean_name(ratio.name)} {format_ratio(ratio.median)}")
    same = [
        f"{clean_name(t.name)} as {clean_name(t.same_as or '?')}" for t in diagnosis.trials if t.status == "same_as"
    ]
    if same:
        groups["Same code"] = same
    lines = tuple(f"{why}: {cut_list(names, MOST_NAMED)}" for why, names in groups.items())
    return (*lines, *_without_result(diagnosis, comparison))


def _without_result(diagnosis: Diagnosis, comparison: Comparison) -> tuple[str, ...]:
    """Who is missing in the comparison, and why in a word; the table says the rest."""
    missing = [f"{clean_name(t.name)} ({STATUS_WORDS[t.status]})" for t in diagnosis.trials if t.status in STATUS_WORDS]
    if not missing:
        return ()
    compared = 1 + len(comparison.ratios) + sum(trial.status == "same_as" for trial in diagnosis.trials)
    others = f"; {compared} others were compared" if comparison.ratios else ""
    return (f"No result: {cut_list(missing, MOST_NAMED)}{others}",)


def _change(diagnosis: Diagnosis, comparison: Comparison, recommendation: Recommendation) -> Answer:
    name = recommendation.configuration or ""
    ties = [clean_name(other) for other in comparison.fastest if other != name]
    how = tuple(clean_line(line) for line in (recommendation.how or "").splitlines()[:MOST_HOW_LINES])
    lines = [_certainty(diagnosis, recommendation)]
    if ties:
        lines.append(f"Tie: {cut_list(ties, MOST_NAMED)} {'is' if len(ties) == 1 else 'are'} not measurably slower")
    lines += [*_without_result(diagnosis, comparison), *_cost_lines(diagnosis, comparison.baseline)]
    return Answer(_change_headline(diagnosis, comparison, recommendation), how, tuple(lines))


def _change_headline(diagnosis: Diagnosis, comparison: Comparison, recommendation: Recommendation) -> str:
    name = recommendation.configuration or ""
    ratio = find_ratio(diagnosis, name)
    speedup = recommendation.speedup
    against = baseline_phrase(comparison.baseline)
    tie = f"Tie: {clean_name(name)} is not measurably faster than {against}"
    if speedup is not None:
        interval = _interval(speedup.low, speedup.high, ratio.coverage if ratio else None)
        if speedup.low > 1:
            return f"Fastest: {clean_name(name)}, {format_ratio(speedup.median)} faster than {against} ({interval})"
        return f"{tie}, {format_ratio(speedup.median)} ({interval})"
    if ratio is not None and ratio.verdict != FASTER:
        interval = _interval(ratio.low, ratio.high, ratio.coverage)
        return f"{tie}, {format_ratio(ratio.median)} ({interval})"
    return f"Fastest: {clean_name(name)}{_against(diagnosis, comparison, name) or _median_text(diagnosis, name)}"


def _certainty(diagnosis: Diagnosis, recommendation: Recommendation) -> str:
    """Whether the gain was measured again and the outputs are equal, else what is missing."""
    trial = diagnosis.measured_trial(recommendation.configuration or "")
    equivalence = trial.equivalence if trial and trial.equivalence else Equivalence(status="not_checked")
    missing = _missing(recommendation, equivalence)
    if recommendation.verified and not missing:
        return f"Verified: the gain was measured again after the choice; {_outputs_text(equivalence)}"
    if not missing:
        missing = [
            clean(recommendation.reason) if recommendation.reason else "the second measurement did not confirm it"
        ]
    return f"Not verified: {in_words(missing)}"


def _missing(recommendation: Recommendation, equivalence: Equivalence) -> list[str]:
    missing = []
    if recommendation.speedup is None:
        missing.append("the gain was not measured again after the choice")
    if equivalence.status == "different":
        missing.append("the outputs differ from the reference")
    elif equivalence.status == "not_checked":
        detail = f" ({clean(equivalence.detail, 200)})" if equivalence.detail else ""
        missing.append(f"the outputs were not compared{detail}")
    return missing


def _outputs_text(equivalence: Equivalence) -> str:
    what = "outputs and gradients equal" if equivalence.gradients_checked else "outputs equal"
    reference = f"{clean_name(equivalence.reference)} reference" if equivalence.reference else "reference not named"
    error = "" if equivalence.max_abs_error is None else f", largest error {format_error(equivalence.max_abs_error)}"
    return f"{what} ({reference}{error})"


def _cost_lines(diagnosis: Diagnosis, baseline: str) -> tuple[str, ...]:
    """What layouts cost in the baseline; where that has no redundant pair, also what the pairs elsewhere cost."""
    trial = diagnosis.measured_trial(baseline)
    if trial is None:
        return ()
    now = _waste_line(trial, "Wasted now")
    if now is not None:
        return (now,)
    others = (_waste_line(t, "Wasted") for t in diagnosis.trials if t is not trial and t.status == "ok")
    elsewhere = next((line for line in others if line is not None), None)
    return tuple(line for line in (_conversion_line(trial), elsewhere) if line is not None)


def _waste_line(trial: Trial, words: str) -> str | None:
    waste = waste_of(trial)
    if waste is None:
        return None
    pairs = count_of(waste.pair_count, "round trip")
    whole = trial.kernels.seconds if trial.kernels else None
    if waste.seconds is not None:
        of = f" of {format_seconds(whole)} kernel time{share_of(waste.seconds, whole)}" if whole else ""
        cost = f"{format_seconds(waste.seconds)}{of}"
    else:
        moved = f", {format_bytes(waste.bytes_moved)} moved" if waste.bytes_moved is not None else ""
        cost = f"time not recorded{moved}"
    return f"{words} ({clean_name(trial.name)}): {pairs}, {cost}{_where(trial, waste.owners)}"


def _where(trial: Trial, owners: tuple[str, ...]) -> str:
    logged_by_onednn = trial.kernels is not None and any("oneDNN" in source for source in trial.kernels.sources)
    library = "inside oneDNN" if logged_by_onednn else "inside library calls"
    words = {
        "library": library,
        "compiler": "in compiled kernels",
        "framework": "inside eager operations",
    }
    if len(owners) != 1:
        return ""
    return f", all {words.get(owners[0], 'written in the model')}"


def _conversion_line(trial: Trial) -> str | None:
    """How much of the kernel time all conversions of a trial take; None where that was not recorded."""
    conversions = counted_conversions(trial)
    if trial.kernels is None or trial.kernels.seconds is None:
        return f"Conversions now ({clean_name(trial.name)}): kernels not recorded"
    seconds = sum_seconds(conversions)
    if not conversions or seconds is None:
        return None
    whole = trial.kernels.seconds
    cost = f"{format_seconds(seconds)} of {format_seconds(whole)} kernel time{share_of(seconds, whole)}"
    return f"Conversions now ({clean_name(trial.name)}): {len(conversions)}, {cost}, no round trip proved"
