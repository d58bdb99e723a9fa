"""
The text of a reproducer around its model: what is compared, how it is counted and timed, and what was recorded.

Faces the reproducer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.analysis.how_to_apply import effective_options, global_options
from layoutdoctor.records import NO_DIFFERENCE
from layoutdoctor.reports.reproducer.program import CannotWriteError

if TYPE_CHECKING:
    from layoutdoctor.records import Configuration, OptionValue, RatioInterval
    from layoutdoctor.reports.reproducer.code import ModelCode

_FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
_WIDTH = 118
LONG_SECONDS = 0.1
"""A step that takes longer gets fewer rounds and calls."""

GPU_CONVERSIONS = "nchwToNhwc|nhwcToNchw|[Tt]ransposeKernel|batched_transpose|nchwToFold|nChwTo"
"""What kernels are called that only change a layout, in the libraries of NVIDIA and AMD."""


@dataclass(frozen=True, slots=True)
class Side:
    """
    One of the two configurations.

    Attributes:
        name: What the script calls it.
        configuration: What it applies.
        counts: Recorded conversions, in the order of the script's own; None where they were not recorded.
    """

    name: str
    configuration: Configuration
    counts: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Script:
    """
    What a script is made of.

    Attributes:
        header: Lines of the comment at its top.
        model: The model's code.
        sides: The two configurations, the baseline first.
        ratio: The recorded ratio of the two; None where there is none.
        device: ``cpu`` or ``cuda``.
        thread_count: Threads to use on a CPU; None leaves torch's own.
        is_training: Whether a step runs the backward as well.
        is_cut: Whether the model is a part of the one recorded, so that its counts are others.
        is_long: Whether a step takes so long that fewer rounds have to do.
    """

    header: tuple[str, ...]
    model: ModelCode
    sides: tuple[Side, Side]
    ratio: RatioInterval | None
    device: str
    thread_count: int | None
    is_training: bool
    is_cut: bool
    is_long: bool


def script_text(script: Script) -> str:
    """
    The script.

    Args:
        script: What it is made of.

    Raises:
        CannotWriteError: A configuration cannot be written down.
    """
    parts = [['"""' + script.header[0], *script.header[1:], '"""'], _imports(script), _settings(script)]
    parts += [list(script.model.lines)]
    parts += [_run(script)] if _run(script) else []
    parts += [_conversions(script), [*_steps(script), *_timing(script), *_printing(script)]]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def code_line_count(text: str) -> int:
    """
    Lines of a script that do something: without its header, imports and blank lines.

    Args:
        text: The script; its header is the first string.
    """
    lines = text.split('"""', 2)[-1].splitlines()
    return sum(bool(line.strip()) and not line.startswith(("import ", "from ")) for line in lines)


def _imports(script: Script) -> list[str]:
    names = ["timeit"] + (["os", "tempfile"] if script.device == "cpu" else ["re"])
    lines = [f"import {name}" for name in sorted(names)]
    lines += ["from copy import deepcopy", "from functools import partial", "", "import torch"]
    if any(global_options(side.configuration) for side in script.sides):
        lines.append("import torch._inductor.config")
    if script.model.uses_functional:
        lines.append("import torch.nn.functional as F")
    return [*lines, *(["from torch import nn"] if any("nn." in line for line in script.model.lines) else [])]


def _settings(script: Script) -> list[str]:
    lines = ["torch.manual_seed(0)"]
    if script.device == "cpu" and script.thread_count is not None:
        lines.append(f"torch.set_num_threads({script.thread_count})")
    return lines if script.is_training else [*lines, "torch.set_grad_enabled(False)"]


def _run(script: Script) -> list[str]:
    """The function that runs one step, where that is more than to call the model."""
    synchronized = [] if script.device == "cpu" else ["    torch.cuda.synchronize()"]
    if not script.is_training:
        return ["def run(model, *inputs):", "    model(*inputs)", *synchronized] if synchronized else []
    lines = ["def run(model, *inputs):", "    model.zero_grad()"]
    if script.model.output_count == 1:
        lines += ["    y = model(*inputs)", "    y.backward(torch.ones_like(y))"]
    else:
        lines.append("    ys = [y for y in model(*inputs) if y.requires_grad]")
        lines.append("    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])")
    return [*lines, *synchronized]


def _conversions(script: Script) -> list[str]:
    if script.device != "cpu":
        return [
            "def conversions(step):  # kernels that only change a layout",
            "    with torch.profiler.profile() as profile:",
            "        step()",
            f'    names = r"{GPU_CONVERSIONS}"',
            "    return (sum(event.count for event in profile.key_averages() if re.search(names, event.key)),)",
        ]
    return [
        "def conversions(step):  # oneDNN logs its primitives to the C-level stdout; the profiler sees ATen's copies",
        "    stdout, log = os.dup(1), tempfile.TemporaryFile()",
        "    os.dup2(log.fileno(), 1)",
        "    with torch.backends.mkldnn.verbose(1), torch.profiler.profile() as profile:",
        "        step()",
        "    os.dup2(stdout, 1)",
        "    log.seek(0)",
        '    copies = (event.count for event in profile.key_averages() if event.key == "aten::copy_")',
        '    return log.read().count(b",exec,cpu,reorder,"), sum(copies)',
    ]


def _steps(script: Script) -> list[str]:
    # Of a part of a model, the gradient goes on through its inputs.
    leaf = ".requires_grad_()" if script.is_training and script.is_cut else ""
    inputs = [f"{text}{leaf if 'randn' in text else ''}" for text in script.model.inputs]
    lines = [f"x = {inputs[0]}"] if len(inputs) == 1 else [f"inputs = [{', '.join(inputs)}]"]
    if len(lines[0]) > _WIDTH:
        lines = ["inputs = [", *(f"    {text}," for text in inputs), "]"]
    given = "x" if len(inputs) == 1 else "*inputs"
    run = "partial(run, {0}, {1})" if _run(script) else "partial({0}, {1})"
    for side, name in zip(script.sides, ("base", "other"), strict=True):
        code, frozen = _prepared(side.configuration, script)
        own = _given(side.configuration, script, given)
        kept = 'steps = {{"{0}": {1}}}' if name == "base" else 'steps["{0}"] = {1}'
        line = kept.format(side.name, run.format(code, own))
        if frozen or len(line) > _WIDTH:
            lines.append(f"{name} = {code}")
            line = kept.format(side.name, run.format(name, own))
        if frozen:
            lines.append("with torch._inductor.config.patch(freezing=True):  # dynamo reads it where it compiles")
            lines.append(f"    {name}({own})")
        lines.append(line)
    return lines


def _prepared(configuration: Configuration, script: Script) -> tuple[str, bool]:
    """The model of one configuration, and whether its first call has to happen under freezing."""
    code = "deepcopy(model)"
    ranks = sorted(script.model.weight_ranks & _FORMATS.keys())
    if configuration.model_format not in (None, "preserve") and ranks:
        if len(ranks) > 1:
            raise CannotWriteError("the model has weights of four and of five dimensions")
        contiguous = configuration.model_format == "contiguous"
        code += f".to(memory_format={'torch.contiguous_format' if contiguous else _FORMATS[ranks[0]]})"
    if configuration.backend == "eager":
        return code, False
    # Freezing has no effect as an option of the call, but keeps dynamo from taking the code of the other configuration.
    options = {**effective_options(configuration), **global_options(configuration)}
    code = f"torch.compile({code}, dynamic=False{_options(options)})"
    return code, bool(options.get("freezing"))


def _options(options: dict[str, OptionValue]) -> str:
    for name, value in options.items():
        is_name = name.replace("_", "").replace(".", "").isalnum() and name.isascii() and name.islower()
        if not is_name or not (value is None or type(value) in (bool, int)):
            raise CannotWriteError("a configuration has options that are no numbers")
    written = ", ".join(f'"{name}": {value!r}' for name, value in options.items())
    return f", options={{{written}}}" if options else ""


def _given(configuration: Configuration, script: Script, given: str) -> str:
    """The inputs of one configuration."""
    ranks = sorted(script.model.input_ranks & _FORMATS.keys())
    if configuration.input_format in (None, "preserve") or not ranks:
        return given
    if len(ranks) > 1:
        raise CannotWriteError("the model has inputs of four and of five dimensions")
    contiguous = configuration.input_format == "contiguous"
    call = f".to(memory_format={'torch.contiguous_format' if contiguous else _FORMATS[ranks[0]]})"
    call += ".detach().requires_grad_()" if script.is_training and script.is_cut else ""
    if given == "x":
        return f"x{call}"
    return f"*(x{call} if x.dim() == {ranks[0]} else x for x in inputs)"


def _timing(script: Script) -> list[str]:
    rounds, calls, left_out = (18, 1, 2) if script.is_long else (35, 4, 8)
    kept = rounds - 2
    timed = f"min(timeit.repeat(steps[name], number=1, repeat={calls}))"
    # An interval from the third smallest to the third largest of 16 ratios, or from the 9th to the 9th of 33, covers
    # the true median in more than 99 %.
    middle = kept // 2
    ratios = "list(zip(*times.values(), strict=True))[2:]"
    return [
        "times = {name: [] for name in steps}",
        f"for turn in range({rounds}):  # the first two compile and warm up; the order alternates against drift",
        "    for name in sorted(steps, reverse=turn % 2 == 1):",
        f"        times[name].append({timed})",
        f"ratios = sorted(a / b for a, b in {ratios})",
        f"low, ratio, high = ratios[{left_out}], ratios[{middle}], ratios[{kept - 1 - left_out}]"
        "  # 99 % interval of the median, whatever the noise",
    ]


def _printing(script: Script) -> list[str]:
    first, second = script.sides
    what = "(reorders, copies)" if script.device == "cpu" else "(conversion kernels,)"
    whole = "whole model" if script.is_cut else "recorded"
    ratio = script.ratio
    lines = [
        f'recorded = {{"{first.name}": {first.counts!r}, "{second.name}": {second.counts!r}}}  # {what}, per call',
        "counts = {name: conversions(step) for name, step in steps.items()}",
        "for name in steps:",
        f'    print(f"{{name:30}} {{min(times[name]) * 1e3:9.3f}} ms {what} {{counts[name]}}, '
        f'{whole} {{recorded[name]}}")',
        'verdict = "faster" if low > 1.01 else "slower" if high * 1.01 < 1 else "no measurable difference"',
    ]
    lines.append(f'print(f"{second.name}: {{verdict}}, {{ratio:.2f}}x ({{low:.2f}} to {{high:.2f}})")')
    tests = [] if script.is_cut or None in (first.counts, second.counts) else ["counts == recorded"]
    if ratio is not None and ratio.verdict == NO_DIFFERENCE:
        # What the record could not tell apart is contradicted only by an interval beyond its own.
        tests.append(f"(low <= {float(ratio.high):.3f} and high >= {float(ratio.low):.3f})")
    elif ratio is not None:
        tests.append(f'verdict == "{ratio.verdict}"')
    if not tests:
        return [*lines, 'print("verdict: nothing to compare with was recorded")']
    condition = tests[0].strip("()") if len(tests) == 1 else " and ".join(tests)
    return [*lines, f'print("verdict:", "reproduced" if {condition} else "NOT reproduced")']


def recorded_verdict(ratio: RatioInterval | None) -> str:
    """
    What was recorded of the two times, in words.

    Args:
        ratio: The recorded ratio; None where there is none.
    """
    if ratio is None:
        return "not compared"
    return f"{ratio.verdict}, {float(ratio.median):.2f}x ({float(ratio.low):.2f} to {float(ratio.high):.2f})"
