"""
The first lines of a report: what to do, how sure that is, and what is wasted now.

They word what the record says and decide nothing: where nothing was run or compared, nothing sounds measured or proved
by a comparison, and a file without kernels is never called healthy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.diagnosis.records import FASTER, Equivalence
from layoutdoctor.examination.choice import undecided
from layoutdoctor.examination.costs import (
    convolution_count,
    counted_conversions,
    irrelevance,
    launch_count,
    sum_seconds,
)
from layoutdoctor.examination.ratios import COVERAGE_OF_STARTS, EQUAL, WITHIN_EQUALITY, word_of
from layoutdoctor.reports.sections.account import account_lines, convolution_line
from layoutdoctor.reports.sections.rows import decision_cell, tensors_in_short
from layoutdoctor.reports.sections.verdicts import (
    MOST_NAMED,
    against_clause,
    leader_text,
    rival_lines,
    undecided_headline,
)
from layoutdoctor.reports.sections.wording import (
    alone_clause,
    baseline_phrase,
    clean,
    clean_line,
    clean_name,
    count_by_tensor,
    direction_words,
    exposed_seconds,
    failure_clause,
    find_ratio,
    interval_clause,
    is_recording,
    outputs_clause,
    precise_share,
    recorded_trial,
    share_of,
    terms_of,
    waste_of,
)
from layoutdoctor.units import format_bytes, format_ratio, format_seconds
from layoutdoctor.words import (
    OWNER_WORDS,
    PROOF_WORDS,
    STATUS_WORDS,
    SWITCH_WORDS,
    TENSOR_WORDS,
    be,
    count_of,
    distinct,
    listing,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import (
        Comparison,
        Conversion,
        Diagnosis,
        KernelSummary,
        Recommendation,
        Trial,
    )
    from layoutdoctor.reports.sections.wording import Terms

MOST_HOW_LINES = 40
MOST_REASONS = 4
MOST_SOURCE_LINES = 3
MOST_FAILURE_CHARACTERS = 300

_LIBRARY_RULES = ("LD101", "LD111")
_TO_TRY = "To try: model and inputs in channels_last (5-D: channels_last_3d), where they are not yet"
_TO_DIAGNOSE = "To find the fastest layout: python -m layoutdoctor model.py"
_ON_A_CPU = (
    "On a CPU, layout conversions run inside oneDNN, which writes them to its own log, not to a trace",
    "To record them: run the model with ONEDNN_VERBOSE=1 and examine what it prints",
    _TO_DIAGNOSE,
)
_ON_A_GPU = (
    "To record them: torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    _TO_DIAGNOSE,
)
_IN_A_LOG = ("To record them: run the model with ONEDNN_VERBOSE=1 and save what it prints",)


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a reader who stops after five lines knows.

    Attributes:
        how: Lines to paste; empty where there is nothing to change.
        lines: What the answer rests on, and what is wasted now.
        is_short: True where layouts do not matter to this model, so that the report ends here.
    """

    headline: str
    how: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    is_short: bool = False


def build_answer(diagnosis: Diagnosis) -> Answer:
    """The answer that a diagnosis holds, also an interrupted one."""
    if is_recording(diagnosis):
        return _of_one_run(diagnosis)
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
        headline = f"Nothing to choose: every configuration is the same as {times[0]} for this model"
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
    return Answer(f"No recommendation: {why}", lines=(*([leader] if leader else []), *costs))


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
    return f" ({format_seconds(trial.measurement.median_seconds)})"


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
    others, costs = _why_others_lose(diagnosis, comparison), _cost_lines(diagnosis, comparison.baseline)
    return Answer(headline, lines=(*account_lines(diagnosis.accounts), *others, *costs))


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
        groups.setdefault(why, []).append(f"{clean_name(ratio.name)} {format_ratio(ratio.median)}")
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
    lines = [_certainty(diagnosis, recommendation), *_freezing_lines(comparison, recommendation)]
    lines += account_lines(diagnosis.accounts)
    lines += [*rival_lines(comparison, name), *_without_result(diagnosis, comparison)]
    lines += _cost_lines(diagnosis, comparison.baseline)
    return Answer(_change_headline(diagnosis, comparison, recommendation), how, tuple(lines))


def _change_headline(diagnosis: Diagnosis, comparison: Comparison, recommendation: Recommendation) -> str:
    name = recommendation.configuration or ""
    ratio, speedup = find_ratio(diagnosis, name), recommendation.speedup
    against = baseline_phrase(comparison.baseline)
    is_equal = ratio is not None and word_of(ratio) == EQUAL
    tie = f"{'Equal' if is_equal else 'Undecided'}: {clean_name(name)} is not measurably faster than {against}"
    if speedup is not None:
        fresh, in_rounds = recommendation.fresh_processes, ratio.coverage if ratio else None
        interval = interval_clause(speedup.low, speedup.high, in_rounds if fresh is None else COVERAGE_OF_STARTS)
        if fresh is not None:
            interval += f" over {count_of(fresh.starts, 'start')} of fresh processes"
        if speedup.low > 1:
            return f"Fastest: {clean_name(name)}, {format_ratio(speedup.median)} faster than {against} ({interval})"
        return f"{tie}, {format_ratio(speedup.median)} ({interval})"
    if ratio is not None and ratio.verdict != FASTER:
        interval = interval_clause(ratio.low, ratio.high, ratio.coverage)
        return f"{tie}, {format_ratio(ratio.median)} ({interval})"
    return f"Fastest: {clean_name(name)}{against_clause(diagnosis, comparison, name) or _median_text(diagnosis, name)}"


def _certainty(diagnosis: Diagnosis, recommendation: Recommendation) -> str:
    """Whether the gain was measured again and the outputs are equal, else what is missing."""
    trial = diagnosis.measured_trial(recommendation.configuration or "")
    equivalence = trial.equivalence if trial and trial.equivalence else Equivalence(status="not_checked")
    missing = _missing(recommendation, equivalence)
    if recommendation.verified and not missing:
        where = "after the choice" if recommendation.fresh_processes is None else "in fresh processes"
        return f"Verified: the gain was measured again {where}; {outputs_clause(equivalence)}"
    reason = clean(recommendation.reason) if recommendation.reason else "the second measurement did not confirm it"
    return f"Not verified: {listing(missing or [reason], None)}"


def _freezing_lines(comparison: Comparison, recommendation: Recommendation) -> tuple[str, ...]:
    """What frozen weights demand, and what is best for whom that is too much."""
    free = recommendation.without_freezing
    if free is None:
        return ()
    best = f"nothing is faster than {baseline_phrase(comparison.baseline)}"
    if free.speedup is not None:
        interval = f"{free.speedup.low:.2f} to {free.speedup.high:.2f}"
        best = f"{clean_name(free.configuration)}, {format_ratio(free.speedup.median)} ({interval})"
    return ("Freezing: weights must not change afterwards, and no gradients can be had", f"Without freezing: {best}")


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
    """What layouts cost in the baseline; where that has no redundant pair, also what the pairs elsewhere cost."""
    trial = diagnosis.measured_trial(baseline)
    if trial is None:
        return ()
    share, now = convolution_line(trial), _waste_line(trial, "Wasted now")
    if now is not None:
        return tuple(line for line in (now, share) if line is not None)
    others = (_waste_line(t, "Wasted") for t in diagnosis.trials if t is not trial and t.status == "ok")
    elsewhere = next((line for line in others if line is not None), None)
    return tuple(line for line in (_conversions_now(trial), elsewhere, share) if line is not None)


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
    if len(owners) != 1:
        return ""
    logged_by_onednn = trial.kernels is not None and any("oneDNN" in source for source in trial.kernels.sources)
    where = "inside oneDNN" if logged_by_onednn and owners[0] == "library" else OWNER_WORDS[owners[0]]
    return f", all {where}"


def _conversions_now(trial: Trial) -> str | None:
    """How much of the kernel time all conversions of a trial take; None where that was not recorded."""
    conversions = counted_conversions(trial)
    whole = trial.kernels.seconds if trial.kernels is not None else None
    if whole is None:
        known = "kernels not recorded" if trial.kernels is None else f"{len(conversions)}, their times cannot be told"
        return f"Conversions now ({clean_name(trial.name)}): {known}"
    if not conversions or (seconds := sum_seconds(conversions)) is None:
        return None
    cost = f"{format_seconds(seconds)} of {format_seconds(whole)} kernel time{share_of(seconds, whole)}"
    return f"Conversions now ({clean_name(trial.name)}): {len(conversions)}, {cost}, no round trip proved"


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


def _of_one_run(diagnosis: Diagnosis) -> Answer:
    """What layout conversions took in a recorded run, which undo each other, what to try."""
    terms, trial = terms_of(diagnosis), recorded_trial(diagnosis)
    if trial is None:
        return _not_examined(diagnosis)
    counted = counted_conversions(trial)
    if counted:
        lines = tuple(_recorded_lines(diagnosis, trial, terms, counted))
        return Answer(_conversions_headline(trial, terms), lines=lines)
    if trial.kernels is None or not trial.kernels.count:
        return _no_kernels(diagnosis, terms)
    return _no_conversion(diagnosis, trial, trial.kernels, terms)


def _not_examined(diagnosis: Diagnosis) -> Answer:
    failed = next((trial for trial in diagnosis.trials if trial.failure is not None), None)
    why = clean(failure_clause(failed), MOST_FAILURE_CHARACTERS) if failed else "nothing was examined"
    return Answer(f"Nothing could be concluded: {why}")


def _no_kernels(diagnosis: Diagnosis, terms: Terms) -> Answer:
    headline = f"Nothing could be concluded: the {terms.file} holds no "
    if terms.file == "log":
        return Answer(f"{headline}primitive that ran", lines=_IN_A_LOG)
    if terms.file == "table":
        return Answer(f"{headline}kernels")
    return Answer(f"{headline}device kernels", lines=_ON_A_CPU if diagnosis.subject.device == "cpu" else _ON_A_GPU)


def _no_conversion(diagnosis: Diagnosis, trial: Trial, kernels: KernelSummary, terms: Terms) -> Answer:
    seconds = "" if kernels.seconds is None else f", {format_seconds(kernels.seconds)} {terms.time}"
    headline = f"No layout conversion in {count_of(kernels.count, terms.kernel)}{seconds}"
    lines = [*_convolution_lines(kernels, terms), *_doubt_lines(kernels, terms), *_uncounted_lines(trial, terms)]
    return Answer(headline, lines=tuple(lines), is_short=_nothing_else_to_say(diagnosis))


def _convolution_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """How much ran for convolutions, and what of it the libraries' conversions are, which that time holds."""
    if kernels.convolution_count == 0:
        yield f"Convolutions: no {terms.kernel} ran for one"
        return
    count = kernels.convolution_count
    known = [count_of(count, terms.kernel)] if count is not None else []
    part, whole = kernels.conversion_seconds, kernels.convolution_seconds
    if whole:
        known.append(format_seconds(whole))
        if part and part <= whole:
            known.append(f"{precise_share(part, whole)} of that in layout conversions")
    if known:
        yield f"Convolutions: {', '.join(known)}"


def _doubt_lines(kernels: KernelSummary, terms: Terms) -> Iterator[str]:
    """What "none" rests on, where something that could have told is missing."""
    if terms.file != "log" and not any(total.kind == "operation" for total in kernels.totals):
        yield (
            f"Looked for by kernel name alone: the {terms.file} does not say which operations ran, "
            "so copies outside libraries were not judged"
        )
    elif kernels.lacks or kernels.not_understood_count:
        yield f"That is as far as the {terms.file} tells; what it lacks stands below"


def _conversions_headline(trial: Trial, terms: Terms) -> str:
    seconds, kernels = sum_seconds(counted_conversions(trial)), trial.kernels
    if seconds is None:
        count = launch_count(counted_conversions(trial))
        return f"{count_of(count, 'layout conversion')}, whose time was not recorded"
    if kernels is None or not kernels.seconds:
        return f"Layout conversions take {format_seconds(seconds)}; the time of all {terms.kernel}s was not recorded"
    share = precise_share(seconds, kernels.seconds)
    return (
        f"Layout conversions take {format_seconds(seconds)} of {format_seconds(kernels.seconds)} {terms.time} "
        f"({share}){alone_clause(exposed_seconds(trial), seconds)}"
    )


def _recorded_lines(diagnosis: Diagnosis, trial: Trial, terms: Terms, counted: Sequence[Conversion]) -> Iterator[str]:
    if trial.kernels is not None:
        yield from _convolution_lines(trial.kernels, terms)
    yield _owner_line(counted)
    yield from _tensor_lines(counted)
    yield _round_trips_line(trial, terms)
    yield from _source_lines(counted)
    yield from _uncounted_lines(trial, terms)
    if terms.file != "log" and _wants_channels_last(diagnosis, counted):
        yield _TO_TRY
    yield _TO_DIAGNOSE


def _wants_channels_last(diagnosis: Diagnosis, counted: Sequence[Conversion]) -> bool:
    """Whether a rule found what libraries convert worth telling, and most of it is on the way into channels_last."""
    if not any(finding.code in _LIBRARY_RULES for finding in diagnosis.findings):
        return False
    own = [conversion for conversion in counted if conversion.owner == "library"]
    ways = [sum(c.count for c in own if c.direction == way) for way in ("to_channels_last", "to_contiguous")]
    return ways[0] >= ways[1]


def _owner_line(counted: Sequence[Conversion]) -> str:
    """Who made the conversions, and into which layouts."""
    owners = [owner for owner in OWNER_WORDS if any(c.owner == owner for c in counted)]
    parts = []
    for owner in owners:
        own = [conversion for conversion in counted if conversion.owner == owner]
        seconds = _seconds_clause(own) if len(owners) > 1 else ""
        parts.append(f"{launch_count(own)} {OWNER_WORDS[owner]}{seconds} ({_directions(own)})")
    return f"Conversions: {'; '.join(parts)}"


def _directions(conversions: Iterable[Conversion]) -> str:
    counts: Counter[str] = Counter()
    for conversion in conversions:
        counts[direction_words(conversion)] += conversion.count
    return ", ".join(f"{count} {words}" for words, count in counts.most_common())


def _tensor_lines(counted: Sequence[Conversion]) -> Iterator[str]:
    tensors = count_by_tensor(counted)
    if tensors.keys() != {"unknown"}:
        named = [count_of(count, TENSOR_WORDS[kind]) for kind, count in tensors.items()]
        yield f"Tensors converted: {listing(named, None)}"


def _round_trips_line(trial: Trial, terms: Terms) -> str:
    waste = waste_of(trial)
    if waste is None:
        if terms.file == "table":
            return "Round trips: not looked for, as a table of totals has no order"
        lacking = trial.kernels is not None and bool(trial.kernels.lacks)
        return f"Round trips: none found{' in what was recorded' if lacking else ''}"
    seconds = "" if waste.seconds is None else f", {format_seconds(waste.seconds)}"
    counts: Counter[str | None] = Counter(pair.confidence for pair in trial.redundant_pairs)
    rests = [f"{counts[confidence]} {words}" for confidence, words in PROOF_WORDS.items() if counts[confidence]]
    alone = alone_clause(waste.exposed_seconds, waste.seconds)
    return f"Round trips: {'; '.join((f'{waste.pair_count}{seconds}{alone}', *rests))}"


def _source_lines(counted: Iterable[Conversion]) -> Iterator[str]:
    """The user's lines that cost most, where the Python stack was recorded."""
    cost: dict[str, float] = {}
    for conversion in counted:
        if conversion.location is not None and conversion.seconds is not None:
            place = clean(str(conversion.location), 60)
            cost[place] = cost.get(place, 0.0) + conversion.seconds
    ordered = sorted(cost, key=lambda place: -cost[place])
    if ordered:
        yield f"Costliest lines: {listing([f'{p} {format_seconds(cost[p])}' for p in ordered], MOST_SOURCE_LINES)}"


def _uncounted_lines(trial: Trial, terms: Terms) -> Iterator[str]:
    """What looks like a conversion and changes no memory format: named, so that nobody has to wonder."""
    padded = [c for c in trial.kernels.conversions if c.direction == "none"] if trial.kernels is not None else []
    if padded:
        count = count_of(launch_count(padded), f"library {terms.kernel}")
        yield f"Not counted: {count} padding or copying without a layout change{_seconds_clause(padded)}"
    permuted = [c for graph in trial.graphs for c in graph.conversions if c.direction == "none"]
    if permuted:
        count, seconds = count_of(launch_count(permuted), "copy", "copies"), _seconds_clause(permuted)
        yield f"Not counted: {count} into another order of dimensions, as attention makes them{seconds}"


def _seconds_clause(conversions: Iterable[Conversion]) -> str:
    """The time of some conversions with a comma before it; empty where one has no time."""
    seconds = sum_seconds(conversions)
    return "" if seconds is None else f", {format_seconds(seconds)}"
