"""Diagnoses several targets, one after the other and each in its own processes, and prints one table of all."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import (
    EXIT_FAILED,
    EXIT_FOUND,
    EXIT_INCONCLUSIVE,
    FailedTarget,
    failing_findings,
    print_records,
    refuse_outputs_of_several,
    status_of,
    worst_of,
)
from layoutdoctor.commands.output import print_table
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import logger, say
from layoutdoctor.diagnosis import Diagnosis, Failure
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import LayoutDoctorError, UsageError, first_line
from layoutdoctor.files.writing import file_name_of, opened
from layoutdoctor.reports import check_format, format_of_suffix
from layoutdoctor.words import TARGET_FORMS, count_of

if TYPE_CHECKING:
    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.workers.messages import Request

_MOST_CALLS = 64
_FILES_OF_ONE = ("package", "save_traces", "save_recordings", "write_accepted")
_OF_ONE = ("output", "input", "module", "config", *_FILES_OF_ONE)


def targets_of(arguments: argparse.Namespace) -> list[str]:
    """Returns the targets of the command line, then the targets of ``--list``, each once."""
    lines: list[str] = []
    if arguments.list is not None:
        try:
            with opened(arguments.list) as stream:
                lines = stream.read().decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot read the list {arguments.list!r}: {reason}; give a file with one target per line"
            ) from None
    listed = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    targets = list(dict.fromkeys(target for target in [*arguments.targets, *listed] if target))
    if not targets:
        raise UsageError(
            "cannot start a diagnosis without a target: expected a TARGET such as model.py, or --list FILE with one "
            "target per line"
        )
    return targets


def kinds_of_call(arguments: argparse.Namespace, target: str) -> dict[str, tuple[tuple[str, ...], int | None]]:
    """
    Returns the kinds of call by name: every group of inputs, combined with every thread count.

    Raises:
        UsageError: There are too many kinds, a group is empty, or two kinds are the same.
    """
    groups: list[list[str]] = [[]]
    for spec in arguments.input:
        if spec is None:
            groups.append([])
        else:
            groups[-1].append(spec)
    if len(groups) > 1 and [] in groups:
        raise UsageError("cannot use --or without inputs on both sides: expected --input SPEC --or --input SPEC")
    threads = arguments.threads or [None]
    if len(groups) * len(threads) > _MOST_CALLS:
        raise UsageError(
            f"cannot diagnose {len(groups) * len(threads)} kinds of call: expected at most {_MOST_CALLS}; give "
            "the most frequent kinds, as each takes half a minute or more"
        )
    calls: dict[str, tuple[tuple[str, ...], int | None]] = {}
    for group in groups:
        for count in threads:
            words = [target, *group, *([] if count is None else [count_of(count, "thread")])]
            calls[" ".join(words)] = tuple(group), count
    if len(calls) < len(groups) * len(threads):
        raise UsageError("cannot diagnose the same inputs twice: leave out one of the two")
    return calls


def refuse_for_a_policy(arguments: argparse.Namespace, targets: Sequence[str]) -> None:
    """Refuses several targets, options that write files of one diagnosis, and options that exclude a policy."""
    if len(targets) > 1:
        raise UsageError(f"cannot use several --threads with {len(targets)} targets: give one number, or one target")
    if given := _first_given(arguments, _FILES_OF_ONE):
        raise UsageError(f"cannot use --{given} with several kinds of call: it is about one diagnosis; leave it out")
    if arguments.lower_for is not None:
        raise UsageError(f"cannot make a policy for {arguments.lower_for}: no times; leave out --lower-for")
    if arguments.format not in ("text", "markdown", "json"):
        raise UsageError(f"cannot print a policy as {arguments.format}: expected text, markdown or json")
    for name in arguments.output:
        check_format(format_of_suffix(name), what="policy")


def refuse_what_is_of_one(arguments: argparse.Namespace, targets: Sequence[str]) -> None:
    """Refuses options that concern one model only, such as its inputs and files, and words that cannot be targets."""
    if given := _first_given(arguments, _OF_ONE):
        raise UsageError(
            f"cannot use --{given} with {len(targets)} targets: it is about one model; --resume DIR keeps recordings "
            "of each model, and 'layoutdoctor show' reports on these"
        )
    refuse_outputs_of_several(arguments, len(targets))
    for target in targets:
        if not re.search(r"[.:]", target):
            raise UsageError(f"cannot load {target!r}: expected {TARGET_FORMS}{arguments.hint}")


def _first_given(arguments: argparse.Namespace, names: Sequence[str]) -> str:
    """Returns the first of these options that was given; an empty text if none was."""
    return next((name.replace("_", "-") for name in names if getattr(arguments, name)), "")


def print_found(found: Mapping[str, Diagnosis | Failure], conclusion: Conclusion) -> None:
    """Prints the table of all targets, or a list of the diagnoses in JSON."""
    from layoutdoctor.reports.sections.view import build_table_of_models

    shown = conclusion.for_others(dict(found))
    if conclusion.report_format == "json":
        print_records(
            to_json(FailedTarget(target=target, failure=one) if isinstance(one, Failure) else one)
            for target, one in shown.items()
        )
        return
    table = {target: one.message if isinstance(one, Failure) else one for target, one in shown.items()}
    print_table(build_table_of_models(table), conclusion.report_format)


def diagnose_several(
    arguments: argparse.Namespace,
    conclusion: Conclusion,
    requests: Mapping[str, Request],
    conclude: Callable[[Mapping[str, Diagnosis | Failure], Conclusion], None] = print_found,
) -> int:
    """
    Diagnoses one target after the other. Logs each result at once, and prints a table at the end.

    Args:
        requests: Requests by the name of the target, or of the kind of call.
        conclude: Function that is called at the end with all results.

    Returns:
        The exit status.
    """
    from layoutdoctor.commands.running import Running, say_stages  # imported late, because it is slow
    from layoutdoctor.workers.launcher import close_kept_launcher

    found: dict[str, Diagnosis | Failure] = {}
    statuses: list[int] = []
    try:
        for number, (target, request) in enumerate(requests.items(), 1):
            resume = None if arguments.resume is None else str(Path(arguments.resume) / file_name_of(target))
            logger.info("%s (%d of %d)", target, number, len(requests))
            try:
                diagnosis = Running(request, conclusion, resume).diagnose(quiet=arguments.quiet)
                say_stages(diagnosis)
                found[target] = diagnosis = conclusion.accept(diagnosis).diagnosis
                failing = failing_findings(diagnosis, conclusion.fail_on)
                statuses.append(EXIT_FOUND if failing else status_of(diagnosis))
            except LayoutDoctorError as error:
                kind, _, message = first_line(error).partition(": ")
                found[target] = Failure(kind=kind, message=message)
                statuses.append(EXIT_FAILED if error.exit_status != EXIT_INCONCLUSIVE else EXIT_INCONCLUSIVE)
            logger.info("%s", _row_in_short(target, found[target], conclusion))
    except Interrupted as stop:
        advice = "" if arguments.resume else "; --resume DIR would keep them"
        say(f"interrupted; {len(found)} of {len(requests)} are done{advice}")
        print_found(found, conclusion)
        return stop.exit_status
    finally:
        close_kept_launcher()
    conclude(found, conclusion)
    return worst_of(statuses)


def _row_in_short(target: str, found: Diagnosis | Failure, conclusion: Conclusion) -> str:
    from layoutdoctor.reports.sections.view import build_row_of_model

    ((name, one),) = conclusion.for_others({target: found}).items()
    row = build_row_of_model(name, one.message if isinstance(one, Failure) else one)
    return f"{row.cells[0]}: {row.clause or ', '.join(cell for cell in row.cells[1:4] if cell != '-')}"
