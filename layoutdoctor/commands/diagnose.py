"""
``diagnose``: diagnoses a model under several layout configurations. The subcommand's name may be left out.

All errors of the command line are found before torch is imported.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from layoutdoctor.commands import several
from layoutdoctor.commands.conclusion import add_conclusion_options, prepare_conclusion, status_of
from layoutdoctor.commands.output import (
    files_of_target,
    prepare_raw,
    print_report,
    publish,
    read_weights,
    save_recordings,
    writable,
)
from layoutdoctor.commands.signals import Interrupted
from layoutdoctor.commands.streams import say
from layoutdoctor.diagnosis import Diagnosis, Failure
from layoutdoctor.diagnosis.compile_arguments import read_compile_arguments
from layoutdoctor.diagnosis.configurations import (
    ALL,
    ONCE_FOR_ALL_SIZES,
    PACKAGE_SUFFIX,
    QUICK,
    check_package,
    choose_configurations,
    what_follows,
)
from layoutdoctor.diagnosis.gpus import GPUS, find_gpu
from layoutdoctor.errors import UsageError, first_line
from layoutdoctor.files.writing import RECORDING_SUFFIX, TRACE_SUFFIX
from layoutdoctor.reports import render_policy
from layoutdoctor.workers.messages import DEFAULT_TIMEOUT_SECONDS, Request

if TYPE_CHECKING:
    from layoutdoctor.commands.conclusion import Conclusion

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
        "configuration to use for each; --output policy.json keeps it",
    )
    parser.add_argument(
        "--weights",
        metavar="NUMBERS",
        type=read_weights,
        help="with --or: how often each kind of call comes, such as 10,1 (default: equally)",
    )
    parser.add_argument(
        "--threads",
        metavar="NUMBERS",
        type=_thread_counts,
        default=[],
        help=(
            "threads that torch uses inside one operation on a CPU, such as 4; several, as 1,2,4, are "
            "diagnosed one by one"
        ),
    )
    parser.add_argument(
        "--config",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="argument to build a model of timm, torchvision, transformers or diffusers; may be repeated",
    )
    parser.add_argument(
        "--module",
        metavar="PATH",
        help="diagnose one module inside the target, such as vae.decoder, with its inputs in one run of the target",
    )
    parser.add_argument("--device", help="where to run, such as cpu or cuda (default: where the model is)")
    parser.add_argument("--dtype", help="floating dtype of model and inputs, such as float32 or bf16")
    add_options_of_diagnosis(parser)


def add_options_of_diagnosis(parser: argparse.ArgumentParser) -> None:
    """Adds the options of every diagnosis, whether its model comes from a target or from a script."""
    parser.add_argument(
        "--lower-for",
        "--target",
        metavar="GPU",
        dest="lower_for",
        help=f"lower for a GPU that is not there ({', '.join(target.name for target in GPUS)}): traced on the CPU and "
        "not measured, so that --budget and --save-traces have no effect",
    )
    parser.add_argument(
        "--mode", choices=("inference", "training"), default="inference", help="what to run (default: inference)"
    )
    parser.add_argument(
        "--compile",
        metavar="ARGUMENTS",
        type=_compile_arguments,
        help="""arguments of your own torch.compile call, such as 'mode="reduce-overhead", dynamic=True'; every """
        "configuration uses them, except for options that it sets itself (default: those of the compiled target)",
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
        help="the three to try first: torch.compile's default, channels_last and, in inference, channels_last with "
        "frozen weights",
    )
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=_positive_seconds,
        help=(
            "to time all configurations in turns, and the best again in further processes; not for compiling and "
            "profiling (default: as long as compiling took, at least 10 and at most 60)"
        ),
    )
    parser.add_argument("--save-traces", metavar="DIR", help="keep the profiler's traces in this directory")
    parser.add_argument(
        "--save-recordings",
        metavar="DIR",
        help="keep the recording of each configuration in this directory, for layoutdoctor show",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds_or_none,
        default=DEFAULT_TIMEOUT_SECONDS,
        help="time limit of one configuration; after it, the other configurations go on; 'none' for no limit "
        f"(default: {DEFAULT_TIMEOUT_SECONDS:g})",
    )
    parser.add_argument(
        "--resume",
        metavar="DIR",
        help="keep recordings in this directory, and go on from those that it holds: what failed or hung is not tried "
        "again, and a run that came to its end is examined once more",
    )
    add_conclusion_options(parser)


def _positive_seconds(text: str) -> float:
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
    return math.inf if text == "none" else _positive_seconds(text)


def run(arguments: argparse.Namespace) -> int:
    """Diagnoses the targets, prints the report, and writes it to the output files."""
    targets = several.targets_of(arguments)
    if len(targets) > 1:
        several.refuse_what_is_of_one(arguments, targets)
    calls = several.kinds_of_call(arguments, targets[0])
    if len(calls) > 1:
        several.refuse_for_a_policy(arguments, targets)
    elif arguments.weights is not None:
        raise UsageError("cannot use --weights for one kind of call: give several, --input SPEC --or --input SPEC")
    weights = arguments.weights or [1.0] * len(calls)
    if len(weights) != len(calls):
        raise UsageError(f"cannot use {len(weights)} weights for {len(calls)} kinds of call: expected one for each")
    plan = prepare_diagnosis(arguments, targets)
    request = msgspec.structs.replace(
        plan.request,
        target=targets[0],
        config=tuple(arguments.config),
        device=arguments.device if arguments.lower_for is None else "cpu",
        dtype=arguments.dtype,
        module=arguments.module,
        command=command_without_folders(arguments.words),
    )
    requests = [msgspec.structs.replace(request, inputs=inputs, threads=threads) for inputs, threads in calls.values()]
    if len(calls) > 1:
        return diagnose_calls(arguments, plan, dict(zip(calls, requests, strict=True)), weights)
    if len(targets) > 1:
        each = {target: msgspec.structs.replace(requests[0], target=target) for target in targets}
        return several.diagnose_several(arguments, plan.conclusion, each)
    return carry_out(arguments, plan, requests[0])


def diagnose_calls(
    arguments: argparse.Namespace, plan: Plan, requests: Mapping[str, Request], weights: Sequence[float]
) -> int:
    """
    Diagnoses each kind of call (one set of input shapes, one thread count), and makes the policy for all kinds.

    Args:
        requests: Requests by the name of the kind of call.
        weights: Relative frequency of each kind of call, in the order of ``requests``.
    """
    from layoutdoctor.examination.advice.policy import (
        make_policy,  # imported late, so that errors of the command line show first
    )

    shapes = {(one.inputs, one.subject_directory) for one in requests.values()}
    if len(shapes) > 1 and what_follows(arguments.configurations) != "nothing":
        tried = (*plan.request.configurations, ONCE_FOR_ALL_SIZES)
        requests = {name: msgspec.structs.replace(one, configurations=tried) for name, one in requests.items()}

    def conclude(found: Mapping[str, Diagnosis | Failure], conclusion: Conclusion) -> None:
        if arguments.format != "json":
            several.print_found(found, conclusion)
        done = zip(found.values(), weights, strict=True)
        measured = [(one, weight) for one, weight in done if not isinstance(one, Failure)]
        try:
            policy = make_policy([one for one, _ in measured], [weight for _, weight in measured])
        except UsageError as error:  # for example, a model without convolutions has no times
            say(f"no policy: {error}")
            if arguments.format == "json":
                several.print_found(found, conclusion)
            return
        publish(conclusion.for_others(policy), conclusion.outputs, arguments.format, render_policy)

    return several.diagnose_several(arguments, plan.conclusion, requests, conclude)


class Plan(NamedTuple):
    """
    The checked options of a diagnosis.

    Attributes:
        request: The request, still without a target.
        recordings: Folder for the recordings; None if they are not kept.
    """

    request: Request
    conclusion: Conclusion
    recordings: Path | None


def prepare_diagnosis(arguments: argparse.Namespace, targets: Sequence[str]) -> Plan:
    """Checks the options and prepares the outputs."""
    if arguments.lower_for is not None:
        find_gpu(arguments.lower_for)
        if arguments.device not in (None, "cpu"):
            raise UsageError(
                f"cannot lower for {arguments.lower_for} with --device {arguments.device}: the model is "
                "traced on the CPU; leave out --device to lower, or --lower-for to measure"
            )
    read = [file for target in targets for file in files_of_target(target)]
    configurations = choose_configurations(arguments.configurations, arguments.mode)
    conclusion = prepare_conclusion(arguments, read)
    traces = prepare_raw(arguments, "traces", TRACE_SUFFIX) if arguments.lower_for is None else None
    recordings = prepare_raw(arguments, "recordings", RECORDING_SUFFIX)
    request = Request(
        mode=arguments.mode,
        configurations=configurations,
        derives=what_follows(arguments.configurations),
        tries_all=arguments.configurations == ALL,
        compile_arguments=arguments.compile,
        lower_for=arguments.lower_for,
        package=_package(arguments, read),
        budget_seconds=arguments.budget,
        trace_directory=str(traces) if traces is not None else None,
        timeout_seconds=None if arguments.timeout == math.inf else arguments.timeout,
    )
    return Plan(request, conclusion, recordings)


def _package(arguments: argparse.Namespace, read: Sequence[Path]) -> str | None:
    """Returns the file of ``--package``, or None. Refuses a file that cannot be written, and use with ``--resume``."""
    if arguments.package is None:
        return None
    if arguments.resume is not None:
        raise UsageError(
            "cannot use --package with --resume: --package keeps what this run compiles, and a resumed run may compile "
            "nothing; leave one out"
        )
    path = check_package(arguments.package, arguments.mode, arguments.lower_for)
    return str(writable(Path(path), read, force=arguments.force))


def carry_out(arguments: argparse.Namespace, plan: Plan, request: Request) -> int:
    """Makes a diagnosis and its reports. If the diagnosis is stopped, the reports hold the results so far."""
    from layoutdoctor.commands.reproducing import with_reproduction  # imported late: it is slow
    from layoutdoctor.commands.running import Running, say_stages
    from layoutdoctor.workers.launcher import close_kept_launcher

    running = Running(request, plan.conclusion, arguments.resume)
    try:
        diagnosis = running.diagnose(quiet=arguments.quiet)
    except BaseException as error:
        how = str(error) if isinstance(error, Interrupted) else first_line(error)
        partial = running.stopped(how, plan.recordings)
        if not isinstance(error, Interrupted):
            raise
        if partial is None:
            say("interrupted before the first configuration was ready")
        else:
            say("interrupted; the report holds what was measured until then")
            print_report(partial, plan.conclusion.report_format)
            say_how_to_continue(arguments.words)
        return error.exit_status
    finally:
        close_kept_launcher()
    if plan.recordings is not None:
        save_recordings(running.recordings, plan.recordings)
    diagnosis = with_reproduction(diagnosis, plan.conclusion.outputs, request.target, quiet=arguments.quiet)
    say_stages(diagnosis)
    return plan.conclusion.conclude(diagnosis, status_of(diagnosis))


def say_how_to_continue(words: Sequence[str]) -> None:
    """Says which command repeats the run, or continues it (``--resume``); adds ``--force`` if the run wrote files."""
    written = ("--output", "--save-recordings", "--save-traces")
    words = list(words)
    if any(word.startswith(written) for word in words) and "--force" not in words:
        words.append("--force")
    say(f"run again with: {shlex.join(['python', '-m', 'layoutdoctor', *words])}")


def command_without_folders(words: Sequence[str]) -> str:
    """Returns the command line for the record, without the names of folders, which are private."""
    return shlex.join(["layoutdoctor", *(re.sub(r"[^\s=]*/", "", word) for word in words)])
