"""
The first lines of a report: what to do, how sure that is, and what is wasted now.

They word what the record says and decide nothing: where nothing was run or compared, nothing sounds measured or proved
by a comparison, and a file without kernels is never called healthy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.accepted import ABOUT_MEASUREMENT
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, Equivalence
from layoutdoctor.examination.choice import scatters, undecided, wrong_baseline
from layoutdoctor.examination.costs import (
    convolution_count,
    counted_conversions,
    irrelevance,
    sum_seconds,
)
from layoutdoctor.examination.ratios import EQUAL, WITHIN_EQUALITY, word_of
from layoutdoctor.reports.sections.account import account_lines, convolution_line
from layoutdoctor.reports.sections.rows import decision_cell, tensors_in_short
from layoutdoctor.reports.sections.verdicts import (
    MOST_NAMED,
    against_clause,
    is_worth_a_number,
    leader_text,
    rival_lines,
    undecided_headline,
)
from layoutdoctor.reports.sections.wording import (
    baseline_phrase,
    clean,
    clean_line,
    clean_name,
    failure_clause,
    find_ratio,
    interval_clause,
    is_recording,
    outputs_clause,
    share_of,
    waste_of,
    wrong_clause,
)
from layoutdoctor.units import format_bytes, format_ratio, format_seconds
from layoutdoctor.words import (
    OWNER_WORDS,
    STATUS_WORDS,
    SWITCH_WORDS,
    be,
    count_of,
    distinct,
    joined,
    listing,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import (
        Comparison,
        Conversion,
        Diagnosis,
        Recommendation,
        Speedup,
        Trial,
    )

MOST_HOW_LINES = 40
MOST_REASONS = 4
_TELLING_RATIO = 1.05
_SLOW_CODE = "LD305"  # most of what such a model loses, though no layout brings it back


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a reader who stops after five lines knows.

    Attributes:
        how: Lines to paste; empty where there is nothing to change.
        lines: What the answer rests on, and what is wasted now.
        is_short: True where layouts do not matter to this model, so that the report ends here.
        is_bare: True where there is nothing that could have a layout, so that nothing but the headline is worth a line.
    """

    headline: str
    how: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    is_short: bool = False
    is_bare: bool = False


def build_answer(diagnosis: Diagnosis) -> Answer:
    """The answer that the diagnosis of a model holds, also an interrupted one."""
    if diagnosis.subject.target is not None:
        return _of_lowered_graphs(diagnosis, clean_name(diagnosis.subject.target))
    measured = [trial for trial in diagnosis.trials if trial.measurement is not None]
    comparison, recommendation = diagnosis.comparison, diagnosis.recommendation
    if not measured:
        return _nothing_measured(diagnosis)
    if comparison is None:
        return _nothing_compared(diagnosis, measured)
    if recommendation is None or diagnosis.interrupted is not None or not comparison.fastest:
        return _no_recommendation(diagnosis, comparison)
    if recommendation.configuration in (None, comparison.baseline):
        reason = irrelevance(diagnosis)
        if reason is not None:
            return _layout_is_irrelevant(diagnosis, comparison, reason)
        return _keep_baseline(diagnosis, comparison)
    return _change(diagnosis, comparison, recommendation)


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
    others = [trial for trial in diagnosis.trials if trial.measurement is None]
    if len(times) > 1:
        headline = f"Not compared yet: {listing(times, MOST_NAMED)}"
    elif diagnosis.interrupted is None and {trial.status for trial in others} == {"same_as"}:
        headline = f"Nothing to choose: every configuration that was tried is the same as {times[0]} for this model"
    else:
        headline = f"Only {times[0]} was measured, so there is nothing to compare it with"
    failed = [trial for trial in diagnosis.trials if trial.failure is not None]
    lines = [f"No result: {clean_name(trial.name)} {failure_clause(trial)}" for trial in failed[:MOST_NAMED]]
    if convolution_count(diagnosis) == 0:
        lines.append("The model has no convolution, so Inductor's layout optimization has nothing to change")
    return Answer(headline, lines=(*lines, *_cost_lines(diagnosis, measured[0].name)))


def _no_recommendation(diagnosis: Diagnosis, comparison: Comparison) -> Answer:
    costs = (*_without_result(diagnosis, comparison), *_cost_lines(diagnosis, comparison.baseline))
    reason = diagnosis.recommendation.reason if diagnosis.recommendation else None
    leader = leader_text(diagnosis, comparison)
    if diagnosis.interrupted is not None and leader:
        return Answer(f"{leader}; nothing is recommended yet", lines=(*([clean(reason)] if reason else []), *costs))
    why = clean(reason) if reason else "no configuration may be recommended"
    wrong = wrong_baseline(diagnosis)
    if wrong is not None:
        why = f"{wrong_clause(wrong)}{_by_how_much(wrong)}; {why}"
    return Answer(f"No recommendation: {why}", lines=(*([leader] if leader else []), *costs))


def _layout_is_irrelevant(diagnosis: Diagnosis, comparison: Comparison, reason: str) -> Answer:
    median = _median_text(diagnosis, comparison.baseline)
    kept = baseline_phrase(comparison.baseline)
    headline = f"Layouts do not matter to this model: {reason}. Keep {kept}{median}; nothing measured is faster"
    lines, is_short = _without_result(diagnosis, comparison), nothing_else_to_say(diagnosis)
    return Answer(headline, lines=lines, is_short=is_short, is_bare=is_short and convolution_count(diagnosis) == 0)


def nothing_else_to_say(diagnosis: Diagnosis) -> bool:
    """Whether the report may end after the answer: all ran to its end and was recorded, and no rule found a loss."""
    ran = all(trial.status in ("ok", "same_as") for trial in diagnosis.trials)
    different = any(t.equivalence is not None and t.equivalence.status == "different" for t in diagnosis.trials)
    rest = [finding for finding in diagnosis.findings if finding.code not in ABOUT_MEASUREMENT]
    harmless = all(finding.severity == "note" and finding.code != _SLOW_CODE for finding in rest)
    recorded = all(trial.kernels is not None for trial in diagnosis.trials if trial.status == "ok")
    if is_recording(diagnosis):  # of one file, what it lacks is said as well
        recorded = not diagnosis.subject.notes and all(map(_was_read_in_full, diagnosis.trials))
    return ran and recorded and not different and harmless and diagnosis.interrupted is None


def _was_read_in_full(trial: Trial) -> bool:
    lacks = trial.kernels is None or trial.kernels.lacks or trial.kernels.not_understood_count
    return not (lacks or trial.notes or any(graph.not_understood for graph in trial.graphs))


def _median_text(diagnosis: Diagnosis, name: str) -> str:
    trial = diagnosis.measured_trial(name)
    if trial is None or trial.measurement is None:
        return ""
    return f" ({format_seconds(trial.measurement.usual_seconds)})"


def _keep_baseline(diagnosis: Diagnosis, comparison: Comparison) -> Answer:
    tied = comparison.fastest if comparison.baseline in comparison.fastest else ()
    open_ones = undecided(diagnosis)
    equal = [clean_name(r.name) for r in comparison.ratios if r.name in tied and word_of(r) == EQUAL]
    kept = f"Keep {baseline_phrase(comparison.baseline)}{_median_text(diagnosis, comparison.baseline)}"
    if open_ones:
        headline = undecided_headline(comparison, open_ones)
    elif any(ratio.verdict == FASTER for ratio in comparison.ratios):
        reason = diagnosis.recommendation.reason if diagnosis.recommendation else None
        headline = f"{kept}: {clean(reason) if reason else 'what looked faster may not be recommended'}"
    elif equal:
        headline = f"{kept}: {listing(equal, MOST_NAMED)} {be(len(equal))} equal to it, {WITHIN_EQUALITY}"
    else:
        headline = f"{kept}: nothing measured is faster"
    memory = () if diagnosis.recommendation is None else _memory_kept(comparison, diagnosis.recommendation)
    others, costs = _why_others_lose(diagnosis, comparison), _cost_lines(diagnosis, comparison.baseline)
    accounts = account_lines(diagnosis.accounts, comparison.baseline, None)
    return Answer(headline, lines=(*memory, *accounts, *others, *costs))


def _why_others_lose(diagnosis: Diagnosis, comparison: Comparison) -> tuple[str, ...]:
    different = {t.name for t in diagnosis.trials if t.equivalence is not None and t.equivalence.status == "different"}
    in_headline = {ratio.name for ratio in undecided(diagnosis)}
    groups: dict[str, list[str]] = {}
    for ratio in sorted(comparison.ratios, key=lambda ratio: -ratio.median):
        word = word_of(ratio)
        if ratio.name in different:
            why = "Not eligible, outputs differ"
        elif ratio.name in in_headline or (word == EQUAL and ratio.name in comparison.fastest and not in_headline):
            continue  # the headline has named it
        elif word == FASTER:
            why = "Looked faster, not confirmed"
        else:
            why = word.capitalize()
        number = f" {format_ratio(ratio.median)}" if is_worth_a_number(ratio) else ""
        groups.setdefault(why, []).append(clean_name(ratio.name) + number)
    same = [
        f"{clean_name(t.name)} as {clean_name(t.same_as or '?')}" for t in diagnosis.trials if t.status == "same_as"
    ]
    if same:
        groups["Same code"] = same
    lines = tuple(f"{why}: {listing(names, MOST_NAMED)}" for why, names in groups.items())
    return (*lines, *_without_result(diagnosis, comparison))


def _without_result(diagnosis: Diagnosis, comparison: Comparison) -> tuple[str, ...]:
    """Who is missing in the comparison, and why in a word; the table says the rest."""
    missing = [f"{clean_name(t.name)} ({STATUS_WORDS[t.status]})" for t in diagnosis.trials if t.status in STATUS_WORDS]
    if not missing:
        return ()
    compared = 1 + len(comparison.ratios) + sum(trial.status == "same_as" for trial in diagnosis.trials)
    others = f"; {compared} others were compared" if comparison.ratios else ""
    return (f"No result: {listing(missing, MOST_NAMED)}{others}",)


def _change(diagnosis: Diagnosis, comparison: Comparison, recommendation: Recommendation) -> Answer:
    name = recommendation.configuration or ""
    how = tuple(clean_line(line) for line in (recommendation.how or "").splitlines()[:MOST_HOW_LINES])
    wrong = wrong_baseline(diagnosis)
    lines = [] if wrong is None else [_speed_line(comparison, recommendation)]
    lines += [_certainty(diagnosis, recommendation), *_without_freezing(comparison, recommendation)]
    lines += _memory_kept(comparison, recommendation)
    lines += account_lines(diagnosis.accounts, comparison.baseline, name)
    lines += [*rival_lines(comparison, name), *_without_result(diagnosis, comparison)]
    lines += _cost_lines(diagnosis, comparison.baseline)
    headline = _change_headline(diagnosis, comparison, recommendation)
    if wrong is not None:
        headline = f"Use {clean_name(name)}: {wrong_clause(wrong)}{_by_how_much(wrong)}"
    return Answer(headline, how, tuple(lines))


def _by_how_much(trial: Trial) -> str:
    """How far a trial's outputs are from the reference, in brackets; empty where that is no number."""
    equivalence = trial.equivalence
    if equivalence is None or equivalence.max_abs_error is None or equivalence.tolerance is None:
        return ""
    what = "outputs or gradients" if equivalence.gradients_checked else "outputs"
    return f" ({what} differ by up to {equivalence.max_abs_error:.2g}, where {equivalence.tolerance:.2g} is allowed)"


def _speed_line(comparison: Comparison, recommendation: Recommendation) -> str:
    """How fast the one that is recommended is beside a baseline whose outputs are wrong."""
    speedup = recommendation.speedup
    if speedup is None:
        return "Its speed was not compared"
    again = "" if recommendation.fresh_processes is None else ", measured again in fresh processes"
    speed = f"{format_ratio(speedup.median)} the speed of {baseline_phrase(comparison.baseline)}"
    return f"It runs at {speed} ({_ends(speedup)}{again})"


def _change_headline(diagnosis: Diagnosis, comparison: Comparison, recommendation: Recommendation) -> str:
    name = recommendation.configuration or ""
    ratio, speedup = find_ratio(diagnosis, name), recommendation.speedup
    against = baseline_phrase(comparison.baseline)
    is_equal = ratio is not None and word_of(ratio) == EQUAL
    tie = f"{'Equal' if is_equal else 'Undecided'}: {clean_name(name)} is not measurably faster than {against}"
    if speedup is not None:
        where = "after the choice" if recommendation.fresh_processes is None else "in fresh processes"
        interval = f"{_ends(speedup)}, measured again {where}"
        if speedup.low <= 1:
            return f"{tie}, {format_ratio(speedup.median)} ({interval})"
        starts = _of_starts_that_scatter(diagnosis, recommendation)
        if starts:
            least, most = format_ratio(min(starts)), format_ratio(max(starts))
            where = f"in {count_of(len(starts), 'start')} of fresh processes"
            return f"Use {clean_name(name)}: {least} to {most} faster than {against} {where}"
        gain = f"{clean_name(name)}: {format_ratio(speedup.median)} faster than {against} ({interval})"
        return f"{'Use' if is_verified(diagnosis, recommendation) else 'Fastest measured is'} {gain}"
    if ratio is not None and ratio.verdict != FASTER:
        interval = interval_clause(ratio.low, ratio.high, ratio.coverage)
        return f"{tie}, {format_ratio(ratio.median)} ({interval})"
    against = against_clause(diagnosis, comparison, name) or _median_text(diagnosis, name)
    return f"Fastest measured: {clean_name(name)}{against}"


def _equivalence_of(diagnosis: Diagnosis, recommendation: Recommendation) -> Equivalence:
    trial = diagnosis.measured_trial(recommendation.configuration or "")
    return trial.equivalence if trial and trial.equivalence else Equivalence(status="not_checked")


def is_verified(diagnosis: Diagnosis, recommendation: Recommendation) -> bool:
    """Whether the gain was measured again and the outputs are equal."""
    return recommendation.verified and not _missing(recommendation, _equivalence_of(diagnosis, recommendation))


def _of_starts_that_scatter(diagnosis: Diagnosis, recommendation: Recommendation) -> tuple[float, ...]:
    """Their ratios, where they differ too much to promise any one and are faster each, outputs equal; else nothing."""
    fresh, comparison = recommendation.fresh_processes, diagnosis.comparison
    if fresh is None or comparison is None:
        return ()
    pair = (diagnosis.find_trial(name or "") for name in (comparison.baseline, recommendation.configuration))
    if not scatters(fresh, *pair) or _missing(recommendation, _equivalence_of(diagnosis, recommendation)):
        return ()
    return fresh.start_ratios if min(fresh.start_ratios, default=0.0) > 1 else ()


def _certainty(diagnosis: Diagnosis, recommendation: Recommendation) -> str:
    """What was found of the outputs and what the change demands; of what is not verified, what is missing."""
    equivalence = _equivalence_of(diagnosis, recommendation)
    is_frozen = recommendation.without_freezing is not None
    demand = "weights must not change afterwards, and no gradients can be had" if is_frozen else None
    if is_verified(diagnosis, recommendation):
        return joined((outputs_clause(equivalence).capitalize(), demand))
    reason = clean(recommendation.reason) if recommendation.reason else "the second measurement did not confirm it"
    if _of_starts_that_scatter(diagnosis, recommendation):
        return joined((outputs_clause(equivalence).capitalize(), demand, f"how much faster is not verified: {reason}"))
    return joined((f"Not verified: {listing(_missing(recommendation, equivalence) or [reason], None)}", demand))


def _ends(speedup: Speedup) -> str:
    return f"{speedup.low:.2f} to {speedup.high:.2f}"


def _without_freezing(comparison: Comparison, recommendation: Recommendation) -> tuple[str, ...]:
    """What is best for whom frozen weights demand too much."""
    free = recommendation.without_freezing
    if free is None:
        return ()
    best = f"nothing is measurably faster than {baseline_phrase(comparison.baseline)}"
    if free.speedup is not None:
        best = f"{clean_name(free.configuration)}, {format_ratio(free.speedup.median)} ({_ends(free.speedup)})"
    return (f"Without freezing: {best}",)


def _memory_kept(comparison: Comparison, recommendation: Recommendation) -> tuple[str, ...]:
    """What becomes of the answer in a process whose allocator keeps its memory; nothing where that is the same."""
    kept, speedup = recommendation.kept_memory, recommendation.speedup
    promised = 1.0 if speedup is None else speedup.median
    if kept is None:
        return ()
    middle = 1.0 if kept.speedup is None else kept.speedup.median
    if kept.fastest is None and max(kept.baseline_ratio, promised / middle, middle / promised) < _TELLING_RATIO:
        return ()
    baseline = baseline_phrase(comparison.baseline)
    line = f"Where the process keeps the memory that a call frees (LD308): {baseline} runs at "
    line += f"{format_ratio(kept.baseline_ratio)} its speed"
    if kept.speedup is not None:
        name = clean_name(recommendation.configuration or "")
        line += f", and {name} at {format_ratio(middle)} that ({_ends(kept.speedup)})"
    if kept.fastest is not None and kept.fastest_speedup is not None:
        ratio = f"{format_ratio(kept.fastest_speedup.median)} that ({_ends(kept.fastest_speedup)})"
        line += f"; fastest there is {clean_name(kept.fastest)}, at {ratio}"
    return (line,)


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


def _cost_lines(diagnosis: Diagnosis, baseline: str) -> tuple[str, ...]:
    """What layouts cost in the baseline, and how much of its time convolutions take."""
    trial = diagnosis.measured_trial(baseline)
    if trial is None:
        return ()
    costs = _waste_line(trial) or _conversions_now(trial)
    return tuple(line for line in (costs, convolution_line(trial)) if line is not None)


def _waste_line(trial: Trial) -> str | None:
    waste = waste_of(trial)
    if waste is None:
        return None
    pairs = count_of(waste.pair_count, "round trip")
    whole = trial.kernels.seconds if trial.kernels else None
    if waste.seconds is not None:
        of = f" of the {format_seconds(whole)} in its kernels{share_of(waste.seconds, whole)}" if whole else ""
        cost = f"{format_seconds(waste.seconds)}{of}{', estimated' if waste.is_estimated else ''}"
    else:
        moved = f", {format_bytes(waste.bytes_moved)} moved" if waste.bytes_moved is not None else ""
        cost = f"time not recorded{moved}"
    there = f"there and back again, for nothing{_where(trial, waste.owners)}"
    return f"Wasted in {baseline_phrase(trial.name)}: {pairs} ({there}), {cost}"


def _where(trial: Trial, owners: tuple[str, ...]) -> str:
    if len(owners) != 1:
        return ""
    logged_by_onednn = trial.kernels is not None and any("oneDNN" in source for source in trial.kernels.sources)
    where = "inside oneDNN" if logged_by_onednn and owners[0] == "library" else OWNER_WORDS[owners[0]]
    return f", all {where}"


def _conversions_now(trial: Trial) -> str | None:
    """How much of the kernel time all conversions of a trial take; None where that was not recorded."""
    conversions = counted_conversions(trial)
    whole = trial.kernels.seconds if trial.kernels is not None else None
    if trial.kernels is not None and not conversions:
        return None
    if whole is None:
        known = "kernels not recorded" if trial.kernels is None else f"{len(conversions)}, their times cannot be told"
        return f"Conversions in {baseline_phrase(trial.name)}: {known}"
    if not conversions or (seconds := sum_seconds(conversions)) is None:
        return None
    cost = f"{format_seconds(seconds)} of the {format_seconds(whole)} in its kernels{share_of(seconds, whole)}"
    return f"Conversions in {baseline_phrase(trial.name)}: {len(conversions)} on every call, {cost}"


def _of_lowered_graphs(diagnosis: Diagnosis, target: str) -> Answer:
    """What was lowered for a GPU that is not there, what the compiler decided, what the graphs prove."""
    lowered = [trial for trial in diagnosis.trials if trial.status == "ok"]
    failed = [trial for trial in diagnosis.trials if trial.status not in ("ok", "same_as", "skipped")]
    failures = tuple(f"No result: {clean_name(t.name)} {failure_clause(t)}" for t in failed[:MOST_NAMED])
    if not lowered:
        return Answer(f"Nothing could be concluded: no graph was lowered for {target}", lines=failures)
    graphs = sum(len(trial.graphs) for trial in lowered)
    headline = (
        f"Nothing was run on {target}: {count_of(graphs, 'graph')} of {count_of(len(lowered), 'configuration')} "
        "lowered for it without the device, so no time is known"
    )
    shown = next((trial for trial in lowered if trial.name == BASELINE), lowered[0])
    lines = [*_decision_lines(shown), _proved_conversions(shown), _proved_pairs(shown)]
    elsewhere = [_proved_pairs(trial) for trial in lowered if trial is not shown and trial.redundant_pairs]
    return Answer(headline, lines=(*lines, *elsewhere[:1], *failures))


def _decision_lines(trial: Trial) -> list[str]:
    """Inductor's decision, with its reason for every direction in which it decided."""
    who = baseline_phrase(trial.name)
    lines = [f"Layout optimization under {who}: {decision_cell(trial)}"]
    cards = [(graph.direction.capitalize(), graph.decision) for graph in trial.graphs if graph.decision is not None]
    different = distinct(
        f"{direction}: {SWITCH_WORDS[card.applied]} ({clean_name(card.rule)}), as {clean(card.explanation)}"
        for direction, card in cards
    )
    more = len(different) - MOST_REASONS
    return [*lines, *different[:MOST_REASONS], *([f"and {more} more: --output report.md has them"] if more > 0 else [])]


def _proved_conversions(trial: Trial) -> str:
    who = baseline_phrase(trial.name)
    counted = counted_conversions(trial)
    fused = sum(c.fused and c.direction != "none" for graph in trial.graphs for c in graph.conversions)
    more = f"; {fused} more fused into kernels that compute as well" if fused else ""
    if not counted:
        return f"Conversions that the graphs of {who} prove: none of their own{more}"
    tensors = listing(tensors_in_short(trial), None)
    return f"Conversions that the graphs of {who} prove: {tensors}{_moved(counted)}{more}"


def _moved(conversions: Sequence[Conversion]) -> str:
    known = [conversion.bytes_moved for conversion in conversions if conversion.bytes_moved is not None]
    if not known:
        return ""
    least = "at least " if len(known) < len(conversions) else ""
    return f", {least}{format_bytes(sum(known))} to move in each iteration"


def _proved_pairs(trial: Trial) -> str:
    who = baseline_phrase(trial.name)
    waste = waste_of(trial)
    if waste is None:
        return f"Redundant pairs that the graphs of {who} prove: none"
    moved = "" if waste.bytes_moved is None else f", {format_bytes(waste.bytes_moved)} to move in each iteration"
    return f"Redundant pairs that the graphs of {who} prove: {waste.pair_count}{moved}"
