"""``calibrate``: the constants of torch's layout heuristic, measured on this device; for those who maintain it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.commands.diagnose import positive_seconds
from layoutdoctor.commands.several import targets_of
from layoutdoctor.commands.streams import print_text, say, showing_progress, stdout_to_stderr, terminal_width
from layoutdoctor.errors import LayoutDoctorError, SubjectError, needs_torch
from layoutdoctor.reports.sections.wording import clean

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from layoutdoctor.run.calibration import Call, Constant

_WIDTH = 120
_HEAD = ("class", "direction", "torch's", "by time", "mean", "lowest", "highest", "convolutions")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.description = (
        "Times every convolution of some models in both memory formats, forward and backward, and prints what "
        "channels_last takes over what contiguous takes, by the classes of decide_layout_opt, beside its constants. "
        "The models run in the command's own process, once."
    )
    parser.epilog = (
        "'by time' is over all calls together, 'mean' the geometric mean over distinct convolutions; below 1 "
        "channels_last is faster. Exit status: 0 done; 2 wrong usage; 3 no target could be run."
    )
    parser.add_argument("targets", metavar="TARGET", nargs="*", help="as for diagnose; a model that fails is left out")
    parser.add_argument("--list", metavar="FILE", help="more targets, one a line")
    parser.add_argument("--device", help="where to run, such as cpu or cuda (default: where the model is)")
    parser.add_argument("--dtype", help="floating dtype of models and inputs, such as float32 or bf16")
    parser.add_argument(
        "--budget",
        metavar="SECONDS",
        type=positive_seconds,
        default=0.5,
        help="for the timing rounds of one convolution in one direction (default: 0.5)",
    )
    parser.add_argument(
        "--format", choices=("text", "markdown", "json"), default="text", help="of the table (default: text)"
    )


def run(arguments: argparse.Namespace) -> int:
    """
    Measures, and prints the table.

    Raises:
        LayoutDoctorError: The command line is wrong, or no target has a convolution that could be timed.
    """
    targets = targets_of(arguments)
    with needs_torch():  # late: what is wrong with the command line is said at once
        from layoutdoctor.isolation.messages import Progress
        from layoutdoctor.measure.environment import describe_environment
        from layoutdoctor.run.calibration import calibrate, convolutions_of
        from layoutdoctor.subjects.load import load_target
    calls: dict[Call, int] = {}
    ran = []
    with showing_progress(quiet=arguments.quiet) as display, stdout_to_stderr():
        for number, target in enumerate(targets):
            display(Progress(f"looking for the convolutions of {target}", number, len(targets)))
            try:
                subject = load_target(target, device=arguments.device, dtype=arguments.dtype)
                for call, count in convolutions_of(subject).items():
                    calls[call] = calls.get(call, 0) + count
                ran.append(subject.name)
            except LayoutDoctorError as error:
                say(f"error: {clean(str(error))}")
        if not calls:
            raise SubjectError(f"cannot calibrate: none of {len(targets)} targets ran with a 2-D or 3-D convolution")

        def tell(done: int, total: int) -> None:
            display(Progress("timing convolutions in both formats", done, total))

        constants = calibrate(calls, arguments.budget, tell)
    device = next(iter(calls)).device.type
    machine = describe_environment(device, triton=None, onednn=(None, None), command=None)
    words = [f"torch {machine.torch}", machine.device_name or device, f"{machine.thread_count} threads"]
    words += [f"cuDNN {machine.cudnn}"] if device == "cuda" else []
    _print(constants, ", ".join(words), ran, arguments.format)
    return 0


def _print(constants: Sequence[Constant], machine: str, models: Sequence[str], report_format: str) -> None:
    if report_format == "json":
        import msgspec

        text = msgspec.json.encode({"machine": machine, "models": models, "constants": constants})
        print_text(msgspec.json.format(text, indent=1).decode() + "\n")
        return
    rows = [_row(constant) for constant in constants if constant.count]
    told = f"Of {', '.join(map(clean, models))}; {clean(machine)}"
    if report_format == "markdown":
        from layoutdoctor.reports.markdown import markdown_table

        print_text(f"{markdown_table(_HEAD, rows)}\n\n{told}\n")
        return
    from layoutdoctor.reports.text import plain_table

    print_text(f"{plain_table(_HEAD, rows, terminal_width() or _WIDTH)}\n\n{told}\n")


def _row(constant: Constant) -> tuple[str, ...]:
    numbers = (constant.torch, constant.of_time, constant.mean, constant.lowest, constant.highest)
    failed = f", {constant.failed} did not run in both" if constant.failed else ""
    shown = ("-" if number is None else f"{number:.3f}" for number in numbers)
    return (constant.class_, constant.direction, *shown, f"{constant.count}{failed}")
