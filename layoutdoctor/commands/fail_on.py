"""
``--fail-on``: which findings make a command end with an exit status of their own, for CI, and which ones did.

Faces the subcommands.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from layoutdoctor.analysis.examined import examination_of
from layoutdoctor.commands.output import for_others
from layoutdoctor.errors import UsageError
from layoutdoctor.reports.sections.wording import clean, clean_name, count_of, place_of
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.records import Diagnosis, Finding

EXIT_FOUND = 1
_MOST_NAMED = 20


def add_fail_on_option(parser: argparse.ArgumentParser) -> None:
    """
    The option itself.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument(
        "--fail-on",
        metavar="CODE|error|warning",
        help="exit with 1 where there is such a finding, or a more severe one, that is not accepted",
    )


def check_fail_on(fail_on: str | None) -> str | None:
    """
    Refuses what can never be found.

    Args:
        fail_on: A severity, a rule's code in either case, or None.

    Returns:
        It as findings have it.

    Raises:
        UsageError: It is neither.
    """
    codes = [rule.code for rule in ALL_RULES]
    if fail_on is None:
        return None
    known = {name.lower(): name for name in ("error", "warning", *codes)}
    if fail_on.lower() not in known:
        raise UsageError(f"cannot fail on {fail_on!r}: expected error, warning or one of {', '.join(sorted(codes))}")
    return known[fail_on.lower()]


def failing_findings(diagnosis: Diagnosis, fail_on: str | None) -> tuple[Finding, ...]:
    """
    The findings that the user wants to fail on; accepted ones are none of them.

    Args:
        diagnosis: Any diagnosis.
        fail_on: From ``check_fail_on``; None fails on nothing.
    """
    severities = {"error": ("error",), "warning": ("error", "warning")}.get(fail_on or "", ())
    return tuple(
        finding
        for finding in diagnosis.findings
        if finding.accepted is None and (finding.severity in severities or finding.code == fail_on)
    )


def has_failing_finding(diagnosis: Diagnosis, fail_on: str | None) -> bool:
    """
    Whether a diagnosis has a finding that the user wants to fail on.

    Args:
        diagnosis: Any diagnosis.
        fail_on: From ``check_fail_on``.
    """
    return bool(failing_findings(diagnosis, fail_on))


def can_be_judged(diagnosis: Diagnosis) -> bool:
    """
    Whether any configuration left something to look at: no finding is no pass where nothing was recorded.

    Args:
        diagnosis: Any diagnosis.
    """
    return any(trial.status == "ok" and (trial.kernels is not None or trial.graphs) for trial in diagnosis.trials)


def say_what_failed(diagnosis: Diagnosis, fail_on: str | None, *, redact: bool = False) -> None:
    """
    Names on standard error the findings that fail the run, and the configurations that no finding can be about.

    Args:
        diagnosis: Any diagnosis.
        fail_on: From ``check_fail_on``; with None there is nothing to say.
        redact: Whether names of modules and files become pseudonyms; paths are scrubbed in any case, for others read
            the logs.
    """
    if fail_on is None:
        return
    diagnosis = for_others(diagnosis, redact_names=redact)
    for trial in diagnosis.trials:
        blockers = () if trial.is_static else examination_of(diagnosis, trial.name).blockers
        if blockers:
            _say(f"warning: --fail-on {fail_on} says nothing about {clean_name(trial.name)}: {clean(blockers[0])}")
    failing = failing_findings(diagnosis, fail_on)
    if not failing:
        return
    _say(f"failed: {count_of(len(failing), 'finding')} (--fail-on {fail_on})")
    for finding in failing[:_MOST_NAMED]:
        print(f"  {_line(finding)}", file=sys.stderr)
    if len(failing) > _MOST_NAMED:
        print(f"  and {len(failing) - _MOST_NAMED} more", file=sys.stderr)
    codes = " or ".join(f"layoutdoctor explain {code}" for code in sorted({f.code for f in failing[:_MOST_NAMED]})[:2])
    _say(f"what they mean: {codes}; to live with them: --write-accepted FILE")


def _say(text: str) -> None:
    print(f"layoutdoctor: {text}", file=sys.stderr)


def _line(finding: Finding) -> str:
    """One finding on one line: code, severity, rule, configuration, place, message."""
    where = [f"[{clean_name(finding.configuration)}]"] if finding.configuration else []
    place = place_of(finding.location, finding.module)
    head = " ".join([clean_name(finding.code), finding.severity, clean_name(finding.rule), *where])
    return f"{head}{f' {place}' if place else ''}: {clean(finding.message, 300)}"


def failing_status(diagnosis: Diagnosis, fail_on: str | None, status: int, inconclusive: int) -> int:
    """
    The exit status where ``--fail-on`` may be given.

    Args:
        diagnosis: Any diagnosis.
        fail_on: From ``check_fail_on``.
        status: What the command would end with otherwise.
        inconclusive: What it ends with where nothing was recorded that could fail.
    """
    if has_failing_finding(diagnosis, fail_on):
        return EXIT_FOUND
    return inconclusive if fail_on is not None and not can_be_judged(diagnosis) else status
