"""
``--fail-on``: which findings make a command end with an exit status of their own, for CI.

Faces the subcommands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import UsageError
from layoutdoctor.rules import ALL_RULES

if TYPE_CHECKING:
    import argparse

    from layoutdoctor.records import Diagnosis

EXIT_FOUND = 1


def add_fail_on_option(parser: argparse.ArgumentParser) -> None:
    """
    The option itself.

    Args:
        parser: The subcommand's parser.
    """
    parser.add_argument(
        "--fail-on",
        metavar="CODE|error|warning",
        help="exit with 1 where there is such a finding, or a more severe one",
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


def has_failing_finding(diagnosis: Diagnosis, fail_on: str | None) -> bool:
    """
    Whether a diagnosis has a finding that the user wants to fail on.

    Args:
        diagnosis: Any diagnosis.
        fail_on: From ``check_fail_on``.
    """
    severities = {"error": ("error",), "warning": ("error", "warning")}.get(fail_on or "", ())
    return any(finding.severity in severities or finding.code == fail_on for finding in diagnosis.findings)
