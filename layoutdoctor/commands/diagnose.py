"""
``diagnose``: a model under several layout configurations. The subcommand's name may be left out.

Everything that can be wrong with the command line is found before torch is imported.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from layoutdoctor.commands import several
from layoutdoctor.commands.conclusion import EXIT_INCONCLUSIVE, add_conclusion_options, prepare_conclusion
from layoutdoctor.commands.output import (
    files_of_target,
    prepare_raw,
    print_report,
    save_recordings,
    save_reports,
    writable,
)
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import OutputError, logger, say, showing_progress
from layoutdoctor.diagnosis.configurations import (
    ALL,
    PACKAGE_SUFFIX,
    QUICK,
    TARGETS,
    check_package,
    choose_configurations,
    find_target,
    is_a_group,
    read_compile_arguments,
)
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.errors import UsageError, first_line
from layoutdoctor.reports.sections.rows import trial_in_short
from layoutdoctor.units import format_seconds
from layoutdoctor.workers.messages import DEFAULT_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from layoutdoctor.commands.conclusion import Conclusion
    from layoutdoctor.commands.output import OutputFile
    from layoutdoctor.commands.running import Folder, Running
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.workers.messages import Request

_NO_LIMIT = "none"
_MOST_THREADS = 1024


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Runs a model under several layout configurations and says what its layouts cost, and what to do."
    )
    parser.epilog = (
        "Exit status: 0 done; 1 a finding at or above --fail-on; 2 wrong usage; 3 the model could not be "
        "examined; 4 nothing was measured; 130 interrupted."
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
        "--or",
        dest="input",
        action="append_const",
        const=None,
        help="between two --input: the inputs of another kind of call. Each kind is diagnosed, and a policy says which "
        "configuration to use for which; --output policy.json keeps it",
    )
    parser.add_argument(
        "--weights",
        metavar="NUMBERS",
        help="with --or: how often each kind of call comes, such as 10,1 (default: equally)",
    )
    parser.add_argument(
        "--threads",
        metavar="NUMBERS",
        type=_thread_counts,
        default=[],
        help="threads that torch uses inside one operation on a CPU, such as 4; of several, such as 1,2,4, each is a "
        "kind of call",
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
    parser.add_argument(
        "--compile",
        metavar="ARGUMENTS",
        type=_compile_arguments,
        help="""what torch.compile is given today, such as 'mode="reduce-overhead", dynamic=True': kept in every """
        "configuration, save what it decides itself (default: as the target is compiled, if it is)",
    )
    parser.add_argument(
        "--package",
        metavar="FILE",
        help="compile with AOTInductor, beside torch.compile's default, and keep the best package in this "
        f"{PACKAGE_SUFFIX} file",
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
        "frozen weights",
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=positive_seconds,
        help="for timing all configurations in turns and the best again in further processes; compiling and profiling "
        "come on top (default: as long as compiling took, at least 10 and at most 60)",
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
        help="keep recordings in this directory, and go on from those that it holds: what failed or hung is not tried "
        "again, and a run that came to its end is examined once more",
    )
    add_conclusion_options(parser)


def positive_seconds(text: str) -> float:
    """A number of seconds as given on the command line."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"cannot use {text!r} as seconds: expected a number above 0, such as 30")
    return seconds


def _thread_counts(text: str) -> list[int]:
    counts = text.split(",")
    if not all(count.isascii() and count.isdecimal() and 0 < int(count) <= _MOST_THREADS for count in counts):
        raise argparse.ArgumentTypeError(f"cannot use {text!r} threads: expected numbers from 1 on, such as 1,2,4")
    return list(map(int, dict.fromkeys(counts)))


def _compile_arguments(text: str) -> dict[str, Any]:
    try:
        return read_compile_arguments(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _seconds_or_none(text: str) -> float:
    """Infinity means no limit; None, which is not given here, means the default."""
    return math.inf if text == _NO_LIMIT else positive_seconds(text)


def run(arguments: argparse.Namespace) -> int:
    """Diagnoses the target, prints the report, and writes it to the output files."""
    check_target(arguments.lower_for, arguments.device)
    targets = several.targets_of(arguments)
    if len(targets) > 1:
        several.refuse_what_is_of_one(arguments, targets)
    arguments.target = targets[0]
    calls = several.calls_of(arguments)
    if len(calls) > 1 and len(targets) == 1:
        return _diagnose_calls(arguments, targets[0], calls)
    if arguments.weights is not None:
        raise UsageError("cannot use --weights for one kind of call: give several, --input SPEC --or --input SPEC")
    plan = prepare_diagnosis(arguments, targets)
    if len(targets) > 1:
        return several.diagnose_several(
            arguments,
            {target: {"target": target} for target in targets},
            lambda one, running: _diagnose_one(one, plan, running),
            status_of,
        )
    return carry_out(arguments, plan, _request(arguments, plan))


def _diagnose_calls(arguments: argparse.Namespace, target: str, calls: Mapping[str, Mapping[str, object]]) -> int:
    """Diagnoses each kind of call, and makes the policy of all."""
    from layoutdoctor.commands.policy import read_weights  # late, as below

    weights = [1.0] * len(calls) if arguments.weights is None else read_weights(arguments.weights)
    if len(weights) != len(calls):
        raise UsageError(f"cannot use {len(weights)} weights for {len(calls)} kinds of call: expected one for each")
    plan, outputs = prepare_policy(arguments, target)
    return diagnose_calls(arguments, calls, weights, outputs, lambda one, running: _diagnose_one(one, plan, running))


def prepare_policy(arguments: argparse.Namespace, target: str) -> tuple[Plan, Sequence[OutputFile]]:
    """Checks the options and prepares the outputs for a policy."""
    from layoutdoctor.commands.policy import prepare_policy_outputs  # late, as below

    several.refuse_for_a_policy(arguments)
    outputs = prepare_policy_outputs(arguments, [str(file) for file in files_of_target(target)])
    return prepare_diagnosis(argparse.Namespace(**{**vars(arguments), "output": []}), [target]), outputs


def diagnose_calls(
    arguments: argparse.Namespace,
    calls: Mapping[str, Mapping[str, object]],
    weights: Sequence[float],
    outputs: Sequence[OutputFile],
    diagnose: Callable[[argparse.Namespace, Running], Diagnosis],
) -> int:
    """
    Diagnoses each kind of call, and makes the policy of all.

    Args:
        calls: By name the arguments that are its own.
        weights: How often each comes.
    """
    from layoutdoctor.commands import policy  # late, as below
    from layoutdoctor.examination.policy import make_policy

    def conclude(found: Mapping[str, Diagnosis | Failure]) -> None:
        if arguments.format != "json":
            several.print_table(found, arguments)
        done = zip(found.values(), weights, strict=True)
        measured = [(one, weight) for one, weight in done if not isinstance(one, Failure)]
        try:
            made = make_policy([one for one, _ in measured], [weight for _, weight in measured])
        except UsageError as error:  # such as of a model without a convolution, which has no times
            say(f"no policy: {error}")
            if arguments.format == "json":
                several.print_table(found, arguments)
            return
        policy.conclude(made, arguments, outputs)

    return several.diagnose_several(arguments, calls, diagnose, status_of, conclude)


def _diagnose_one(arguments: argparse.Namespace, plan: Plan, running: Running) -> Diagnosis:
    return diagnose_one(arguments, plan, running, _request(arguments, plan))


def diagnose_one(arguments: argparse.Namespace, plan: Plan, running: Running, request: Request) -> Diagnosis:
    """The diagnosis of one of several targets or kinds of call, whose report nobody has asked for."""
    record = RecordSoFar(plan.conclusion)
    with showing_progress(quiet=arguments.quiet) as display:
        return running.diagnose(request, display, record, record.show_table, _folder(arguments, request))


def _folder(arguments: argparse.Namespace, request: Request) -> Folder | None:
    from layoutdoctor.commands.running import Folder  # late, as below

    return None if arguments.resume is None else Folder(Path(arguments.resume), request)


def _request(arguments: argparse.Namespace, plan: Plan) -> Request:
    from layoutdoctor.workers.messages import Request  # late: what is wrong with the command line is said at once

    request = Request(
        target=arguments.target,
        inputs=tuple(arguments.input),
        threads=arguments.threads[0] if arguments.threads else None,
        config=tuple(arguments.config),
        device=arguments.device if arguments.lower_for is None else "cpu",
        dtype=arguments.dtype,
        module=arguments.module,
        command=command_without_folders(arguments.words),
    )
    return with_options(request, arguments, plan)


def with_options(request: Request, arguments: argparse.Namespace, plan: Plan) -> Request:
    """A request for a target with how it is to be diagnosed."""
    limit = arguments.timeout or DEFAULT_TIMEOUT_SECONDS
    return msgspec.structs.replace(
        request,
        mode=arguments.mode,
        configurations=plan.configurations,
        derives=is_a_group(arguments.configurations),
        tries_all=arguments.configurations == ALL,
        compile_arguments=arguments.compile,
        lower_for=arguments.lower_for,
        package=plan.package,
        budget_seconds=arguments.budget,
        trace_directory=str(plan.traces) if plan.traces is not None else None,
        timeout_seconds=None if limit == math.inf else limit,
    )


class Plan(NamedTuple):
    """All that a diagnosis is to do and to write, as far as it can be checked before anything runs."""

    configurations: tuple[Configuration, ...]
    conclusion: Conclusion
    traces: Path | None
    recordings: Path | None
    package: str | None


def prepare_diagnosis(arguments: argparse.Namespace, targets: list[str]) -> Plan:
    """Checks the options and prepares the outputs."""
    read = [file for target in targets for file in files_of_target(target)]
    return Plan(
        choose_configurations(arguments.configurations, arguments.mode),
        prepare_conclusion(arguments, read),
        prepare_raw(arguments, "traces") if arguments.lower_for is None else None,
        prepare_raw(arguments, "recordings"),
        _package(arguments, read),
    )


def _package(arguments: argparse.Namespace, read: Sequence[Path]) -> str | None:
    """The file of ``--package``, if it was given and can be written."""
    if arguments.package is None:
        return None
    if arguments.resume is not None:
        raise UsageError(
            "cannot use --package with --resume: a package is kept of what this run compiles; leave one out"
        )
    path = check_package(arguments.package, arguments.mode, arguments.lower_for)
    return str(writable(Path(path), read, force=arguments.force))


def carry_out(arguments: argparse.Namespace, plan: Plan, request: Request) -> int:
    """Diagnoses, and prints and writes the report; if it is stopped, the report of what was measured until then."""
    from layoutdoctor.commands.running import Running, say_how_to_continue

    record, folder = RecordSoFar(plan.conclusion), _folder(arguments, request)
    with Running() as running:
        try:
            with showing_progress(quiet=arguments.quiet) as display:
                diagnosis = running.diagnose(request, display, record, record.show_table, folder)
        except BaseException as error:
            how = str(error) if isinstance(error, Interrupted) else first_line(error)
            _save_recordings(plan, running, how)
            partial = record.stopped(how)
            if not isinstance(error, Interrupted):
                raise
            if partial is None:
                say("interrupted before the first configuration was ready")
            else:
                say("interrupted; the report holds what was measured until then")
                print_report(partial, plan.conclusion.report_format)
                say_how_to_continue(arguments.words)
            return error.exit_status
        _save_recordings(plan, running)
    diagnosis = _with_reproduction(diagnosis, plan.conclusion.outputs, quiet=arguments.quiet)
    logger.debug("%s", stages_in_short(diagnosis))
    return plan.conclusion.conclude(diagnosis, status_of(diagnosis))


def _save_recordings(plan: Plan, running: Running, interrupted: str | None = None) -> None:
    if plan.recordings is not None and running.watch is not None:
        save_recordings(running.watch.latest, plan.recordings, interrupted)


def _with_reproduction(diagnosis: Diagnosis, outputs: Sequence[OutputFile], *, quiet: bool) -> Diagnosis:
    """With the output of the reproducer if a report will hold one; an interruption costs only that."""
    from layoutdoctor.commands.running import is_reproducer_wanted, with_reproduction
    from layoutdoctor.workers.messages import Progress

    if not is_reproducer_wanted(outputs, diagnosis):
        return diagnosis
    try:
        with showing_progress(quiet=quiet) as display:
            display(Progress(stage="running the reproducer", done=99))
            return with_reproduction(diagnosis)
    except (Interrupted, OSError) as error:
        say(f"the reproducer was not run to its end: {error}")
        return diagnosis


def check_target(target: str | None, device: str | None) -> None:
    """Refuses a GPU to lower for that is not known, and one together with another device to run on."""
    if target is None:
        return
    find_target(target)
    if device not in (None, "cpu"):
        raise UsageError(
            f"cannot lower for --target {target} with --device {device}: the model is traced on the CPU; "
            "leave out --device to lower, or --target to measure"
        )


def command_without_folders(words: list[str]) -> str:
    """The command line as it goes into the record: folders are nobody else's business."""
    return shlex.join(["layoutdoctor", *(re.sub(r"[^\s=]*/", "", word) for word in words)])


def stages_in_short(diagnosis: Diagnosis) -> str:
    """How long the stages of a diagnosis took, the longest first."""
    longest = sorted(diagnosis.stage_seconds.items(), key=lambda stage: -stage[1])
    stages = (f"{name} {format_seconds(seconds)}" for name, seconds in longest)
    return f"took {format_seconds(sum(diagnosis.stage_seconds.values()))}: {', '.join(stages)}"


class RecordSoFar:
    """Remembers the latest record of a running diagnosis, and names each configuration as it is ready."""

    def __init__(self, conclusion: Conclusion) -> None:
        self._conclusion = conclusion
        self._named: set[str] = set()
        self._latest: Diagnosis | None = None

    def __call__(self, diagnosis: Diagnosis) -> None:
        """Takes the record so far."""
        self._latest = diagnosis
        for trial in diagnosis.trials:
            if trial.name not in self._named:
                self._named.add(trial.name)
                failure = trial.failure and self._conclusion.for_others(trial.failure)  # its text may hold a path
                logger.info("%s", trial_in_short(msgspec.structs.replace(trial, failure=failure)))

    def show_table(self, diagnosis: Diagnosis) -> None:
        """Prints the first table, whose times are provisional."""
        from layoutdoctor.reports.sections.view import build_view  # late, as the reports take their time
        from layoutdoctor.reports.text import table_lines

        logger.info("first times, provisional (others are still compiling):")
        for table in build_view(self._conclusion.for_others(diagnosis)).tables[:1]:
            for _, line in table_lines(table.narrow, 100):
                logger.info("%s", line)

    def stopped(self, reason: str) -> Diagnosis | None:
        """The results of a diagnosis that was stopped, as they may be shown, and saved; None if no trial was done."""
        if self._latest is None:
            return None
        partial = self._conclusion.for_others(msgspec.structs.replace(self._latest, interrupted=reason))
        try:
            save_reports(partial, self._conclusion.outputs)
        except OutputError as error:
            say(f"warning: {error}")
        return partial


def status_of(diagnosis: Diagnosis) -> int:
    """The exit status of the command: 0 if anything was measured or lowered, or there is no convolution."""
    was_lowered = diagnosis.subject.target is not None and any(trial.status == "ok" for trial in diagnosis.trials)
    was_measured = any(trial.measurement is not None for trial in diagnosis.trials)
    has_no_convolution = all(trial.status == "skipped" and trial.failure is None for trial in diagnosis.trials)
    return 0 if was_lowered or was_measured or has_no_convolution else EXIT_INCONCLUSIVE
