"""
The sections of a report and everything that stands in them, shared by all formats, so that no two formats can disagree.

A pure function of the diagnosis. Every string here is printable and on one line; a format only arranges and escapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports.sections.answer import Answer, build_answer
from layoutdoctor.reports.sections.rows import Table, build_tables
from layoutdoctor.reports.sections.run_answer import build_run_answer
from layoutdoctor.reports.sections.wording import (
    clean,
    clean_name,
    in_python,
    is_from_python,
    is_recording,
    place_of,
    recorded_trial,
    shown_name,
    sources_of,
    terms_of,
)
from layoutdoctor.words import KINETO_TRACE, count_of, distinct, listing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from layoutdoctor.diagnosis.records import Diagnosis, Finding, Trial

MOST_NAMED = 6

_TIMES = {
    "trace": "kernel times from the profiler, which slows small kernels",
    "table": "times added up as the table has them",
    "log": "times from oneDNN's own log",
}


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """
    One finding as a report shows it.

    Attributes:
        configuration: The trial it is about, unless that is the baseline, the recorded one, or the whole diagnosis.
        is_elsewhere: Whether a short report names it only: it is about neither the baseline nor the recommended
            configuration, or is a note beside something more severe.
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
        made_by: The program and its version.
        interrupted: What stopped the diagnosis, as a sentence; None if it ran to its end.
        remarks: Facts about the model and the trials that the answer and the tables have no room for.
        findings: What the rules found, most severe first.
        not_understood: What could not be recorded or read; empty if all was.
        measurement: How the times were taken.
        hints: Where to go on.
    """

    title: tuple[str, ...]
    made_by: str
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
        """The other findings in a sentence: how many of which."""
        others = [entry for entry in self.findings if entry.is_elsewhere]
        return f"{len(others)} more: {finding_codes(others)}" if others else None


def finding_codes(entries: Sequence[FindingEntry]) -> str:
    """The codes of findings, each once: ``"LD101 and LD103"``."""
    return listing(distinct(entry.code for entry in entries), MOST_NAMED)


def build_view(diagnosis: Diagnosis) -> View:
    """The report of a diagnosis, also of an interrupted one, in sections."""
    answer = build_run_answer(diagnosis) if is_recording(diagnosis) else build_answer(diagnosis)
    if is_from_python(diagnosis):
        answer = replace(answer, notes=tuple((label, in_python(text)) for label, text in answer.notes))
    findings = tuple(_finding_entries(diagnosis))
    return View(
        title=_title(diagnosis),
        made_by=f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        interrupted=None if diagnosis.interrupted is None else _interruption(diagnosis.interrupted),
        answer=answer,
        tables=build_tables(diagnosis),
        remarks=build_remarks(diagnosis),
        findings=findings,
        not_understood=tuple(_not_read(diagnosis) if is_recording(diagnosis) else _not_recorded(diagnosis)),
        measurement=build_measurement(diagnosis),
        hints=build_hints(diagnosis, findings),
    )


def _title(diagnosis: Diagnosis) -> tuple[str, ...]:
    """With the mode, or what wrote the file; torch's version, if it is known; how long all took."""
    environment, seconds = diagnosis.environment, sum(diagnosis.stage_seconds.values())
    mode: str = diagnosis.subject.mode
    if is_recording(diagnosis):
        mode = listing(map(clean_name, sources_of(diagnosis)), None) or mode
    parts = [clean_name(diagnosis.subject.name), mode, _device(diagnosis)]
    parts += [f"torch {clean_name(environment.torch)}"] if environment.torch else []
    parts += [f"{seconds:.0f} s"] if seconds >= 1 else []
    return tuple(parts)


def _device(diagnosis: Diagnosis) -> str:
    device, environment = diagnosis.subject.device, diagnosis.environment
    if diagnosis.subject.target is not None:
        return f"static, {clean_name(diagnosis.subject.target)}"
    if device is None:
        return "device not recorded"
    threads = count_of(environment.thread_count, "thread") if environment.thread_count else None
    more = threads if device == "cpu" else environment.device_name
    return ("CPU" if device == "cpu" else clean_name(device)) + (f", {clean_name(more)}" if more else "")


def _interruption(reason: str) -> str:
    return f"Not finished: {clean(reason)}. The report shows what was measured until then"


def build_remarks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Facts about the subject and about trials that the answer and the tables have no room for."""
    remarks = [clean(note) for note in diagnosis.subject.notes]
    for describe in (_other_output_layouts, _recompiles, _graph_breaks, _launch_bound):
        remarks += _one_line_per_fact(diagnosis, describe)
    noted: dict[str, list[str]] = {}
    for trial in diagnosis.trials:
        for note in trial.notes if trial.status != "same_as" else ():
            noted.setdefault(clean(note), []).append(shown_name(trial.name))
    of_a_trace = is_recording(diagnosis)
    remarks += [note if of_a_trace else f"{listing(names, MOST_NAMED)}: {note}" for note, names in noted.items()]
    return tuple(remarks)


def _one_line_per_fact(diagnosis: Diagnosis, describe: Callable[[Trial], str | None]) -> list[str]:
    """Each fact once, with every configuration it holds for."""
    names: dict[str, list[str]] = {}
    for trial in diagnosis.trials:
        fact = describe(trial)
        if fact is not None:
            names.setdefault(fact, []).append(shown_name(trial.name))
    return [f"{fact}: {listing(found, MOST_NAMED)}" for fact, found in names.items()]


def _other_output_layouts(trial: Trial) -> str | None:
    differ = trial.equivalence is not None and trial.equivalence.output_layouts_differ
    return "Outputs come in another memory format than from eager" if differ else None


def _recompiles(trial: Trial) -> str | None:
    return f"Compiled again {count_of(trial.recompile_count, 'time')} while it ran" if trial.recompile_count else None


def _graph_breaks(trial: Trial) -> str | None:
    breaks = max((graph.graph_breaks for graph in trial.graphs), default=0)
    return f"Cut by {count_of(breaks, 'graph break')}, so seen in parts" if breaks else None


def _launch_bound(trial: Trial) -> str | None:
    """Of a trace, the answer says it."""
    waiting = trial.kernels.waiting if trial.kernels is not None else None
    if waiting is None or waiting.waits_for != "host" or trial.configuration.backend == "recorded":
        return None
    return 'Launch-bound: the GPU waits for the processor most of a call (mode="reduce-overhead" launches faster)'


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
    unrecorded = [shown_name(trial.name) for trial in ran if trial.kernels is None and not trial.is_static]
    if unrecorded:
        yield f"kernels not recorded for {listing(unrecorded, MOST_NAMED)}"
    for describe in (_unread_kernels, _lacking, _hook_failure, _not_followed):
        yield from _one_line_per_fact(diagnosis, describe)


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
    """How the times were taken."""
    if is_recording(diagnosis):
        trial = recorded_trial(diagnosis)
        if trial is None or trial.kernels is None or not trial.kernels.count:
            return ("nothing, as no kernel was read",)
        return ("one recorded run", _TIMES[terms_of(diagnosis).file], "nothing was compared")
    if diagnosis.subject.target is not None:
        return (f"nothing, as the graphs were only lowered for {clean_name(diagnosis.subject.target)}",)
    measured = [trial.measurement for trial in diagnosis.trials if trial.measurement is not None]
    if not measured:
        return ("nothing, as no configuration got that far",)
    rounds = max(len(one.round_seconds) for one in measured)
    parts = [f"up to {count_of(rounds, 'round')} of each configuration, in turns"]
    ratios = diagnosis.comparison.ratios if diagnosis.comparison else ()
    again = [ratio for ratio in ratios if ratio.start_ratios]
    if again:
        starts = count_of(max(len(ratio.start_ratios) for ratio in again), "fresh process", "fresh processes")
        parts.append(f"{listing([shown_name(ratio.name) for ratio in again], MOST_NAMED)}: ratio over {starts}")
    if ratios:
        parts.append("intervals cover the true ratio with 95 % confidence")
    return tuple(parts)


def build_hints(diagnosis: Diagnosis, findings: Sequence[FindingEntry]) -> tuple[str, ...]:
    """Where to go on from this report, which shows these findings."""
    shown = [entry for entry in findings if not entry.is_elsewhere] or findings
    explain = (f"layoutdoctor explain {shown[0].code}",) if shown else ()
    if is_from_python(diagnosis):
        return (*explain, 'diagnosis.save("report.html"), or .md')
    if not is_recording(diagnosis):
        return (*explain, "--output report.html, or report.md for an issue")
    trial = recorded_trial(diagnosis)
    can_mark = trial is not None and KINETO_TRACE in sources_of(diagnosis) and bool(counted_conversions(trial))
    marks = ("--output annotated.json.gz marks them for Perfetto",) if can_mark else ()
    return (*explain, *marks, "layoutdoctor compare OLD NEW")


def _main_name(diagnosis: Diagnosis) -> str:
    """The configuration that a finding is about if the report names none: the baseline, or the only one that ran."""
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
    seen = {(finding.code, finding.location, finding.module) for finding in own}
    is_grave = any(finding.severity != "note" for finding in own)
    for finding in diagnosis.findings:
        is_own = finding.configuration in (None, baseline)
        is_new = finding.configuration == advised and (finding.code, finding.location, finding.module) not in seen
        is_main = (is_own or is_new) and not (is_grave and finding.severity == "note")
        yield _finding_entry(diagnosis, finding, is_elsewhere=not (is_main or shows_all))


def _finding_entry(diagnosis: Diagnosis, finding: Finding, *, is_elsewhere: bool) -> FindingEntry:
    is_main = finding.configuration == _main_name(diagnosis) or is_recording(diagnosis)
    suggestion = clean(finding.suggestion) if finding.suggestion else None
    if suggestion is not None and is_from_python(diagnosis):
        suggestion = in_python(suggestion)
    return FindingEntry(
        code=clean_name(finding.code),
        severity=finding.severity,
        rule=clean_name(finding.rule),
        configuration=shown_name(finding.configuration) if finding.configuration and not is_main else None,
        message=clean(finding.message),
        place=place_of(finding.location, finding.module),
        suggestion=suggestion,
        is_elsewhere=is_elsewhere,
    )
