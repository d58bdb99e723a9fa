"""
``diagnose``: a model under several layout configurations. The subcommand's name may be left out.

Everything that can be wrong with the command line is found before torch is imported. What was measured is never lost:
after each trial the record so far is written to every JSON output.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from layoutdoctor.commands import several
from layoutdoctor.commands.conclusion import (
    EXIT_INCONCLUSIVE,
    EXIT_INTERRUPTED,
    add_conclusion_options,
    prepare_conclusion,
)
from layoutdoctor.commands.output import (
    OutputFile,
    files_of_target,
    for_others,
    prepare_recordings,
    prepare_traces,
    save_reports,
)
from layoutdoctor.commands.streams import OutputError, logger, say, showing_progress
from layoutdoctor.diagnosis.configurations import QUICK, TARGETS, choose_configurations, find_target, is_a_group
from layoutdoctor.errors import LayoutDoctorError, UsageError, first_line
from layoutdoctor.examination.choice import undecided
from layoutdoctor.isolation.messages import DEFAULT_TIMEOUT_SECONDS
from layoutdoctor.reports.sections.rows import trial_in_short
from layoutdoctor.reports.sections.wording import clean_name
from layoutdoctor.units import format_seconds
from layoutdoctor.words import count_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.commands.isolation import Isolation
    from layoutdoctor.diagnosis.records import Configuration, Diagnosis, Trial
    from layoutdoctor.isolation.messages import Request

_NO_LIMIT = "none"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Runs a model under several layout configurations and says what its layouts cost, and what to do."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the model could not be "
        "examined; 4 nothing could be concluded; 130 interrupted."
    )
    parser.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="model.py, model.py:NAME, package.module:NAME, model.pt2, timm:NAME, torchvision:NAME, transformers:NAME, "
        "diffusers:CLASS; several are diagnosed one after the other, and summed up in a table",
    )
    parser.add_argument("--list", metavar="FILE", help="more targets, one a line")
    parser.add_argument(
        "--input",
        metavar="SPEC",
        action="append",
        default=[],
        help="an example input instead of the target's own, such as 'f32[8,3,224,224]:channels_last'; may be repeated",
    )
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="what a model of timm, torchvision, transformers or diffusers is built with; may be repeated",
    )
    parser.add_argument(
        "--module",
        metavar="PATH",
        help="diagnose one module inside the target, such as vae.decoder, with what it gets when the target runs once",
    )
    parser.add_argument("--device", help="where to run, such as cpu or cuda (default: where the model is)")
    parser.add_argument("--dtype", help="floating dtype of model and inputs, such as float32 or bf16")
    parser.add_argument(
        "--no-isolation",
        action="store_true",
        help="run the model in the command's own process, as a debugger needs it: a crash or a hang of the model is "
        "then one of the command",
    )
    add_options_of_diagnosis(parser)


def add_options_of_diagnosis(parser: argparse.ArgumentParser) -> None:
    """Adds what can be said of a diagnosis, whatever it is of."""
    parser.add_argument(
        "--target",
        metavar="GPU",
        dest="lower_for",
        help=f"lower for a GPU that is not there ({', '.join(target.name for target in TARGETS)}) and measure nothing: "
        "traced on the CPU; --budget and --save-traces have no effect then",
    )
    parser.add_argument(
        "--mode", choices=("inference", "training"), default="inference", help="what to run (default: inference)"
    )
    tried = parser.add_mutually_exclusive_group()
    tried.add_argument(
        "--configurations",
        metavar="NAMES",
        default="default",
        help="names separated by commas, 'default', 'quick' or 'all' (default: default)",
    )
    tried.add_argument(
        "--quick",
        action="store_const",
        const=QUICK,
        dest="configurations",
        help="the three that tell most: torch.compile's default, channels_last and, in inference, channels_last with "
        "frozen weights; no more than three further starts of fresh processes",
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=positive_seconds,
        help="for the timing rounds, and as much again, from 10 on, for starts of fresh processes beyond three; "
        "capturing and profiling come on top (default: rounds until there is a verdict, for at most half of what "
        "compiling took, at least 10 and at most 180, and at most 240 for all starts)",
    )
    parser.add_argument("--save-traces", metavar="DIR", help="keep the profiler's traces in this directory")
    parser.add_argument(
        "--save-recordings",
        metavar="DIR",
        help="keep what was seen of each configuration in this directory, to be examined again (layoutdoctor examine)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds_or_none,
        help="how long one configuration may take before it is given up and the others go on; 'none' for ever "
        f"(default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="continue the run whose journal is in this directory; one that is new or empty gets the journal of this "
        "run",
    )
    add_conclusion_options(parser)


def positive_seconds(text: str) -> float:
    """
    A number of seconds as given on the command line.

    Raises:
        argparse.ArgumentTypeError: It is no number above 0.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"cannot use {text!r} as seconds: expected a number above 0, such as 30")
    return seconds


def _seconds_or_none(text: str) -> float:
    """Infinity stands for no limit, as None stands for the default."""
    return math.inf if text == _NO_LIMIT else positive_seconds(text)


def run(arguments: argparse.Namespace) -> int:
    """
    Diagnoses the target, prints the report, and writes it to the output files.

    Args:
        arguments: The parsed command line, and in ``words`` the words it was made from.

    Raises:
        LayoutDoctorError: The command line is wrong, or the target could not be examined.
    """
    check_target(arguments.lower_for, arguments.device)
    targets = several.targets_of(arguments)
    if len(targets) > 1:
        several.refuse_what_is_of_one(arguments, targets)
        count = len(choose_configurations(arguments.configurations, arguments.mode))
        prepare_conclusion(arguments, arguments.targets)
        return several.diagnose_several(
            arguments, targets, _diagnose_one, partial(status_of, configuration_count=count), _command_of
        )
    arguments.target = targets[0]
    plan, request = _prepared(arguments)
    return carry_out(arguments, plan, request)


def _diagnose_one(arguments: argparse.Namespace) -> Diagnosis:
    """The diagnosis of one of several targets, whose report nobody has asked for."""
    from layoutdoctor.commands import isolation as isolated  # late, as below

    plan, request = _prepared(arguments)
    record = RecordSoFar((), len(plan.configurations), is_redacted=plan.conclusion.is_redacted)
    with isolated.prepare_isolation(arguments, request) as isolation:
        with showing_progress(quiet=arguments.quiet) as display:
            diagnosis = isolation.diagnose(display, record)
        isolation.is_done = True
    return diagnosis


def _prepared(arguments: argparse.Namespace) -> tuple[Plan, Request]:
    from layoutdoctor.isolation.messages import Request  # late: what is wrong with the command line is said at once

    plan = prepare_diagnosis(arguments, arguments.target)
    request = Request(
        target=arguments.target,
        inputs=tuple(arguments.input),
        config=tuple(arguments.config),
        device=arguments.device if arguments.lower_for is None else "cpu",
        dtype=arguments.dtype,
        module=arguments.module,
        command=_command_of(arguments),
    )
    return plan, with_options(request, arguments, plan)


def with_options(request: Request, arguments: argparse.Namespace, plan: Plan) -> Request:
    """A request for a target with how it is to be diagnosed."""
    return msgspec.structs.replace(
        request,
        mode=arguments.mode,
        configurations=plan.configurations,
        derives=is_a_group(arguments.configurations),
        is_quick=arguments.configurations == QUICK,
        lower_for=arguments.lower_for,
        budget_seconds=arguments.budget,
        trace_directory=str(plan.traces) if plan.traces is not None else None,
    )


def _command_of(arguments: argparse.Namespace) -> str:
    """The command line for the record; of one of several targets without the others, and where they are kept."""
    words = list(arguments.words)
    if arguments.targets == [arguments.target] and arguments.list is None:
        return command_without_folders(words)
    for option in ("--list", "--resume"):
        words = [word for word in words if not word.startswith(f"{option}=")]
        while option in words:
            del words[words.index(option) : words.index(option) + 2]
    return command_without_folders([arguments.target, *(word for word in words if word not in arguments.targets)])


class Plan(NamedTuple):
    """What a diagnosis is to do and to write, as far as it can be checked before anything runs."""

    configurations: tuple[Configuration, ...]
    conclusion: Conclusion
    traces: Path | None
    recordings: Path | None


def prepare_diagnosis(arguments: argparse.Namespace, target: str) -> Plan:
    """
    Checks the options and prepares the outputs.

    Args:
        target: What is read, and never written over.

    Raises:
        LayoutDoctorError: The command line is wrong.
    """
    configurations = choose_configurations(arguments.configurations, arguments.mode)
    read = files_of_target(target)
    conclusion = prepare_conclusion(arguments, read)
    traces = prepare_traces(
        arguments.save_traces,
        configurations,
        force=arguments.force,
        redact=arguments.redact,
        is_static=arguments.lower_for is not None,
        read=(*read, arguments.accepted),
    )
    recordings = prepare_recordings(
        arguments.save_recordings, configurations, force=arguments.force, redact=arguments.redact
    )
    return Plan(configurations, conclusion, traces, recordings)


def carry_out(arguments: argparse.Namespace, plan: Plan, request: Request) -> int:
    """
    Diagnoses, prints the report, and writes it to the output files.

    Args:
        request: What is diagnosed, and how.

    Raises:
        LayoutDoctorError: The target could not be examined.
    """
    from layoutdoctor.commands import isolation as isolated  # late, as above

    configurations, conclusion, _, recordings = plan
    kept = tuple(output for output in conclusion.outputs if output.report_format == "json")
    record = RecordSoFar(kept, len(configurations), is_redacted=conclusion.is_redacted)
    with isolated.prepare_isolation(arguments, request) as isolation:
        try:
            with isolated.ending_signals(), showing_progress(quiet=arguments.quiet) as display:
                diagnosis = isolation.diagnose(display, record)
        except (KeyboardInterrupt, isolated.Terminated) as stop:
            how = stop.how if isinstance(stop, isolated.Terminated) else "interrupted from the keyboard"
            isolation.save_recordings(recordings, how)
            _conclude_interrupted(how, record, conclusion, isolation)
            return stop.exit_status if isinstance(stop, isolated.Terminated) else EXIT_INTERRUPTED
        except LayoutDoctorError as error:
            isolation.save_recordings(recordings, first_line(error))
            _save_partial(record, conclusion.outputs, first_line(error))
            isolation.say_how_to_continue()
            raise
        isolation.is_done = True
        isolation.save_recordings(recordings)
    diagnosis = _with_reproduction(diagnosis, conclusion.outputs, request.target or "", quiet=arguments.quiet)
    logger.debug("%s", stages_in_short(diagnosis))
    status = status_of(diagnosis, len(configurations))
    if conclusion.fail_on is None and undecided(diagnosis):
        status = EXIT_INCONCLUSIVE  # with --fail-on, findings are what was asked for
    return conclusion.conclude(diagnosis, status)


def _with_reproduction(diagnosis: Diagnosis, outputs: Sequence[OutputFile], target: str, *, quiet: bool) -> Diagnosis:
    """With what the reproducer printed where a report will hold one; an interruption costs only that."""
    from layoutdoctor.commands import isolation as isolated  # late, as below: few runs come to it
    from layoutdoctor.commands import reproduction
    from layoutdoctor.isolation.messages import Progress

    if not reproduction.is_wanted(outputs, diagnosis):
        return diagnosis
    with isolated.ending_signals(), showing_progress(quiet=quiet) as display:
        total = len(diagnosis.trials)
        display(
            Progress(stage="running the reproducer, each configuration in fresh processes", done=total, total=total)
        )
        try:
            return reproduction.with_reproduction(diagnosis, target)
        except isolated.Terminated as stop:
            why = stop.how
        except KeyboardInterrupt:
            why = "interrupted from the keyboard"
        except OSError as error:
            why = first_line(error)
        say(f"the reproducer was not run to its end: {why}")
        return diagnosis


def _conclude_interrupted(how: str, record: RecordSoFar, conclusion: Conclusion, isolation: Isolation) -> None:
    """Writes and prints what there is."""
    partial = _save_partial(record, conclusion.outputs, how)
    if partial is None:
        say("interrupted before the first configuration was done")
        return
    say("interrupted; the report holds what was recorded until then")
    isolation.say_how_to_continue()
    conclusion.print_report(partial)


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


def command_without_folders(words: Sequence[str]) -> str:
    """The command line as it goes into the record: folders are nobody else's business."""
    return shlex.join(["layoutdoctor", *(re.sub(r"[^\s=]*/", "", word) for word in words)])


def stages_in_short(diagnosis: Diagnosis) -> str:
    """How long the stages of a diagnosis took, the longest first."""
    longest = sorted(diagnosis.stage_seconds.items(), key=lambda stage: -stage[1])
    stages = (f"{clean_name(name)} {format_seconds(seconds)}" for name, seconds in longest)
    return f"took {format_seconds(sum(diagnosis.stage_seconds.values()))}: {', '.join(stages)}"


class RecordSoFar:
    """
    Remembers the latest record of a running diagnosis and keeps it in the JSON outputs.

    Attributes:
        latest: The record after the latest trial; None before the first.
    """

    def __init__(
        self, outputs: Sequence[OutputFile], configuration_count: int = 0, *, is_redacted: bool = False
    ) -> None:
        self._outputs = outputs
        self._is_redacted = is_redacted
        self._left = configuration_count
        self._told: dict[str, float] = {}
        self.latest: Diagnosis | None = None

    def __call__(self, diagnosis: Diagnosis) -> None:
        """Takes the record after a trial."""
        self.latest = diagnosis
        for trial in diagnosis.trials:
            if trial.name not in self._told:
                self._told[trial.name] = time.monotonic()
                # Of a failure its text is told, which may name what is the user's.
                told = trial if trial.failure is None else for_others(trial, redact_names=self._is_redacted)
                logger.info("%s%s", trial_in_short(told), self._estimate(diagnosis.trials))
        try:
            save_reports(diagnosis, self._outputs)
        except OutputError as error:
            # The diagnosis goes on: its end may be printed, or the disk have room again.
            say(f"warning: {error}")

    def _estimate(self, trials: Sequence[Trial]) -> str:
        """What is left, by what lay between compiled configurations: before the first, all may have been lowered."""
        left = self._left - len(trials)
        compiled = [trial for trial in trials if trial.configuration.backend != "eager" and trial.same_as is None]
        if left <= 0 or len(compiled) < 2:
            return ""
        each = (self._told[compiled[-1].name] - self._told[compiled[0].name]) / (len(compiled) - 1)
        return f"; {count_of(left, 'configuration')} left, about {format_seconds(max(1.0, each * left))}"


def _save_partial(record: RecordSoFar, outputs: Sequence[OutputFile], reason: str) -> Diagnosis | None:
    """What there is of a diagnosis that was stopped, saved to every output; None where no trial was done."""
    if record.latest is None:
        return None
    partial = msgspec.structs.replace(record.latest, interrupted=reason)
    try:
        save_reports(partial, outputs)
    except OutputError as error:
        say(f"warning: {error}")
    return partial


def status_of(diagnosis: Diagnosis, configuration_count: int) -> int:
    """What the command ends with if nothing failed."""
    if diagnosis.subject.target is not None:
        return 0 if any(trial.status == "ok" for trial in diagnosis.trials) else EXIT_INCONCLUSIVE
    measured = any(trial.measurement is not None for trial in diagnosis.trials)
    others = [trial for trial in diagnosis.trials if trial.measurement is None]
    all_the_same = bool(others) and all(trial.status == "same_as" for trial in others)
    compared = diagnosis.comparison is not None or configuration_count == 1 or all_the_same
    return 0 if measured and compared else EXIT_INCONCLUSIVE
