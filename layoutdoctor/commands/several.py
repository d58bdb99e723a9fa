"""Reports of several diagnoses that one command was given: one after the other, or one JSON list."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands.acceptance import apply_accepted, conclude_accepted
from layoutdoctor.commands.fail_on import EXIT_FOUND, say_what_failed
from layoutdoctor.commands.output import for_others, print_report, print_text
from layoutdoctor.errors import LayoutDoctorError, UsageError
from layoutdoctor.records import to_json
from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from layoutdoctor.commands.acceptance import AcceptedOption
    from layoutdoctor.records import Diagnosis

EXIT_INCONCLUSIVE = 4


def refuse_outputs_of_several(arguments: argparse.Namespace, count: int, what: str) -> None:
    """
    Refuses output files that could hold one diagnosis only.

    Args:
        arguments: The parsed command line.
        count: How many there are.
        what: What there are several of.

    Raises:
        UsageError: There are several, and an output was asked for.
    """
    if count > 1 and arguments.output:
        raise UsageError(
            f"cannot write one output for {count} {what}: expected one FILE with --output; examine them one at a time"
        )
    if count > 1 and arguments.write_accepted is not None:
        raise UsageError(
            f"cannot write the accepted findings of {count} {what} at once: expected one FILE with "
            "--write-accepted; examine them one at a time, with --force from the second one on"
        )


def report_several(
    arguments: argparse.Namespace,
    fail_on: str | None,
    accepted: AcceptedOption,
    makers: Iterable[Callable[[], Diagnosis]],
    status_of: Callable[[Diagnosis, str | None], int],
) -> int:
    """
    Makes and reports one diagnosis after the other; one that cannot be made is named on standard error.

    Args:
        arguments: The parsed command line.
        fail_on: From ``check_fail_on``.
        accepted: From ``prepare_accepted``.
        makers: Each makes one.
        status_of: The exit status that one of them would have alone.

    Returns:
        The exit status: the worst of them.
    """
    diagnoses: list[Diagnosis] = []
    statuses: list[int] = []
    for make in makers:
        try:
            acceptance = apply_accepted(accepted, make())
        except LayoutDoctorError as error:
            print(f"layoutdoctor: error: {clean(str(error))}", file=sys.stderr)
            statuses.append(error.exit_status)
            continue
        diagnosis = acceptance.diagnosis
        diagnoses.append(diagnosis)
        statuses.append(status_of(diagnosis, fail_on))
        if arguments.format != "json":
            if len(diagnoses) > 1:
                print_text("\n")
            print_report(diagnosis, arguments.format, redact=arguments.redact)
        conclude_accepted(accepted, acceptance, redact=arguments.redact)
        say_what_failed(diagnosis, fail_on, redact=arguments.redact)
    if arguments.format == "json":
        text = b"[" + b",".join(to_json(for_others(d, redact_names=arguments.redact)) for d in diagnoses) + b"]"
        print_text(msgspec.json.format(text, indent=1).decode() + "\n")
    return next((status for status in (3, EXIT_FOUND, EXIT_INCONCLUSIVE) if status in statuses), 0)
