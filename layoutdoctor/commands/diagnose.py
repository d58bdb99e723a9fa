"""
``diagnose``: a model under several layout configurations. The subcommand's name may be left out.

Everything that can be wrong with the command line is found before torch is imported. What was measured is never lost:
after each trial the record so far is written to every JSON output. Faces ``__main__``.
"""

from __future__ import annotations

import logging
import re
import shlex
import sys
from typing import TYPE_CHECKING

import msgspec

from layoutdoctor._version import __version__
from layoutdoctor.commands.acceptance import add_accepted_options, apply_accepted, conclude_accepted, prepare_accepted
from layoutdoctor.commands.fail_on import add_fail_on_option, check_fail_on, failing_status, say_what_failed
from layoutdoctor.commands.isolation import (
    Isolation,
    Terminated,
    add_isolation_options,
    ending_signals,
    files_of_target,
    positive_seconds,
    prepare_isolation,
)
from layoutdoctor.commands.output import (
    OutputError,
    OutputFile,
    add_output_options,
    prepare_outputs,
    print_report,
    refuse_raw_traces,
    refuse_what_is_read,
    save_reports,
)
from layoutdoctor.commands.progress_display import choose_display
from layoutdoctor.commands.recordings import prepare_directory, prepare_recordings
from layoutdoctor.configurations import choose_configurations
from layoutdoctor.errors import LayoutDoctorError, UsageError, first_line
from layoutdoctor.messages import Request
from layoutdoctor.progress import DEFAULT_BUDGET_SECONDS
from layoutdoctor.targets import TARGETS, find_target
from layoutdoctor.writing import trace_name

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.records import Diagnosis

EXIT_INCONCLUSIVE = 4
EXIT_INTERRUPTED = 130

logger = logging.getLogger("layoutdoctor")


def prepare_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """
    Adds the subcommand.

    Args:
        subparsers: The command line's.
    """
    parser = subparsers.add_parser(
        "diagnose",
        allow_abbrev=False,
        help="diagnose a model (the default: the word may be left out)",
        description="Runs a model under several layout configurations and says what its layouts cost, and what to do.",
        epilog="Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the model could not be "
        "examined; 4 nothing could be concluded; 130 interrupted.",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        help="model.py, model.py:NAME, package.module:NAME, timm:NAME, torchvision:NAME, ...",
    )
    parser.add_argument(
        "--input",
        metavar="SPEC",
        action="append",
        default=[],
        help="an example input instead of the target's own, such as 'f32[8,3,224,224]:channels_last'; may be repeated",
    )
    parser.add_argument("--device", help="where to run, such as cpu or cuda (default: where the model is)")
    parser.add_argument(
        "--target",
        metavar="GPU",
        dest="lower_for",
        help=f"lower for a GPU that is not there ({', '.join(target.name for target in TARGETS)}) and measure nothing: "
        "traced on the CPU; --budget and --save-traces have no effect then",
    )
    parser.add_argument("--dtype", help="floating dtype of model and inputs, such as float32 or bf16")
    parser.add_argument(
        "--mode", choices=("inference", "training"), default="inference", help="what to run (default: inference)"
    )
    parser.add_argument(
        "--configurations",
        metavar="NAMES",
        default="default",
        help="names separated by commas, 'default' or 'all' (default: default)",
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=positive_seconds,
        default=DEFAULT_BUDGET_SECONDS,
        help="for the timing rounds; capturing and profiling come on top (default: %(default)g)",
    )
    add_fail_on_option(parser)
    add_accepted_options(parser)
    parser.add_argument("--save-traces", metavar="DIR", help="keep the profiler's traces in this directory")
    parser.add_argument(
        "--save-recordings",
        metavar="DIR",
        help="keep what was seen of each configuration in this directory, to be examined again (layoutdoctor examine)",
    )
    add_output_options(parser)
    add_isolation_options(parser)
    _add_talk_options(parser)
    parser.set_defaults(run=run)


def _add_talk_options(parser: argparse.ArgumentParser) -> None:
    talk = parser.add_mutually_exclusive_group()
    talk.add_argument("-q", "--quiet", action="store_true", help="no progress on standard error")
    talk.add_argument("-v", "--verbose", action="store_true", help="more on standard error")
    parser.add_argument("--version", action="version", version=f"layoutdoctor {__version__}")


def run(arguments: argparse.Namespace) -> int:
    """
    Diagnoses the target, prints the report, and writes it to the output files.

    Args:
        arguments: The parsed command line, and in ``words`` the words it was made from.

    Returns:
        The exit status.

    Raises:
        LayoutDoctorError: The command line is wrong, or the target could not be examined.
    """
    configurations = choose_configurations(arguments.configurations, arguments.mode)
    check_target(arguments.lower_for, arguments.device)
    fail_on = check_fail_on(arguments.fail_on)
    read = (*files_of_target(arguments.target), arguments.accepted)
    outputs = prepare_outputs(arguments.output, force=arguments.force, read=read, redact=arguments.redact)
    refuse_raw_traces(arguments.save_traces, redact=arguments.redact)
    recordings = prepare_recordings(
        arguments.save_recordings, configurations, force=arguments.force, redact=arguments.redact
    )
    accepted = prepare_accepted(arguments, outputs, read)
    keeps_traces = arguments.save_traces is not None and arguments.lower_for is None
    traces = prepare_directory(arguments.save_traces, "traces") if keeps_traces else None
    if traces is not None:
        for configuration in configurations:
            refuse_what_is_read(traces / trace_name(configuration.name), read)
    _prepare_logging(verbose=arguments.verbose)
    record = RecordSoFar(tuple(output for output in outputs if output.report_format == "json"))
    request = Request(
        target=arguments.target,
        inputs=tuple(arguments.input),
        device=arguments.device if arguments.lower_for is None else "cpu",
        dtype=arguments.dtype,
        mode=arguments.mode,
        configurations=configurations,
        lower_for=arguments.lower_for,
        budget_seconds=arguments.budget,
        trace_directory=str(traces) if traces is not None else None,
        command=command_without_folders(arguments.words),
    )
    with prepare_isolation(arguments, request) as isolation:
        try:
            with ending_signals(), choose_display(quiet=arguments.quiet) as display:
                diagnosis = isolation.diagnose(display, record)
        except (KeyboardInterrupt, Terminated) as stop:
            how = stop.how if isinstance(stop, Terminated) else "interrupted from the keyboard"
            isolation.save_recordings(recordings, how)
            return _conclude_interrupted(stop, how, record, outputs, arguments, isolation)
        except LayoutDoctorError as error:
            isolation.save_recordings(recordings, first_line(error))
            _save_partial(record, outputs, first_line(error))
            isolation.say_how_to_continue()
            raise
        isolation.is_done = True
        isolation.save_recordings(recordings)
    acceptance = apply_accepted(accepted, diagnosis)
    diagnosis = acceptance.diagnosis
    try:
        save_reports(diagnosis, outputs)
    finally:
        print_report(diagnosis, arguments.format, redact=arguments.redact)
    conclude_accepted(accepted, acceptance, redact=arguments.redact)
    say_what_failed(diagnosis, fail_on, redact=arguments.redact)
    return exit_status(diagnosis, len(configurations), fail_on)


def _conclude_interrupted(
    stop: KeyboardInterrupt | Terminated,
    how: str,
    record: RecordSoFar,
    outputs: Sequence[OutputFile],
    arguments: argparse.Namespace,
    isolation: Isolation,
) -> int:
    """Writes and prints what there is; returns the exit status."""
    partial = _save_partial(record, outputs, how)
    if partial is None:
        print("layoutdoctor: interrupted before the first configuration was done", file=sys.stderr)
    else:
        print("layoutdoctor: interrupted; the report holds what was recorded until then", file=sys.stderr)
        isolation.say_how_to_continue()
        print_report(partial, arguments.format, redact=arguments.redact)
    return stop.exit_status if isinstance(stop, Terminated) else EXIT_INTERRUPTED


def check_target(target: str | None, device: str | None) -> None:
    """
    Refuses a GPU to lower for that is not known, and one together with another device to run on.

    Args:
        target: Such as ``cuda:90``; None to measure.
        device: As given with ``--device``.

    Raises:
        UsageError: It is not known, or the device is not the CPU.
    """
    if target is None:
        return
    find_target(target)
    if device not in (None, "cpu"):
        raise UsageError(
            f"cannot lower for --target {target} with --device {device}: the model is traced on the CPU; "
            "leave out --device to lower, or --target to measure"
        )


def _prepare_logging(*, verbose: bool) -> None:
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("layoutdoctor: %(message)s"))
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG)


def command_without_folders(words: Sequence[str]) -> str:
    """
    The command line as it goes into the record: folders are nobody else's business.

    Args:
        words: The words after the command's name.
    """
    return shlex.join(["layoutdoctor", *(re.sub(r"[^\s=]*/", "", word) for word in words)])


class RecordSoFar:
    """
    Remembers the latest record of a running diagnosis and keeps it in the JSON outputs.

    Attributes:
        latest: The record after the latest trial; None before the first.
    """

    def __init__(self, outputs: Sequence[OutputFile]) -> None:
        self._outputs = outputs
        self.latest: Diagnosis | None = None

    def __call__(self, diagnosis: Diagnosis) -> None:
        """
        Takes the record after a trial.

        Args:
            diagnosis: The record so far.
        """
        self.latest = diagnosis
        if diagnosis.trials:
            logger.debug("%s: %s", diagnosis.trials[-1].name, diagnosis.trials[-1].status)
        try:
            save_reports(diagnosis, self._outputs)
        except OutputError as error:
            # The diagnosis goes on: its end may be printed, or the disk have room again.
            print(f"layoutdoctor: warning: {error}", file=sys.stderr)


def _save_partial(record: RecordSoFar, outputs: Sequence[OutputFile], reason: str) -> Diagnosis | None:
    """What there is of a diagnosis that was stopped, saved to every output; None where no trial was done."""
    if record.latest is None:
        return None
    partial = msgspec.structs.replace(record.latest, interrupted=reason)
    try:
        save_reports(partial, outputs)
    except OutputError as error:
        print(f"layoutdoctor: warning: {error}", file=sys.stderr)
    return partial


def exit_status(diagnosis: Diagnosis, configuration_count: int, fail_on: str | None) -> int:
    """
    What the command ends with.

    Args:
        diagnosis: The finished diagnosis.
        configuration_count: How many configurations were asked for.
        fail_on: A severity, a rule's code, or None.
    """
    return failing_status(diagnosis, fail_on, _status(diagnosis, configuration_count), EXIT_INCONCLUSIVE)


def _status(diagnosis: Diagnosis, configuration_count: int) -> int:
    if diagnosis.subject.target is not None:
        return 0 if any(trial.status == "ok" for trial in diagnosis.trials) else EXIT_INCONCLUSIVE
    measured = any(trial.measurement is not None for trial in diagnosis.trials)
    others = [trial for trial in diagnosis.trials if trial.measurement is None]
    all_the_same = bool(others) and all(trial.status == "same_as" for trial in others)
    compared = diagnosis.comparison is not None or configuration_count == 1 or all_the_same
    return 0 if measured and compared else EXIT_INCONCLUSIVE
