"""Several targets in one call: one diagnosis after the other, each in processes of its own, and one table of all."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.commands.conclusion import (
    EXIT_FAILED,
    EXIT_FOUND,
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    check_fail_on,
    failing_findings,
    print_records,
    worst_of,
)
from layoutdoctor.commands.output import OutputFile, for_others, save_reports
from layoutdoctor.commands.streams import logger, print_text, say, terminal_width
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.errors import LayoutDoctorError, RecordError, UsageError, first_line
from layoutdoctor.reports.sections.wording import clean
from layoutdoctor.words import TARGET_FORMS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from layoutdoctor.commands.running import Running
    from layoutdoctor.diagnosis.records import Diagnosis

_WIDTH = 120


def targets_of(arguments: argparse.Namespace) -> list[str]:
    """
    All that is to be diagnosed: what the command line names, then the lines of the list, each once.

    Raises:
        UsageError: There is none, or the list cannot be read.
    """
    listed: list[str] = []
    if arguments.list is not None:
        try:
            lines = Path(arguments.list).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(
                f"cannot read the list {arguments.list!r}: {reason}; give a file with a target a line"
            ) from None
        listed = [line.partition(" #")[0].strip() for line in lines if not line.lstrip().startswith("#")]
    targets = list(dict.fromkeys(target for target in [*arguments.targets, *listed] if target))
    if not targets:
        raise UsageError("cannot diagnose nothing: expected a TARGET such as model.py, or --list FILE with one a line")
    return targets


def refuse_what_is_of_one(arguments: argparse.Namespace, targets: Sequence[str]) -> None:
    """
    Refuses options that would write over each other, or mean another thing for each.

    Raises:
        UsageError: One was given, or a word is no target but a command written wrong.
    """
    given = [
        name
        for name in ("output", "input", "module", "config", "save_traces", "save_recordings")
        if getattr(arguments, name)
    ]
    given += ["write_accepted"] if arguments.write_accepted is not None else []
    if given:
        option = given[0].replace("_", "-")
        raise UsageError(
            f"cannot use --{option} with {len(targets)} targets: it is about one model; --resume DIR keeps the "
            "diagnosis of each as JSON, which 'layoutdoctor render' makes a report of"
        )
    if arguments.format == "html":
        raise UsageError("cannot write several diagnoses as html: expected text, markdown or json")
    wrong = next((target for target in targets if not re.search(r"[.:]", target)), None)
    if wrong is not None:
        raise UsageError(f"cannot load {wrong!r}: expected {TARGET_FORMS}{arguments.hint}")


def diagnose_several(
    arguments: argparse.Namespace,
    targets: Sequence[str],
    diagnose: Callable[[argparse.Namespace, Running], Diagnosis],
    status_of: Callable[[Diagnosis], int],
    command_of: Callable[[argparse.Namespace], str],
) -> int:
    """
    Diagnoses one target after the other; each row is told as soon as it is known, the table printed at the end.

    Args:
        diagnose: Diagnoses one of them.
        status_of: The exit status that one of them would have alone if nothing failed.
        command_of: The command line for one of them.

    Returns:
        The worst of them.
    """
    from layoutdoctor.commands.running import Running, Terminated, ending_signals  # late: it takes its time

    folder, fail_on = None if arguments.resume is None else Path(arguments.resume), check_fail_on(arguments.fail_on)
    found: dict[str, Diagnosis | str] = {}
    statuses: list[int] = []
    try:
        with ending_signals(), Running() as running:
            for number, (target, name) in enumerate(zip(targets, _file_names(targets), strict=True), 1):
                one = argparse.Namespace(**{**vars(arguments), "target": target})
                one.resume = None if folder is None else str(folder / name)
                kept = None if folder is None else folder / f"{name}.json"
                logger.info("%s", clean(f"{target} ({number} of {len(targets)})"))
                try:
                    found[target] = diagnosis = _kept(kept, command_of(one)) or diagnose(one, running)
                    if kept is not None:
                        save_reports(diagnosis, (OutputFile(kept, "json"),))
                    statuses.append(EXIT_FOUND if failing_findings(diagnosis, fail_on) else status_of(diagnosis))
                except LayoutDoctorError as error:
                    found[target] = first_line(error).partition(": ")[2]
                    statuses.append(EXIT_FAILED if error.exit_status != EXIT_INCONCLUSIVE else EXIT_INCONCLUSIVE)
                logger.info("%s", _row_in_short(target, found[target]))
    except (KeyboardInterrupt, Terminated) as stop:
        say(
            f"interrupted; {len(found)} of {len(targets)} are done"
            + ("" if folder else "; --resume DIR would keep them")
        )
        _print_table(found, arguments)
        return stop.exit_status if isinstance(stop, Terminated) else EXIT_INTERRUPTED
    _print_table(found, arguments)
    return worst_of(statuses)


def _file_names(targets: Sequence[str]) -> list[str]:
    """What the files of each are called: what a file may have of its name, and a number where two are equal."""
    names: list[str] = []
    for target in targets:
        name = re.sub(r"[^\w.-]+", "-", target).strip("-.")[-80:] or "model"
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _kept(path: Path | None, command: str | None) -> Diagnosis | None:
    """What an earlier call made of the same target with the same options."""
    if path is None or not path.is_file():
        return None
    try:
        diagnosis = load(path)
    except RecordError:
        return None
    if diagnosis.environment.command != command or diagnosis.interrupted is not None:
        return None
    logger.info("taken from %s", clean(path.name))
    return diagnosis


def _row_in_short(target: str, found: Diagnosis | str) -> str:
    from layoutdoctor.reports.sections.several import build_row_of_model

    row = build_row_of_model(target, found)
    return f"{row.cells[0]}: {row.clause or ', '.join(cell for cell in row.cells[1:4] if cell != '-')}"


def _print_table(found: dict[str, Diagnosis | str], arguments: argparse.Namespace) -> None:
    from layoutdoctor.reports.sections.several import build_table_of_models

    shown = {
        target: one if isinstance(one, str) else for_others(one, redact_names=arguments.redact)
        for target, one in found.items()
    }
    if arguments.format == "json":
        print_records(to_json(one) for one in shown.values() if not isinstance(one, str))
        return
    table = build_table_of_models(shown)
    if arguments.format == "markdown":
        from layoutdoctor.reports.markdown import table_of

        print_text(table_of(table) + "\n")
        return
    from layoutdoctor.reports.text import plain_table

    rows = [row.cells for row in table.rows]
    print_text(plain_table(table.head, rows, terminal_width() or _WIDTH, [row.clause for row in table.rows]) + "\n")
