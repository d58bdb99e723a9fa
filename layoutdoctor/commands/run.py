"""``run``: diagnoses a module of a user's script with the inputs of its calls, or profiles steps of the script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor.commands import several
from layoutdoctor.commands.conclusion import prepare_conclusion
from layoutdoctor.commands.diagnose import (
    add_options_of_diagnosis,
    carry_out,
    command_without_folders,
    diagnose_calls,
    prepare_diagnosis,
)
from layoutdoctor.commands.output import for_others, print_table, whole_number
from layoutdoctor.commands.show import status_of_run
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import say
from layoutdoctor.errors import UsageError
from layoutdoctor.files.scratch import private_directory
from layoutdoctor.files.writing import opened
from layoutdoctor.reports.sections.wording import clean, clean_name
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from layoutdoctor.workers.program import ModuleTime


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.usage = f"{parser.prog} [-h] SCRIPT (--module PATH | --profile N) [options] [-- ARGUMENT...]"
    parser.description = (
        "Runs a script until it calls one of its modules, and diagnoses that module with the inputs of this call. "
        "With --calls, it diagnoses each kind among several calls, and says which configuration to use for each; "
        "compiled callers run eagerly meanwhile. With --profile, it records some steps of the script as it runs, and "
        "reports on these alone. Nothing of the script is changed."
    )
    parser.epilog = (
        "What follows -- are the script's own arguments. Exit status: 0 done; 1 a finding at or above --fail-on; 2 "
        "wrong usage; 3 the module could not be examined; 4 nothing was measured; 130 interrupted."
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file, run as 'python SCRIPT' runs it")
    parser.add_argument(
        "--module",
        metavar="PATH",
        help="the module's name in the script, such as pipe.vae.decoder; without it, the script runs "
        "to its end and its modules with convolutions are listed, with their share of the time",
    )
    parser.add_argument(
        "--calls",
        metavar="N",
        type=whole_number,
        default=1,
        help="run until the module was called N times, or to the end: each kind of call (each set of input shapes) is "
        "diagnosed, and --output policy.json keeps which configuration to use for each (default: 1)",
    )
    parser.add_argument(
        "--profile",
        metavar="N",
        type=whole_number,
        help=(
            "record N steps after two that warm up, and report what they convert; a step is one of the optimizer, "
            "else a call of --module, or of the slowest module; nothing else is measured"
        ),
    )
    parser.add_argument(
        "--no-end", action="store_true", help="with --profile: let the script go on after the steps were recorded"
    )
    add_options_of_diagnosis(parser)
    parser.set_defaults(device=None)


def run(arguments: argparse.Namespace) -> int:
    """Runs the script, then diagnoses its module or its recorded steps, and prints and writes the report."""
    from layoutdoctor.commands.running import require_torch  # imported late, because it is slow
    from layoutdoctor.workers.program import Asked, run_script

    script = Path(arguments.script)
    try:
        opened(script).close()
    except OSError as error:
        why = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise UsageError(f"cannot run {arguments.script!r}: {why}; give the path of a Python script") from error
    if arguments.profile is not None:
        return _profile(arguments, script)
    if arguments.no_end:
        raise UsageError("cannot use --no-end without --profile: a diagnosis ends the script")
    many = arguments.calls > 1
    if many and arguments.module is None:
        raise UsageError("cannot use --calls without --module: name the module whose calls are meant")
    if many:
        several.refuse_for_a_policy(arguments, [arguments.script])
    plan = prepare_diagnosis(arguments, [arguments.script])
    require_torch()
    with private_directory() as directory:
        until = "its end" if arguments.module is None else f"it calls {arguments.module}"
        if many:
            until = f"it called {arguments.module} {arguments.calls} times, or to its end"
        if not arguments.quiet:
            say(f"running {script.name} until {until}")
        try:
            asked = Asked(module=arguments.module, call_count=arguments.calls)
            outcome = run_script(script, asked, arguments.words_of_script, Path(directory))
        except Interrupted as stop:
            say(f"interrupted while {script.name} ran")
            return stop.exit_status
        if arguments.module is None:
            raise _without_module(script.name, outcome.modules, redact=arguments.redact)
        requests = {
            f"{arguments.module} {one.shapes}": msgspec.structs.replace(
                plan.request,
                target=arguments.script,
                subject_directory=str(Path(directory) / one.folder),
                inputs=tuple(arguments.words_of_script),
                module=arguments.module,
                command=_command(arguments.words),
            )
            for one in outcome.calls
        }
        if not many:
            return carry_out(arguments, plan, *requests.values())
        if outcome.message is not None:
            say(f"{clean(outcome.message)}; the calls before that are diagnosed")
        return diagnose_calls(arguments, plan, requests, [one.call_count for one in outcome.calls])


def _profile(arguments: argparse.Namespace, script: Path) -> int:
    """Runs the script until some of its steps are recorded, and reports on these steps."""
    from layoutdoctor.commands.running import require_torch  # imported late: it is slow
    from layoutdoctor.recording.saved import load_recording
    from layoutdoctor.run.recorded import diagnose_recordings
    from layoutdoctor.workers.program import Asked, run_script

    if arguments.calls > 1:
        raise UsageError("cannot use --calls with --profile: nothing but the script's own steps is run")
    conclusion = prepare_conclusion(arguments, [arguments.script])
    require_torch()
    with private_directory() as directory:
        if not arguments.quiet:
            until = "to its end" if arguments.no_end else f"until {count_of(arguments.profile, 'step')} were recorded"
            say(f"running {script.name} {until}")
        asked = Asked(module=arguments.module, steps=arguments.profile, ends=not arguments.no_end)
        try:
            outcome = run_script(script, asked, arguments.words_of_script, Path(directory))
        except Interrupted as stop:
            say(f"interrupted while {script.name} ran")
            return stop.exit_status
        recording = load_recording(Path(directory) / str(outcome.recording))
    if outcome.message is not None:
        say(clean(outcome.message))
    command = _command(arguments.words)
    environment = msgspec.structs.replace(recording.head.environment, command=command)
    head = msgspec.structs.replace(recording.head, environment=environment)
    diagnosis = diagnose_recordings([msgspec.structs.replace(recording, head=head)])
    return conclusion.conclude(diagnosis, status_of_run(diagnosis))


def _without_module(name: str, modules: Sequence[ModuleTime], *, redact: bool) -> UsageError:
    """Prints the table of modules; returns the error that ends the command."""
    if not modules:
        return UsageError(
            f"cannot diagnose {name} without --module: it called no module with convolutions under a name of its own; "
            "name one, such as --module pipe.vae.decoder"
        )
    from layoutdoctor.reports.sections.rows import Table, TableRow  # imported only for a list

    names = for_others(tuple(one.name for one in modules), redact_names=redact)
    rows = tuple(
        TableRow((clean_name(name), str(one.convolution_count), str(one.call_count), f"{100 * one.share:.0f} %"))
        for name, one in zip(names, modules, strict=True)
    )
    print_table(Table(("module", "convolutions", "calls", "share of the time"), rows), "text")
    return UsageError(f"cannot diagnose {name} without --module: name one of these, such as --module {modules[0].name}")


def _command(words: Sequence[str]) -> str:
    """Returns the command line for the record, without the arguments of the script, which may be private."""
    end = words.index("--") if "--" in words else len(words)
    return command_without_folders([*words[:end], *(["--", "..."] if end < len(words) else [])])
