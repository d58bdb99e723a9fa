"""
Builds the sections of a report and their contents, which all formats share, so that no two formats can disagree.

The sections depend on the diagnosis alone. Every string in them is printable and on one line; a format only arranges
and escapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from layoutdoctor.diagnosis import Configuration, Diagnosis, Finding, KernelSummary, Total, Trial
from layoutdoctor.diagnosis.configurations import BASELINE
from layoutdoctor.examination.counts import counted_conversions
from layoutdoctor.examination.kernels.names import kernel_entry
from layoutdoctor.reports.sections.answer import ReportAnswer, build_answer, situation_of
from layoutdoctor.reports.sections.rows import UNKNOWN_CELL, Table, TableRow, build_tables, format_interval
from layoutdoctor.reports.sections.run_answer import build_run_answer
from layoutdoctor.reports.sections.wording import (
    KERNEL_LENGTH,
    RecordedRun,
    baseline_phrase,
    clean,
    clean_name,
    costs,
    in_python,
    is_from_python,
    place_of,
    recorded_run,
    shown_name,
)
from layoutdoctor.units import format_ratio, format_seconds, sum_if_all_known
from layoutdoctor.words import (
    RAN_AS_EAGER,
    SOURCE_WORDS,
    count_of,
    distinct,
    interval_words,
    joined,
    line_words,
    listing,
    phrase,
)

MOST_NAMED = 6

_TIMES = {
    "trace": "kernel times from the profiler, which slows small kernels",
    "table": "times as the table adds them up",
    "log": "times from oneDNN's own log",
    "compiles": "no times, because a log of compiles has none",
}


@dataclass(frozen=True, slots=True)
class FindingEntry:
    """
    An entry in a report: one finding, or all findings of one rule and one configuration with the same suggestion.

    Attributes:
        findings: The findings of the entry, in their order.
        others: Place and message of each finding but the first, for a format that has room for them.
        configuration: The trial of the findings; empty for the baseline, a recorded run, or the whole diagnosis.
        place: Lines and modules of the findings; empty if none is known.
        suggestion: Advice on what to do; empty if nothing is to be done.
        is_elsewhere: Whether a short report shows only the code of the entry. This holds for configurations other than
            the baseline and the recommended one, and for notes beside more severe findings.
    """

    code: str
    severity: str
    rule: str
    configuration: str
    message: str
    place: str
    suggestion: str
    findings: tuple[Finding, ...]
    others: tuple[str, ...] = ()
    is_elsewhere: bool = False

    @property
    def costs(self) -> str:
        """Time and bytes of all places; empty if they are not known."""
        seconds = sum_if_all_known(*(finding.seconds for finding in self.findings))
        return joined(costs(seconds, sum_if_all_known(*(finding.bytes_moved for finding in self.findings))), ", ")


@dataclass(frozen=True, slots=True)
class View:
    """
    A report before a format arranges it.

    Attributes:
        title: The subject, its mode, the device, in parts.
        made_by: The program and its version.
        interrupted: Sentence that says why the diagnosis stopped; empty if it ran to its end.
        remarks: Facts about the model and the trials for which the answer and the tables have no room.
        findings: The entries on findings, most severe first.
        not_understood: Everything that could not be recorded or read.
        measurement: Phrases that say how the times were taken.
        hints: Options and commands for further reports.
    """

    title: tuple[str, ...]
    made_by: str
    interrupted: str
    answer: ReportAnswer
    tables: tuple[Table, ...]
    remarks: tuple[str, ...]
    findings: tuple[FindingEntry, ...]
    not_understood: tuple[str, ...]
    measurement: tuple[str, ...]
    hints: tuple[str, ...]

    @property
    def main_findings(self) -> tuple[FindingEntry, ...]:
        """The findings that a short report shows."""
        return tuple(entry for entry in self.findings if not entry.is_elsewhere)

    @property
    def other_findings(self) -> str:
        """The number and codes of the findings that a short report leaves out; empty if it leaves out no finding."""
        others = [entry for entry in self.findings if entry.is_elsewhere]
        return f"{len(others)} more: {finding_codes(others)}" if others else ""


def finding_codes(entries: Sequence[FindingEntry]) -> str:
    """Lists the codes of findings, each once, with the number of its findings if it has several: ``"LD101 (2)"``."""
    counts = Counter(entry.code for entry in entries)
    return listing([f"{code} ({count})" if count > 1 else code for code, count in counts.items()], MOST_NAMED)


def build_view(diagnosis: Diagnosis) -> View:
    """Returns the report of a diagnosis in sections; the diagnosis may be interrupted."""
    run = recorded_run(diagnosis)
    answer = build_answer(diagnosis) if run is None else build_run_answer(diagnosis, run)
    if is_from_python(diagnosis):
        answer = replace(answer, notes=tuple((label, in_python(text)) for label, text in answer.notes))
    findings = tuple(_finding_entries(diagnosis))
    stopped = "Not finished: {}. The report shows what was measured until then"
    return View(
        title=_title(diagnosis, run),
        made_by=f"layoutdoctor {clean_name(diagnosis.layoutdoctor_version)}",
        interrupted=phrase(stopped, diagnosis.interrupted, clean),
        answer=answer,
        tables=build_tables(diagnosis, run),
        remarks=build_remarks(diagnosis),
        findings=findings,
        not_understood=tuple(_not_understood(diagnosis)),
        measurement=_measurement(diagnosis, run),
        hints=_hints(diagnosis, run, findings),
    )


def _title(diagnosis: Diagnosis, run: RecordedRun | None) -> tuple[str, ...]:
    environment, seconds = diagnosis.environment, sum(diagnosis.stage_seconds.values())
    mode: str = diagnosis.subject.mode
    if run is not None:
        mode = listing((SOURCE_WORDS[source] for source in run.sources), None) or mode
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
    return ("CPU" if device == "cpu" else clean_name(device)) + phrase(", {}", more, clean_name)


def build_remarks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """Returns facts about the subject and about trials for which the answer and the tables have no room."""
    facts = _with_names(diagnosis, ((fact, trial) for trial in diagnosis.own_trials for fact in _facts_of(trial)))
    return (*map(clean, diagnosis.subject.notes), *facts)


def _with_names(diagnosis: Diagnosis, facts: Iterable[tuple[str, Trial]]) -> Iterator[str]:
    """Merges equal facts, with the names of their configurations in front; a recorded run gets no name."""
    names: dict[str, list[str]] = {}
    for fact, trial in facts:
        names.setdefault(fact, []).append(shown_name(trial.name))
    for fact, found in names.items():
        yield fact if diagnosis.is_recording else f"{listing(found, MOST_NAMED)}: {fact}"


def _facts_of(trial: Trial) -> Iterator[str]:
    if trial.equivalence is not None and trial.equivalence.output_layouts_differ:
        yield "outputs have another memory format than in eager mode"
    if trial.recompile_count:
        yield f"compiled again {count_of(trial.recompile_count, 'time')} while it ran"
    breaks = max((graph.graph_breaks for graph in trial.graphs), default=0)
    if breaks:
        yield f"split by {count_of(breaks, 'graph break')}, so its parts were examined one by one"
    waiting = trial.kernel_summary.waiting
    if waiting is not None and waiting.waits_for == "host" and trial.configuration.backend != "recorded":
        mode = 'mode="reduce-overhead"'
        how = f"{mode} launches" if trial.configuration.backend == "inductor" else f"torch.compile with {mode} may be"
        advice = f" ({how} faster)" if _may_use_cuda_graphs(trial.configuration) else ""
        yield f"launch-bound: the GPU waits for the processor most of a call{advice}"
    ran_as_eager = (RAN_AS_EAGER,) if trial.ran_as_eager else ()
    yield from map(clean, (*trial.notes, *ran_as_eager, *(lack.reason for lack in trial.lacks)))


def _may_use_cuda_graphs(configuration: Configuration) -> bool:
    """Whether a configuration could use CUDA graphs and does not yet; a package cannot use them."""
    has_them = configuration.compile_arguments.get("mode") in ("reduce-overhead", "max-autotune")
    return not (has_them or configuration.inductor_options.get("triton.cudagraphs") or configuration.ahead_of_time)


def _not_understood(diagnosis: Diagnosis) -> Iterator[str]:
    """Yields everything that could not be recorded or read."""
    ran = [trial for trial in diagnosis.trials if trial.status == "ok"]
    if diagnosis.is_recording and not ran:
        yield "nothing was read, so nothing is known"
    yield from _with_names(diagnosis, ((gap, trial) for trial in ran for gap in distinct(_gaps_of(trial))))


def _gaps_of(trial: Trial) -> Iterator[str]:
    kernels = trial.kernel_summary
    if kernels.not_understood_count:
        yield f"{count_of(kernels.not_understood_count, 'event or kernel', 'events or kernels')} could not be read"
    if not trial.is_static:
        yield from (clean(lack.reason, 300) for lack in kernels.lacks)
    yield from _possible(kernels)
    for graph in trial.graphs:
        if graph.hook_failure:
            yield f"a graph was not read ({clean(graph.hook_failure, 200)})"
        if graph.not_understood:
            yield f"not followed in the graph: {'; '.join(clean(part, 200) for part in graph.not_understood)}"


_WHY_POSSIBLE = {
    "generated": "generated code for two dimensions",
    "strided_copy": "eager copies whose strides were not recorded",
}


def _possible(kernels: KernelSummary) -> Iterator[str]:
    """Yields the kernels that may convert a layout, grouped by the reason for the doubt."""
    noun = "call" if "operation_averages" in kernels.sources else "kernel"
    groups: dict[str, list[Total]] = {}
    for total in kernels.totals:
        if total.kind == "possible":
            entry = kernel_entry(total.name)
            why = _WHY_POSSIBLE.get(entry.role if entry is not None else "", "kernel names alone do not show it")
            groups.setdefault(why, []).append(total)
    for why, own in groups.items():
        count, seconds = sum(total.count for total in own), sum(total.seconds for total in own)
        names = listing((clean(total.name, KERNEL_LENGTH) for total in own), 2)
        yield f"{count_of(count, noun)} ({format_seconds(seconds)}) may convert a layout ({why}): {names}"


def _measurement(diagnosis: Diagnosis, run: RecordedRun | None) -> tuple[str, ...]:
    """Says how the times were taken."""
    if run is not None:
        return ("one recorded run", _TIMES[run.kind], "nothing was compared")
    if diagnosis.subject.target is not None:
        return (f"nothing, because the graphs were only lowered for {clean_name(diagnosis.subject.target)}",)
    if all(trial.measurement is None for trial in diagnosis.trials):
        return ("nothing, because no configuration was timed",)
    kept = ", in processes that keep freed memory" if diagnosis.subject.device == "cpu" else ""
    said = [f"all configurations in turns, round by round{kept}", "intervals cover the true ratio with 95 % confidence"]
    if diagnosis.reproduction is not None and diagnosis.reproduction.given_back is not None:
        median, *ends = diagnosis.reproduction.given_back
        ratio = f"{format_ratio(median)} ({interval_words(*ends)})"
        said.append(f"{ratio} in processes of the reproducer that give freed memory back")
    return tuple(said)


def _hints(diagnosis: Diagnosis, run: RecordedRun | None, findings: Sequence[FindingEntry]) -> tuple[str, ...]:
    """Returns options and commands for further reports and for the first finding."""
    shown = [entry for entry in findings if not entry.is_elsewhere] or findings
    explain = (f"layoutdoctor explain {shown[0].code}",) if shown else ()
    if is_from_python(diagnosis):
        return (*explain, 'diagnosis.save("report.html"), or .md')
    if run is None:
        return (*explain, "--output report.html, or report.md for an issue")
    can_mark = "kineto_trace" in run.sources and bool(counted_conversions(run.trial))
    marks = ("--output annotated.json.gz shows conversions in Perfetto",) if can_mark else ()
    return (*explain, *marks, "layoutdoctor compare OLD NEW")


def _finding_entries(diagnosis: Diagnosis) -> Iterator[FindingEntry]:
    """Yields the entries in order; a finding that baseline and recommendation share is a main finding only once."""
    ran = [trial.name for trial in diagnosis.trials if trial.status == "ok"]
    main = ran[0] if len(ran) == 1 else diagnosis.baseline_name
    shows_all = diagnosis.is_recording or main not in ran
    own = [finding for finding in diagnosis.findings if finding.configuration in (None, main)]
    seen = {_key_of_place(finding) for finding in own}
    is_grave = any(finding.severity != "note" for finding in own)
    for findings in _by_cure(diagnosis.findings):
        first = findings[0]
        is_new = first.configuration == diagnosis.recommended_name and not seen.issuperset(map(_key_of_place, findings))
        is_own = first.configuration in (None, main)
        is_main = (is_own or is_new) and not (is_grave and first.severity == "note")
        is_named = not is_own and not diagnosis.is_recording
        suggestion = clean(first.suggestion or "")
        entry = FindingEntry(
            code=clean_name(first.code),
            severity=first.severity,
            rule=clean_name(first.rule),
            configuration=shown_name(first.configuration or "") if is_named else "",
            message=clean(first.message),
            place=place_of(first.location, first.module),
            suggestion=in_python(suggestion) if is_from_python(diagnosis) else suggestion,
            findings=findings,
            is_elsewhere=not (shows_all or is_main),
        )
        yield entry if len(findings) == 1 else _of_several_places(entry)


def _key_of_place(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.location, finding.module


def _by_cure(findings: Iterable[Finding]) -> Iterable[tuple[Finding, ...]]:
    """Groups findings with equal rule, configuration and suggestion; a finding without suggestion stays alone."""
    groups: dict[tuple[object, ...], tuple[Finding, ...]] = {}
    for number, finding in enumerate(findings):
        alone = None if finding.suggestion else number
        key = finding.code, finding.configuration, finding.suggestion, alone
        groups[key] = (*groups.get(key, ()), finding)
    return groups.values()


def _of_several_places(entry: FindingEntry) -> FindingEntry:
    """Returns the entry of several findings, with all places, the cost of all, and the first finding's message."""
    places = distinct(filter(None, (place_of(finding.location, finding.module) for finding in entry.findings)))
    known = [finding.location for finding in entry.findings if finding.location is not None]
    lines = distinct(clean(line_words(location, with_folders=True), 200) for location in known)
    cost = phrase(", {} in all", entry.costs)
    message = f"{count_of(len(places), 'place')}{cost}; the costliest: {entry.message}"
    others = (
        joined((place_of(finding.location, finding.module), clean(finding.message)), ": ")
        for finding in entry.findings[1:]
    )
    place = _lines_of_files(lines) if lines else listing(places, None)
    return replace(entry, place=place, message=message, others=tuple(others))


def _lines_of_files(lines: Sequence[str]) -> str:
    """Lists lines, with the name of each file once: ``"stereo.py:41, 42 and 44"``."""
    files: dict[str, list[str]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(number)
    return ", ".join(
        f"{file}:{listing(numbers, None)}" if file else listing(numbers, None) for file, numbers in files.items()
    )


# ---------------------------------------------------------------------------------------------- several models
def build_table_of_models(found: Mapping[str, Diagnosis | str]) -> Table:
    """
    Makes the table of several models, in the given order.

    Args:
        found: Diagnosis of each target, or the reason why there is none.
    """
    head = ("model", "use", "against the default", "sure?", "breaks the format")
    return Table(head, tuple(build_row_of_model(target, one) for target, one in found.items()))


def build_row_of_model(target: str, found: Diagnosis | str) -> TableRow:
    """Makes the row of one model."""
    name = clean_name(target)
    if isinstance(found, str):
        return TableRow((name,), clause=clean(found, 200))
    return TableRow((name, *_use(found), _breakers(found)))


def _use(diagnosis: Diagnosis) -> tuple[str, str, str]:
    """Returns the configuration to use, its ratio, and how certain the ratio is."""
    situation, advice, ratio = situation_of(diagnosis), diagnosis.recommendation, diagnosis.speedup
    if advice is None or advice.configuration is None:
        return UNKNOWN_CELL, UNKNOWN_CELL, situation.in_table
    gain = phrase("{}", ratio, format_interval) or UNKNOWN_CELL
    starts = len(ratio.start_ratios) if ratio is not None else 0
    sure = f"{count_of(starts, 'fresh process', 'fresh processes')} agree" if advice.verified else "one process"
    return baseline_phrase(advice.configuration), gain, situation.in_table or sure


def _breakers(diagnosis: Diagnosis) -> str:
    """Names the layout breaker of the default that moves most bytes; else a breaker of another configuration."""
    for trial in sorted(diagnosis.trials, key=lambda trial: trial.name != BASELINE):
        breakers = [breaker for graph in trial.graphs for breaker in graph.breakers]
        if breakers:
            worst = max(breakers, key=lambda breaker: breaker.bytes_moved or 0)
            place = phrase("{}", worst.location, line_words) or worst.module
            more = f", and {len(breakers) - 1} more" if len(breakers) > 1 else ""
            where = "" if trial.name == BASELINE else f" in {shown_name(trial.name)}"
            return f"{clean(joined((worst.op, place), ' at '))}{more}{where}"
    return UNKNOWN_CELL
