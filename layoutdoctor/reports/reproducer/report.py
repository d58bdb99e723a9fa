"""
The reproducer: a short script, with torch alone, that shows the worst finding.

It is made from the record alone, of which only numbers, names of torch's own operators and of built-in configurations
reach the text: no name of a module, a file or a person, and nothing that could run.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import BASELINE, BUILTIN_CONFIGURATIONS, base_name
from layoutdoctor.diagnosis.records import FASTER, NO_DIFFERENCE, SLOWER
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.examination.costs import counted_conversions
from layoutdoctor.reports.reproducer.code import WIDTH, model_code
from layoutdoctor.reports.reproducer.layers import free_placeholders, steps_of
from layoutdoctor.reports.reproducer.program import CannotWriteError, aligned, cut, read_program, region_of, simplified
from layoutdoctor.reports.sections.wording import find_ratio, is_recording
from layoutdoctor.units import format_seconds
from layoutdoctor.words import ONEDNN_LOG, count_of

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import (
        Configuration,
        Diagnosis,
        Finding,
        Graph,
        OptionValue,
        RatioInterval,
        Trial,
    )
    from layoutdoctor.reports.reproducer.code import ModelCode
    from layoutdoctor.reports.reproducer.program import Program

MOST_CODE_LINES = 45
"""Lines of code that a reproducer may have, its header, imports and blank lines apart."""

_CODE = re.compile(r"LD[0-35-9][0-9]{2}", re.ASCII)
"""Codes of findings that a script can show; LD4xx are about the measurement."""

_RULE = re.compile(r"[a-z0-9]+(-[a-z0-9]+){0,8}", re.ASCII)
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,40}", re.ASCII)
_BUILTIN = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
_FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}
LONG_SECONDS = 0.1
"""A step that takes longer gets fewer rounds and calls."""

GPU_CONVERSIONS = "nchwToNhwc|nhwcToNchw|[Tt]ransposeKernel|batched_transpose|nchwToFold|nChwTo"
"""What kernels are called that only change a layout, in the libraries of NVIDIA and AMD."""


@dataclass(frozen=True, slots=True)
class Reproducer:
    """
    A script, and how to speak of it.

    Attributes:
        script: Python source; where there is nothing to run, it only says why.
        is_runnable: Whether it shows the finding, rather than saying why it cannot.
        title: What it shows, in one line.
        reason: Why there is nothing to run; None where there is.
    """

    script: str
    is_runnable: bool
    title: str
    reason: str | None = None


def build_reproducer(diagnosis: Diagnosis) -> Reproducer:
    """The reproducer of a diagnosis."""
    try:
        return _reproducer(diagnosis)
    except CannotWriteError as error:
        reason = f"no reproducer: {error}"
    except (LookupError, TypeError, ValueError, RecursionError):  # a record that was edited by hand
        reason = "no reproducer: what the record says of the model's operations contradicts itself"
    return Reproducer(f'raise SystemExit("{reason}")\n', False, "No reproducer", reason)


def render_reproducer(diagnosis: Diagnosis) -> str:
    """The reproducer as Python source."""
    return build_reproducer(diagnosis).script


def _reproducer(diagnosis: Diagnosis) -> Reproducer:
    subject = diagnosis.subject
    if is_recording(diagnosis):
        raise CannotWriteError("a recorded trace does not hold the operations of the model")
    if subject.target is not None:
        raise CannotWriteError("the graphs were lowered for a GPU that was not there, so nothing ran")
    if subject.device not in ("cpu", "cuda"):
        raise CannotWriteError("the model ran on neither a CPU nor a GPU")
    base, other = _choose(diagnosis)
    finding = _finding_of(diagnosis, base, other)
    program = _program(diagnosis)
    inputs = _inputs_of(diagnosis, program)
    sides = (_side(base, "first configuration", subject.device), _side(other, "second configuration", subject.device))
    title = f"{sides[1].name} against {sides[0].name}"
    if finding is not None:
        title = f"{finding.code} {finding.rule}: {title}"
    ratio = _recorded_ratio(diagnosis, base, other)

    def written(part: Program, inputs: tuple[str, ...], what: str, *, is_cut: bool) -> str:
        model = model_code(part, inputs, is_training=subject.mode == "training", device=subject.device or "cpu")
        return script_text(Script(diagnosis, title, what, model, sides, ratio, is_cut))

    count = len(program.operations)
    text = written(program, inputs, f"The whole model ({count_of(count, 'operation')})", is_cut=False)
    if code_line_count(text) > MOST_CODE_LINES:
        first, last = region_of(program, finding)
        part, new = cut(program, first, last)
        inputs = tuple(name for name in part.placeholders if name in inputs or name in new)
        text = written(part, inputs, f"Operations {first + 1} to {last + 1} of the model's {count}", is_cut=True)
    if code_line_count(text) > MOST_CODE_LINES:
        raise CannotWriteError("the part of the model around the worst finding is too long")
    return Reproducer(text, True, title)


def _side(trial: Trial, own_name: str, device: str | None) -> Side:
    """One of the configurations; one that a user named is not passed on by its name."""
    name = trial.name if _BUILTIN.get(trial.name) == trial.configuration else own_name
    seconds = trial.measurement.median_seconds if trial.measurement is not None else None
    return Side(name, trial.configuration, _counts(trial, device), seconds)


def _choose(diagnosis: Diagnosis) -> tuple[Trial, Trial]:
    """
    The baseline, and what to compare it with.

    That is what is recommended; else what runs without the baseline's redundant pairs, the fewest conversions first;
    else the worst finding's configuration; else the next best.
    """
    ran = [trial for trial in diagnosis.trials if trial.status == "ok" and not trial.is_static]
    usable = {trial.name: trial for trial in ran if _can_be_written(trial.configuration)}
    if len(usable) < 2:
        raise CannotWriteError("fewer than two configurations ran")
    baseline = diagnosis.comparison.baseline if diagnosis.comparison is not None else BASELINE
    base = usable.get(baseline) or next(iter(usable.values()))
    ratios = diagnosis.comparison.ratios if diagnosis.comparison is not None else ()
    fastest = diagnosis.fastest
    wanted = [fastest.name, base_name(fastest.configuration)] if fastest is not None else []
    if base.redundant_pairs:  # what runs without them shows what they are
        without = [trial for trial in usable.values() if not trial.redundant_pairs and trial.kernels is not None]
        wanted += [trial.name for trial in sorted(without, key=lambda trial: len(counted_conversions(trial)))]
    wanted += [f.configuration for f in diagnosis.findings if f.configuration is not None and _CODE.fullmatch(f.code)]
    wanted += [ratio.name for ratio in sorted(ratios, key=lambda ratio: -ratio.median)]
    for name in [*wanted, *usable]:
        trial = diagnosis.measured_trial(name)
        if trial is not None and trial.name in usable and trial.name != base.name:
            return base, usable[trial.name]
    raise CannotWriteError("fewer than two configurations ran")


def _can_be_written(configuration: Configuration) -> bool:
    """A cure changes modules, and a reproducer has none."""
    is_plain = not configuration.cures and not configuration.library_switches
    return is_plain and configuration.backend in ("eager", "inductor")


def _finding_of(diagnosis: Diagnosis, base: Trial, other: Trial) -> Finding | None:
    """The worst finding that one of the two configurations shows."""
    for finding in diagnosis.findings:
        if not (_CODE.fullmatch(finding.code) and _RULE.fullmatch(finding.rule)):
            continue
        trial = diagnosis.measured_trial(finding.configuration) if finding.configuration is not None else base
        if trial is not None and trial.name in (base.name, other.name):
            return finding
    return None


def _program(diagnosis: Diagnosis) -> Program:
    eager = _eager_graph(diagnosis, "eager")
    trial = diagnosis.find_trial("eager")
    if eager is None or trial is None or trial.equivalence is None:
        raise CannotWriteError("the configuration 'eager' was not recorded, which holds the operations of the model")
    count = len(trial.equivalence.output_layouts)
    program = simplified(read_program(eager, count))
    other = _eager_graph(diagnosis, "eager-channels-last")
    return program if other is None else aligned(program, simplified(read_program(other, count)))


def _eager_graph(diagnosis: Diagnosis, name: str) -> Graph | None:
    trial = diagnosis.find_trial(name)
    if trial is None or trial.configuration != _BUILTIN[name] or not trial.graphs or not trial.graphs[0].nodes:
        return None
    return trial.graphs[0]


def _inputs_of(diagnosis: Diagnosis, program: Program) -> tuple[str, ...]:
    """The placeholders that are the model's inputs: of the shape and dtype of each, in order."""
    free = free_placeholders(program, steps_of(program))
    found: list[str] = []
    for given in diagnosis.subject.inputs:
        same = [n for n in free if n.layout is not None and (n.layout.shape, n.dtype) == (given.shape, given.dtype)]
        same.sort(key=lambda node: node.layout is None or node.layout.stride != given.stride)
        if same:
            found.append(same[0].name)
            free.remove(same[0])
    if not found:
        raise CannotWriteError("the record does not say which tensor is the model's input")
    return tuple(found)


def _counts(trial: Trial, device: str | None) -> tuple[int, ...] | None:
    """The conversions that the script counts, as they were recorded."""
    kernels = trial.kernels
    if kernels is None or kernels.count != len(kernels.kernels):
        return None
    if device != "cpu":
        return (sum(re.search(GPU_CONVERSIONS, kernel.name) is not None for kernel in kernels.kernels),)
    if ONEDNN_LOG not in kernels.sources:
        return None
    names = [kernel.name for kernel in kernels.kernels]
    return names.count("reorder"), names.count("aten::copy_")


def _recorded_ratio(diagnosis: Diagnosis, base: Trial, other: Trial) -> RatioInterval | None:
    if diagnosis.comparison is None or diagnosis.comparison.baseline != base.name:
        return None
    ratio = find_ratio(diagnosis, other.name)
    is_sound = ratio is not None and all(math.isfinite(end) for end in (ratio.low, ratio.median, ratio.high))
    return ratio if is_sound and ratio is not None and ratio.verdict in (FASTER, SLOWER, NO_DIFFERENCE) else None


def _header(script: Script) -> list[str]:
    diagnosis = script.diagnosis
    torch, ours = _version(diagnosis.environment.torch), _version(diagnosis.layoutdoctor_version)
    device = "a CPU" if script.device == "cpu" else "a GPU"
    step = "forward and backward" if script.is_training else "inference"
    known = [(side.name, side.seconds) for side in script.sides if side.seconds is not None]
    times = ", ".join(f"{name} {format_seconds(float(seconds))}" for name, seconds in known)
    return [
        f'"""{script.title}.',
        "",
        f"{script.what}, with random weights; {step} on {device}.",
        f"Recorded by layoutdoctor {ours} with torch {torch}: {times or 'no times'};",
        f"{script.sides[1].name} is: {recorded_verdict(script.ratio)}.",
        'Prints a line for each configuration and, where conversions and times are as recorded, "verdict: reproduced".',
        '"""',
    ]


def _version(text: str | None) -> str:
    return text if text is not None and _VERSION.fullmatch(text) else "(version not recorded)"


@dataclass(frozen=True, slots=True)
class Side:
    """
    One of the two configurations.

    Attributes:
        counts: Recorded conversions, in the order of the script's own; None where they were not recorded.
        seconds: Median of a step; None where not measured.
    """

    name: str
    configuration: Configuration
    counts: tuple[int, ...] | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Script:
    """
    What a script is made of.

    Attributes:
        title: What it shows, in one line.
        what: Which part of the model it runs.
        sides: The two configurations, the baseline first.
        ratio: The recorded ratio of the two; None where there is none.
        is_cut: Whether the model is a part of the one recorded, so that its counts are others.
    """

    diagnosis: Diagnosis
    title: str
    what: str
    model: ModelCode
    sides: tuple[Side, Side]
    ratio: RatioInterval | None
    is_cut: bool

    @property
    def device(self) -> str:
        """Where it runs: ``cpu`` or ``cuda``."""
        return self.diagnosis.subject.device or "cpu"

    @property
    def is_training(self) -> bool:
        """Whether a step runs the backward as well."""
        return self.diagnosis.subject.mode == "training"


def script_text(script: Script) -> str:
    """
    The script.

    Raises:
        CannotWriteError: A configuration cannot be written down.
    """
    parts = [_header(script), _imports(script), _settings(script), script.model.lines, _run(script)]
    parts += [_conversions(script), [*_steps(script), *_timing(script), *_printing(script)]]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def code_line_count(text: str) -> int:
    """Lines of a script that do something: without its header, which is its first string, imports and blank lines."""
    lines = text.split('"""', 2)[-1].splitlines()
    return sum(bool(line.strip()) and not line.startswith(("import ", "from ")) for line in lines)


def _imports(script: Script) -> list[str]:
    names = ["timeit"] + (["os", "tempfile"] if script.device == "cpu" else ["re"])
    lines = [f"import {name}" for name in sorted(names)]
    lines += ["from copy import deepcopy", "from functools import partial", "", "import torch"]
    if any(global_options(side.configuration) for side in script.sides):
        lines.append("import torch._inductor.config")
    if any("F." in line for line in script.model.lines):
        lines.append("import torch.nn.functional as F")
    return [*lines, *(["from torch import nn"] if any("nn." in line for line in script.model.lines) else [])]


def _settings(script: Script) -> list[str]:
    lines = ["torch.manual_seed(0)"]
    threads = script.diagnosis.environment.thread_count
    if script.device == "cpu" and threads is not None and 0 < threads < 10_000:
        lines.append(f"torch.set_num_threads({threads})")
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
    if len(lines[0]) > WIDTH:
        lines = ["inputs = [", *(f"    {text}," for text in inputs), "]"]
    given = "x" if len(inputs) == 1 else "*inputs"
    run = "partial(run, {0}, {1})" if _run(script) else "partial({0}, {1})"
    for side, name in zip(script.sides, ("base", "other"), strict=True):
        code, frozen = _prepared(side.configuration, script)
        own = _given(side.configuration, script, given)
        kept = 'steps = {{"{0}": {1}}}' if name == "base" else 'steps["{0}"] = {1}'
        line = kept.format(side.name, run.format(code, own))
        if frozen or len(line) > WIDTH:
            lines.append(f"{name} = {code}")
            line = kept.format(side.name, run.format(name, own))
        if frozen:
            lines.append("with torch._inductor.config.patch(freezing=True):  # dynamo reads it where it compiles")
            lines.append(f"    {name}({own})")
        lines.append(line)
    return lines


def _prepared(configuration: Configuration, script: Script) -> tuple[str, bool]:
    """The model of one configuration, and whether its first call has to happen under freezing."""
    code = "deepcopy(model)" + _converted(configuration.model_format, script.model.weight_ranks, "weights")
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
    call = _converted(configuration.input_format, script.model.input_ranks, "inputs")
    if not call:
        return given
    call += ".detach().requires_grad_()" if script.is_training and script.is_cut else ""
    if given == "x":
        return f"x{call}"
    (rank,) = script.model.input_ranks & _FORMATS.keys()
    return f"*(x{call} if x.dim() == {rank} else x for x in inputs)"


def _converted(wanted: str | None, ranks: frozenset[int], what: str) -> str:
    """The call that gives tensors of so many dimensions a memory format; empty where they stay as they are."""
    known = [name for rank, name in _FORMATS.items() if rank in ranks]
    if wanted in (None, "preserve") or not known:
        return ""
    if len(known) > 1:
        raise CannotWriteError(f"the model has {what} of four and of five dimensions")
    return f".to(memory_format={'torch.contiguous_format' if wanted == 'contiguous' else known[0]})"


def _timing(script: Script) -> list[str]:
    is_long = any((side.seconds or 0.0) > LONG_SECONDS for side in script.sides)
    rounds, calls, left_out = (18, 1, 2) if is_long else (35, 4, 8)
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
    """What was recorded of the two times, in words."""
    if ratio is None:
        return "not compared"
    return f"{ratio.verdict}, {float(ratio.median):.2f}x ({float(ratio.low):.2f} to {float(ratio.high):.2f})"
