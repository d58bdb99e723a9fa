"""
The sections of a report and everything that stands in them, shared by all formats, so that no two formats can disagree.

A pure function of the diagnosis. Every string here is printable and on one line; a format only arranges and escapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.accepted import ABOUT_MEASUREMENT
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.examination.ratios import COVERAGE_OF_STARTS, EQUAL, WITHIN_EQUALITY, word_of
from layoutdoctor.examination.trust import WITHOUT_SECONDS
from layoutdoctor.reports.sections.answer import Answer, build_answer
from layoutdoctor.reports.sections.rows import Table, build_tables
from layoutdoctor.reports.sections.run_answer import build_run_answer
from layoutdoctor.reports.sections.verdicts import load_clause
from layoutdoctor.reports.sections.wording import (
    clean,
    clean_name,
    format_error,
    in_python,
    is_from_python,
    is_recording,
    place_of,
    recorded_trial,
    sources_of,
    terms_of,
)
from layoutdoctor.units import format_share
from layoutdoctor.words import KINETO_TRACE, count_of, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

STABLE_WIDTH = 0.10
"""Intervals wider than this (high over low, less one) are called unstable, as rule LD401 does."""

UNSTABLE_CODE = "LD401"
MOST_NAMED = 6
MOST_ELSEWHERE = 50

_TIMES = {
    "trace": "kernel times from the profiler, which slows small kernels",
    "table": "times added up as the table has them",
    "log": "times from oneDNN's own log",
}


def build_remarks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Facts about the subject and about trials that the answer and the tables have no room for."""
    remarks = [clean(note) for note in diagnosis.subject.notes]
    for describe in (_dropped, _different_outputs, _other_output_layouts, _recompiles, _graph_breaks):
        remarks += _one_line_per_fact(diagnosis, describe)
    doubted: dict[str, str] = {}  # times that cannot be true
    for trial in diagnosis.trials:
        if trial.status != "same_as":  # the table says what it is the same as; its notes stand in the record
            about = "" if is_recording(diagnosis) else f"{clean_name(trial.name)}: "
            for note in trial.notes:
                if note.endswith(WITHOUT_SECONDS):
                    doubted[clean_name(trial.name)] = clean(note)
                else:
                    remarks.append(f"{about}{clean(note)}")
    if doubted:  # in one line, with the first one's reason
        (name, note), *others = doubted.items()
        alike = f"; so it is with {listing([other for other, _ in others], MOST_NAMED)}" if others else ""
        remarks.append(f"{name}: {note}{alike}")
    return tuple(remarks)


def _one_line_per_fact(diagnosis: Diagnosis, describe: Callable[[Trial], str | None]) -> list[str]:
    """Each fact once, with every configuration it holds for."""
    names: dict[str, list[str]] = {}
    for trial in diagnosis.trials:
        fact = describe(trial)
        if fact is not None:
            names.setdefault(fact, []).append(clean_name(trial.name))
    return [f"{fact}: {listing(found, MOST_NAMED)}" for fact, found in names.items()]


def _dropped(trial: Trial) -> str | None:
    if trial.measurement is None or trial.measurement.dropped_after_round is None:
        return None
    rounds = count_of(trial.measurement.dropped_after_round, "round")
    return f"Dropped early, clearly slower than the fastest, after {rounds}"


def _different_outputs(trial: Trial) -> str | None:
    equivalence = trial.equivalence
    if equivalence is None or equivalence.status == "equal":
        return None
    detail = f" ({clean(equivalence.detail, 300)})" if equivalence.detail else ""
    if equivalence.status == "not_checked":
        return f"Outputs not compared{detail}"
    if detail or equivalence.max_abs_error is None or equivalence.tolerance is None:
        return f"Outputs differ from the reference{detail}"
    error, allowed = format_error(equivalence.max_abs_error), format_error(equivalence.tolerance)
    return f"Outputs differ by {error}, allowed {allowed}"


def _other_output_layouts(trial: Trial) -> str | None:
    differ = trial.equivalence is not None and trial.equivalence.output_layouts_differ
    return "Outputs come in another memory format than from eager" if differ else None


def _recompiles(trial: Trial) -> str | None:
    return f"Compiled again {count_of(trial.recompile_count, 'time')} while it ran" if trial.recompile_count else None


def _graph_breaks(trial: Trial) -> str | None:
    breaks = max((graph.graph_breaks for graph in trial.graphs), default=0)
    return f"Cut by {count_of(breaks, 'graph break')}, so seen in parts" if breaks else None


def _not_read(diagnosis: Diagnosis) -> Iterator[str]:
    """What the file of a run lacks, and what in it could not be read."""
    trial = recorded_trial(diagnosis)
    if trial is None:
        yield "nothing was read, so nothing is known"
    elif trial.kernels is None:
        yield "the kernel list was not recorded"
    else:
        if trial.kernels.not_understood_count and not (trial.kernels.lacks or diagnosis.subject.notes):
            what = count_of(trial.kernels.not_understood_count, "event or conversion", "events or conversions")
            yield f"{what} could not be read or described"
        yield from (clean(lack, 300) for lack in trial.kernels.lacks)
        yield from dict.fromkeys(clean(what, 200) for graph in trial.graphs for what in graph.not_understood)


def _not_recorded(diagnosis: Diagnosis) -> Iterator[str]:
    ran = [trial for trial in diagnosis.trials if trial.status == "ok"]
    unrecorded = [clean_name(trial.name) for trial in ran if trial.kernels is None and not trial.is_static]
    if unrecorded:
        yield f"kernels not recorded for {listing(unrecorded, MOST_NAMED)}"
    for describe in (_unread_kernels, _lacking, _hook_failure, _not_followed):
        yield from _one_line_per_fact(diagnosis, describe)
    if not ran:
        done = "ran" if diagnosis.subject.target is None else "was lowered"
        yield f"nothing {done}, so nothing was recorded"


def _unread_kernels(trial: Trial) -> str | None:
    count = trial.kernels.not_understood_count if trial.kernels else 0
    return count_of(count, "kernel record") if count else None


def _lacking(trial: Trial) -> str | None:
    lacks = trial.kernels.lacks if trial.kernels else ()
    return f"the kernel list lacks {listing((clean(lack, 200) for lack in lacks), None)}" if lacks else None


def _hook_failure(trial: Trial) -> str | None:
    failures = [graph.hook_failure for graph in trial.graphs if graph.hook_failure]
    return f"a graph was not read ({clean(failures[0], 200)})" if failures else None


def _not_followed(trial: Trial) -> str | None:
    found = dict.fromkeys(clean(what, 200) for graph in trial.graphs for what in graph.not_understood)
    return f"not followed in the graph: {'; '.join(found)}" if found else None


def build_measurement(diagnosis: Diagnosis) -> tuple[str, ...]:
    """How well the times are known."""
    if is_recording(diagnosis):
        trial = recorded_trial(diagnosis)
        if trial is None or trial.kernels is None or not trial.kernels.count:
            return ("nothing, as no kernel was read",)
        return ("one recorded run", _TIMES[terms_of(diagnosis).file], "nothing was compared")
    if diagnosis.subject.target is not None:
        return (f"nothing, as the graphs were only lowered for {clean_name(diagnosis.subject.target)}",)
    measured = [trial for trial in diagnosis.trials if trial.measurement is not None]
    if not measured:
        return ("nothing, as no configuration got that far",)
    rounds = max(len(trial.measurement.round_seconds) for trial in measured if trial.measurement is not None)
    rest = (_slow_rounds(diagnosis), _starts(diagnosis), _equality(diagnosis), load_clause(diagnosis.comparison))
    return (f"{count_of(rounds, 'round')}, {_stability(diagnosis)}", *(clause for clause in rest if clause))


def _stability(diagnosis: Diagnosis) -> str:
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    known = [(r.high / r.low - 1, r.coverage) for r in ratios if r.coverage is not None and r.low > 0]
    if not known:
        if diagnosis.comparison is not None and diagnosis.comparison.is_too_busy:
            return "which tell nothing"
        return "too few to compare" if ratios else "nothing to compare"
    width, coverage = max(known)
    unstable = width > STABLE_WIDTH or any(finding.code == UNSTABLE_CODE for finding in diagnosis.findings)
    kind = f"{format_share(coverage)} interval"
    widest = f"widest {kind} {format_share(width)}" if width <= 1 else f"a {kind} is more than twofold"
    return f"{'not stable' if unstable else 'stable'} ({widest})"


def _slow_rounds(diagnosis: Diagnosis) -> str | None:
    count = 0 if diagnosis.comparison is None else diagnosis.comparison.slow_round_count
    return f"{count_of(count, 'further round')} left out, in which the machine was slower for all" if count else None


def _starts(diagnosis: Diagnosis) -> str | None:
    """Whose ratios are over further starts of fresh processes; None where nobody's are."""
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    counts = {clean_name(ratio.name): ratio.start_count for ratio in ratios if ratio.start_count}
    if not counts:
        return None
    names, starts = list(counts), count_of(max(counts.values()), "start")
    fresh = diagnosis.recommendation.fresh_processes if diagnosis.recommendation is not None else None
    left_out = 0 if fresh is None else fresh.slow_starts
    slow = f"; {left_out} more left out, the machine being slower for all" if left_out else ""
    whose = f"the ratio{'s' if len(names) > 1 else ''} of {listing(names, None)}"
    interval = f"{format_share(COVERAGE_OF_STARTS)} interval"
    linked = any(ratio.start_count == 0 for ratio in ratios)
    others = f", the others by way of {'these' if len(names) > 1 else 'it'}" if linked else ""
    return f"{whose} over {starts} of fresh processes ({interval}{slow}){others}; medians over the rounds"


def _equality(diagnosis: Diagnosis) -> str | None:
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    return f"equal means {WITHIN_EQUALITY}" if any(word_of(ratio) == EQUAL for ratio in ratios) else None


def build_hints(diagnosis: Diagnosis, findings: Sequence[FindingEntry]) -> tuple[str, ...]:
    """Where to go on from this report, which shows these findings."""
    shown = [entry for entry in findings if not entry.is_elsewhere] or findings
    about = f" {shown[0].code}" if shown else ""
    explain = f"layoutdoctor explain{about}"
    if is_from_python(diagnosis):
        save = 'diagnosis.save("{}") for {}'
        return (f"python -m {explain}", save.format("report.md", "an issue"), save.format("d.json", "every number"))
    if not is_recording(diagnosis):
        return (explain, "--output report.md for an issue", "--output d.json for every number")
    trial = recorded_trial(diagnosis)
    can_mark = trial is not None and KINETO_TRACE in sources_of(diagnosis) and bool(counted_conversions(trial))
    marks = ("--output annotated.json.gz marks them for Perfetto",) if can_mark else ()
    return (explain, *marks, "layoutdoctor compare OLD NEW")


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """
    One finding as a report shows it.

    Attributes:
        configuration: The trial it is about, unless that is the baseline, the recorded one, or the whole diagnosis.
        is_elsewhere: Whether a short report names it only: it is about a configuration that is neither the baseline nor
            what is recommended, or says of the recommended one what was said of the baseline, or is a note beside
            something more severe, or about the measurement beside something about the model.
    """

    code: str
    severity: str
    rule: str
    configuration: str | None
    message: str
    place: str | None
    suggestion: str | None
    is_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """
    A report before it is laid out.

    Attributes:
        title: What was diagnosed where, in parts.
        interrupted: What stopped the diagnosis, as a sentence; None where it ran to its end.
        findings: What the rules found, most severe first.
    """

    title: tuple[str, ...]
    interrupted: str | None
    answer: Answer
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    findings: tuple[FindingEntry, ...]
    not_understood: tuple[str, ...]
    measurement: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def main_findings(self) -> tuple[FindingEntry, ...]:
        """The findings that a short report has room for."""
        return tuple(entry for entry in self.findings if not entry.is_elsewhere)

    @property
    def other_findings(self) -> str | None:
        """The other findings in a sentence: which, of what."""
        others = [entry for entry in self.findings if entry.is_elsewhere]
        names: dict[str, list[str]] = {}
        for entry in others[:MOST_ELSEWHERE]:
            names.setdefault(f"{entry.code} {entry.rule}", []).append(entry.configuration or "")
        told = []
        for rule, places in names.items():
            where = listing((place for place in dict.fromkeys(places) if place), MOST_NAMED)
            told.append(f"{rule} in {where}" if where else rule)
        left_out = len(others) - MOST_ELSEWHERE
        told += [f"{left_out} more"] if left_out > 0 else []
        return f"Also found: {'; '.join(told)}" if told else None


def build_view(diagnosis: Diagnosis) -> View:
    """The report of a diagnosis, also of an interrupted one, in sections."""
    not_understood = _not_read(diagnosis) if is_recording(diagnosis) else _not_recorded(diagnosis)
    answer = build_run_answer(diagnosis) if is_recording(diagnosis) else build_answer(diagnosis)
    if is_from_python(diagnosis):
        lines = tuple(map(in_python, answer.lines))
        answer = replace(answer, headline=in_python(answer.headline), lines=lines)
    findings = tuple(_finding_entries(diagnosis))
    return View(
        title=_title(diagnosis),
        interrupted=_interruption(diagnosis),
        answer=answer,
        tables=build_tables(diagnosis),
        remarks=build_remarks(diagnosis),
        findings=findings,
        not_understood=tuple(not_understood) or ("nothing",),
        measurement=build_measurement(diagnosis),
        hints=build_hints(diagnosis, findings),
    )


def _title(diagnosis: Diagnosis) -> tuple[str, ...]:
    """With the mode, or what wrote the file; torch's version only where the file says it, as hardly any does."""
    mode: str = diagnosis.subject.mode
    torch = f"torch {clean_name(diagnosis.environment.torch)}" if diagnosis.environment.torch else None
    if is_recording(diagnosis):
        mode = listing(map(clean_name, sources_of(diagnosis)), None) or mode
    else:
        torch = torch or "torch version not recorded"
    return (
        f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        clean_name(diagnosis.subject.name),
        mode,
        _device(diagnosis),
        *([torch] if torch else []),
    )


def _device(diagnosis: Diagnosis) -> str:
    device, environment = diagnosis.subject.device, diagnosis.environment
    if diagnosis.subject.target is not None:
        return f"static, {clean_name(diagnosis.subject.target)}"
    if device is None:
        return "device not recorded"
    threads = count_of(environment.thread_count, "thread") if environment.thread_count else None
    more = threads if device == "cpu" else environment.device_name
    return clean_name(device) + (f" ({clean_name(more)})" if more else "")


def _interruption(diagnosis: Diagnosis) -> str | None:
    if diagnosis.interrupted is None:
        return None
    return f"Not finished: {clean(diagnosis.interrupted)}. What follows rests on what was recorded until then"


def _main_name(diagnosis: Diagnosis) -> str:
    """The configuration that a report is about where it names none: the baseline, or the only one that ran."""
    if diagnosis.comparison is not None:
        return diagnosis.comparison.baseline
    ran = [trial.name for trial in diagnosis.trials if trial.status == "ok"]
    return ran[0] if len(ran) == 1 else BASELINE


def _finding_entries(diagnosis: Diagnosis) -> Iterator[FindingEntry]:
    """The findings in their order."""
    baseline = _main_name(diagnosis)
    advised = diagnosis.recommendation.configuration if diagnosis.recommendation else None
    ran = any(trial.name == baseline and trial.status == "ok" for trial in diagnosis.trials)
    shows_all = is_recording(diagnosis) or not ran
    own = [finding for finding in diagnosis.findings if finding.configuration in (None, baseline)]
    told = {(finding.code, finding.location, finding.module) for finding in own}
    about_model = [finding for finding in own if finding.code not in ABOUT_MEASUREMENT]
    is_grave = any(finding.severity != "note" for finding in about_model)
    for finding in diagnosis.findings:
        is_own = finding.configuration in (None, baseline)
        is_new = finding.configuration == advised and (finding.code, finding.location, finding.module) not in told
        is_minor = bool(about_model) and finding.code in ABOUT_MEASUREMENT
        is_main = (is_own or is_new) and not (is_minor or (is_grave and finding.severity == "note"))
        yield _finding_entry(diagnosis, finding, is_elsewhere=not (is_main or shows_all))


def _finding_entry(diagnosis: Diagnosis, finding: Finding, *, is_elsewhere: bool) -> FindingEntry:
    baseline = _main_name(diagnosis)
    about = finding.configuration if finding.configuration != baseline and not is_recording(diagnosis) else None
    suggestion = clean(finding.suggestion) if finding.suggestion else None
    if suggestion is not None and is_from_python(diagnosis):
        suggestion = in_python(suggestion)
    return FindingEntry(
        code=clean_name(finding.code),
        severity=finding.severity,
        rule=clean_name(finding.rule),
        configuration=clean_name(about) if about else None,
        message=clean(finding.message),
        place=place_of(finding.location, finding.module),
        suggestion=suggestion,
        is_elsewhere=is_elsewhere,
    )
