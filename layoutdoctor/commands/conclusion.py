"""
Concludes every command with a diagnosis: accepted findings, reports, findings that fail the command, exit status.

The options and their files are checked before anything is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.output import (
    ANNOTATED,
    add_output_options,
    for_others,
    prepare_outputs,
    print_report,
    save_reports,
    say_what_was_written,
    writable,
)
from layoutdoctor.commands.streams import OutputError, logger, print_text, say
from layoutdoctor.diagnosis import Diagnosis, Failure, Finding
from layoutdoctor.diagnosis.accepted import (
    NOTHING_ACCEPTED,
    Acceptance,
    accept,
    accept_all,
    load_accepted,
    save_accepted,
)
from layoutdoctor.diagnosis.record import Record
from layoutdoctor.errors import UsageError
from layoutdoctor.files.writing import TRACE_SUFFIX
from layoutdoctor.reports.sections.wording import clean, clean_name, place_of
from layoutdoctor.words import count_of, listing

if TYPE_CHECKING:
    from layoutdoctor.commands.output import Annotate, InputFile, OutputFile
    from layoutdoctor.diagnosis.accepted import AcceptedFile
    from layoutdoctor.privacy.scrubbing import AnyRecord

EXIT_FOUND = 1
EXIT_FAILED = 3
EXIT_INCONCLUSIVE = 4
_MOST_ENTRIES = 5
_MOST_FINDINGS = 20
_JOINED_FORMATS = ("text", "markdown", "json")


def add_conclusion_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every command with a diagnosis, including the options of its reports."""
    parser.add_argument(
        "--fail-on",
        metavar="CODE|error|warning",
        type=severity_or_code,
        help="exit with 1 for a finding with this code, or at least this severe, that is not accepted",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--accepted",
        metavar="FILE",
        help="findings listed in this file do not count for --fail-on, and are marked as accepted",
    )
    group.add_argument(
        "--write-accepted",
        metavar="FILE",
        help=(
            "write all findings to this file as accepted; with --force an existing file is updated and keeps its "
            "reasons"
        ),
    )
    add_output_options(parser)


class FailedTarget(Record, frozen=True, kw_only=True):
    """The entry of a target or trace without a diagnosis, in a list of diagnoses as JSON."""

    target: str
    failure: Failure


@dataclass(frozen=True)
class Conclusion:
    """
    The outputs of a command with a diagnosis, and the findings that fail the command.

    Attributes:
        report_format: Format of the report on standard output.
        fail_on: Least severity, or code, of the findings that fail the command; None if no finding fails the command.
        accepted_path: File of accepted findings, which is read or written; None without such a file.
        accepted: Content of the file at ``accepted_path``; without entries if there is no such file yet.
        annotate: Function that writes an annotated trace; None unless the only file to show is a trace, table or log.
    """

    outputs: tuple[OutputFile, ...]
    report_format: str
    is_redacted: bool
    fail_on: str | None
    accepted_path: Path | None
    accepted: AcceptedFile
    writes_accepted: bool
    annotate: Annotate | None

    def conclude(self, diagnosis: Diagnosis, status: int, show: Callable[[Diagnosis, str], None] = print_report) -> int:
        """
        Writes and prints the reports of a diagnosis; says how many findings are accepted, and which fail the command.

        Args:
            status: Exit status if no finding fails the command.
            show: Function that shows the scrubbed diagnosis in a format.

        Returns:
            The exit status, which is ``status`` without ``fail_on``. With ``fail_on``, a failing finding gives
            ``EXIT_FOUND``; a record with neither kernels nor graphs gives ``EXIT_INCONCLUSIVE``.
        """
        acceptance = self.accept(diagnosis)
        shown = self.for_others(acceptance.diagnosis)
        written: tuple[Path, ...] = ()
        try:
            written = save_reports(shown, self.outputs, self.annotate)
        finally:
            show(shown, self.report_format)
        say_what_was_written(written)
        if self.accepted_path is not None:
            self._end_accepted(self.accepted_path, acceptance)
        if self.fail_on is None:
            return status
        _say_what_failed(shown, self.fail_on)
        if failing_findings(shown, self.fail_on):
            return EXIT_FOUND
        return status if can_be_judged(shown) else EXIT_INCONCLUSIVE

    def for_others(self, record: AnyRecord) -> AnyRecord:
        """Returns a record as this command may show it: scrubbed or redacted."""
        return for_others(record, redact_names=self.is_redacted)

    def accept(self, diagnosis: Diagnosis) -> Acceptance:
        """Marks the accepted findings of a diagnosis. If the file of accepted findings is written, all are accepted."""
        if self.accepted_path is None:
            return Acceptance(diagnosis)
        diagnosis = for_others(diagnosis)  # with scrubbed names, as in the file
        return accept(diagnosis, accept_all(diagnosis, self.accepted) if self.writes_accepted else self.accepted)

    def _end_accepted(self, path: Path, acceptance: Acceptance) -> None:
        """Writes the accepted findings if requested; logs their number, and the entries that no longer hold."""
        count = count_of(acceptance.count, "finding")
        if self.writes_accepted:
            try:
                save_accepted(path, accept_all(acceptance.diagnosis, self.accepted))
            except OSError as error:
                raise OutputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
            logger.info("wrote %s: it accepts %s; fill in the reasons", path, count)
        elif acceptance.count:
            logger.info("%s accepted by %s", count, path)
        for entries, what in (
            (acceptance.gone, f"gone, to be removed from {path}"),
            (acceptance.expired, f"past the last day in {path}"),
            (acceptance.outgrown, f"with more evidence than {path} accepts"),
        ):
            if entries:
                shown = [entry.code if self.is_redacted else clean(str(entry), 200) for entry in entries]
                number = count_of(len(entries), "accepted finding")
                logger.info("%s %s: %s", number, what, listing(shown, _MOST_ENTRIES))


def prepare_conclusion(
    arguments: argparse.Namespace,
    read: Sequence[InputFile],
    annotate: Annotate | None = None,
) -> Conclusion:
    """Checks the options of a conclusion and prepares it; writes nothing yet."""
    read = (*read, arguments.accepted)
    further = {} if annotate is None else {TRACE_SUFFIX: ANNOTATED}
    outputs = prepare_outputs(
        arguments.output, force=arguments.force, read=read, further=further, redact=arguments.redact
    )
    path, accepted, written = None, NOTHING_ACCEPTED, arguments.write_accepted
    if arguments.accepted is not None:
        path = Path(arguments.accepted)
        accepted = load_accepted(path)
    elif written is not None:
        if arguments.redact:
            raise UsageError(
                f"cannot write {written!r} with --redact: accepted findings are recognized by the names of modules "
                "and files; leave out --redact, or --write-accepted"
            )
        path = writable(Path(written), read, force=arguments.force)
        if path.absolute() in {output.path.absolute() for output in outputs}:
            raise UsageError(f"cannot write {str(path)!r} twice: give --output and --write-accepted other files")
        if path.is_file():
            accepted = load_accepted(path)
    is_written = written is not None
    return Conclusion(
        outputs, arguments.format, arguments.redact, arguments.fail_on, path, accepted, is_written, annotate
    )


def severity_or_code(text: str) -> str:
    """Reads a severity or a rule's code, in lower or upper case, from the command line."""
    if text.lower() in ("error", "warning"):
        return text.lower()
    from layoutdoctor.rules import ALL_RULES  # imported late: many runs need no rules, others at their end

    codes = sorted(rule.code for rule in ALL_RULES)
    if text.upper() not in codes:
        raise argparse.ArgumentTypeError(
            f"cannot fail on {text!r}: expected error, warning or one of {', '.join(codes)}"
        )
    return text.upper()


def failing_findings(diagnosis: Diagnosis, fail_on: str | None) -> tuple[Finding, ...]:
    """Returns the findings that fail the command; accepted findings do not."""
    return tuple(finding for finding in diagnosis.findings if finding.accepted is None and is_failing(finding, fail_on))


def is_failing(finding: Finding, fail_on: str | None) -> bool:
    """Whether a finding fails the command if it is not accepted."""
    severities = {"error": ("error",), "warning": ("error", "warning")}.get(fail_on or "", ())
    return finding.code == fail_on or finding.severity in severities


def can_be_judged(diagnosis: Diagnosis) -> bool:
    """Whether kernels or graphs of a configuration were recorded; otherwise, the absence of findings proves nothing."""
    return any(trial.status == "ok" and (trial.kernels is not None or trial.graphs) for trial in diagnosis.trials)


def status_of(diagnosis: Diagnosis) -> int:
    """Returns the exit status: 0 if a configuration was measured or lowered, or no convolution ran; else 4."""
    was_lowered = diagnosis.subject.target is not None and any(trial.status == "ok" for trial in diagnosis.trials)
    was_measured = any(trial.measurement is not None for trial in diagnosis.trials)
    has_no_convolution = all(trial.status == "skipped" and trial.failure is None for trial in diagnosis.trials)
    return 0 if was_lowered or was_measured or has_no_convolution else EXIT_INCONCLUSIVE


def _say_what_failed(diagnosis: Diagnosis, fail_on: str) -> None:
    """Names the findings that fail the command, and the configurations that could not be examined for findings."""
    from layoutdoctor.examination.gaps import examination_of  # imported only with --fail-on

    for trial in diagnosis.trials:
        blockers = () if trial.is_static else examination_of(diagnosis, trial.name).blockers
        if blockers:
            say(f"warning: --fail-on {fail_on} says nothing about {clean_name(trial.name)}: {clean(blockers[0])}")
    failing = failing_findings(diagnosis, fail_on)
    if not failing:
        return
    more = [f"  and {len(failing) - _MOST_FINDINGS} more"] if len(failing) > _MOST_FINDINGS else []
    lines = [f"  {_line(finding)}" for finding in failing[:_MOST_FINDINGS]]
    say(f"failed: {count_of(len(failing), 'finding')} (--fail-on {fail_on})", *lines, *more)
    codes = sorted({finding.code for finding in failing[:_MOST_FINDINGS]})[:2]
    how = " or ".join(f"layoutdoctor explain {code}" for code in codes)
    logger.info("to read about these findings: %s; to accept them: --write-accepted FILE", how)


def _line(finding: Finding) -> str:
    where = [f"[{clean_name(finding.configuration)}]"] if finding.configuration else []
    place = place_of(finding.location, finding.module)
    head = " ".join([clean_name(finding.code), finding.severity, clean_name(finding.rule), *where])
    return f"{head}{f' {place}' if place else ''}: {clean(finding.message)}"


def refuse_outputs_of_several(arguments: argparse.Namespace, count: int) -> None:
    """Refuses output files and formats that can hold only one diagnosis, if there are several."""
    if count > 1 and (arguments.output or arguments.write_accepted is not None):
        raise UsageError(
            f"cannot write one file for {count} diagnoses: --output and --write-accepted take one diagnosis; examine "
            "one file at a time, with --force for --write-accepted after the first"
        )
    if count > 1 and arguments.format not in _JOINED_FORMATS:
        raise UsageError(f"cannot print {count} diagnoses as {arguments.format}: expected {', '.join(_JOINED_FORMATS)}")


def worst_of(statuses: Sequence[int]) -> int:
    """Combines the exit statuses of several diagnoses: failed first, then a finding, then inconclusive, then 0."""
    return next((status for status in (EXIT_FAILED, EXIT_FOUND, EXIT_INCONCLUSIVE) if status in statuses), 0)


def print_records(records: Iterable[bytes]) -> None:
    """Prints several scrubbed JSON records as one list."""
    texts = [msgspec.json.format(record, indent=1).decode() for record in records]
    print_text("[\n" + ",\n".join(texts) + "\n]\n" if texts else "[]\n")
