"""
The text of a reproducer: what makes the model, and what times two configurations of it in fresh processes.

Where the default computes something else than eager, it compares what the two compute instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.examination.choice import KEEPS_MEMORY
from layoutdoctor.reports.reproducer.program import CannotWriteError
from layoutdoctor.units import format_ratio, format_seconds

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Configuration, Diagnosis, Equivalence, FormatChoice, OptionValue

AGREES_WITHIN = 0.10
"""By how much the ratio that a script finds may be off the recorded one."""

STARTS = 3
REPRODUCED, NOT_REPRODUCED = "verdict: reproduced", "verdict: NOT reproduced"
COUNTS_REPRODUCED = "verdict: conversions as recorded; the ratio was inconclusive"
GPU_CONVERSIONS = "nchwToNhwc|nhwcToNchw|[Tt]ransposeKernel|batched_transpose|nchwToFold|nChwTo"
"""What kernels are called that only change a layout, in the libraries of NVIDIA and AMD."""

_MOST_SHOWN = 12
"""Tensors, those that differ most, that a script prints."""

_LINE = "{{{} * 1e3:9.3f}} ms, {} {{counts[name]}}, recorded {{recorded[name]}}"
_SECONDS_OF_CALLS = 1.0
_FEWEST_CALLS, _MOST_CALLS = 5, 100
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+]{0,40}", re.ASCII)
_FORMATS = {4: "torch.channels_last", 5: "torch.channels_last_3d"}


@dataclass(frozen=True, slots=True)
class ModelSource:
    """
    How a script comes by the model.

    Attributes:
        what: What it is, as the beginning of a sentence.
        imports: Modules that its lines need, besides torch.
        lines: What makes ``model``, and its inputs.
        arguments: What it is called with: ``x``, ``*args``, or ``*args, **kwargs``.
        input_ranks: Dimensions that occur among the inputs; 4 and 5 matter.
        weight_ranks: Dimensions that occur among the weights.
        has_many_outputs: Whether it returns more than one tensor, or nobody knows.
        is_users: Whether it is the user's own, with its own weights, and not written down with random ones.
    """

    what: str
    imports: tuple[str, ...]
    lines: tuple[str, ...]
    arguments: str
    input_ranks: frozenset[int]
    weight_ranks: frozenset[int]
    has_many_outputs: bool
    is_users: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """
    One of the two configurations.

    Attributes:
        counts: Recorded conversions, in the order of the script's own; None where they were not recorded.
        seconds: Median of a step; None where not measured.
        equivalence: Whether it computes what the model does; None where that was not checked.
    """

    name: str
    configuration: Configuration
    counts: tuple[int, ...] | None
    seconds: float | None
    equivalence: Equivalence | None


@dataclass(frozen=True, slots=True)
class Script:
    """
    What a script is made of.

    Attributes:
        title: What it shows, in one line.
        sides: The two configurations, the baseline first.
        ratio: How many times faster the second was than the first; None where they were not compared.
    """

    diagnosis: Diagnosis
    title: str
    source: ModelSource
    sides: tuple[Side, Side]
    ratio: float | None

    @property
    def is_on_cpu(self) -> bool:
        """Whether it runs on a CPU, and not on a GPU."""
        return self.diagnosis.subject.device != "cuda"

    @property
    def is_training(self) -> bool:
        """Whether a step runs the backward as well."""
        return self.diagnosis.subject.mode == "training"

    @property
    def counted(self) -> str:
        """What it counts, in brackets."""
        return "(reorders, copies)" if self.is_on_cpu else "(conversion kernels)"


def script_text(script: Script) -> str:
    """
    The script.

    Raises:
        CannotWriteError: A configuration cannot be written down.
    """
    own = ("os", "tempfile") if script.is_on_cpu else ("re",)
    imports = _imports(script, {"json", "statistics", "subprocess", "sys", "timeit", *own, *script.source.imports})
    parts = [_header(script), imports, _settings(script), [*script.source.lines], _configurations(script)]
    parts += [_run(script), _conversions(script), _one(script), _all(script)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def values_text(script: Script) -> str:
    """
    The script that shows that the second configuration computes something else than the model in eager.

    Raises:
        CannotWriteError: The configuration cannot be written down.
    """
    wrong = script.sides[1].equivalence
    recorded, limit = "by an unknown amount", "0.02 * right.abs().max().item()"
    if wrong is not None and wrong.max_abs_error is not None:
        recorded = f"by up to {wrong.max_abs_error:.3g}"
        if wrong.tolerance is not None and script.source.is_users:
            limit = f"{min(wrong.tolerance, 0.5):.3g} * right.abs().max().item()"
    ended = [
        f"Recorded by layoutdoctor {_versions(script)}: outputs or gradients differ {recorded}.",
        "Compares them with those of the same model in eager, and exits 1 where they do not differ.",
        '"""',
    ]
    kept = {"sys", *script.source.imports}
    parts = [[*_title(script), *ended], _imports(script, kept), _settings(script), [*script.source.lines]]
    parts += [_prepared(script.sides[1], script), _values(script), _compared(recorded, limit)]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _values(script: Script) -> list[str]:
    cleared = ["    for weight in model.parameters():", "        weight.grad = None"] if script.is_training else []
    lines = [
        "",
        "def values(call):",
        *cleared,
        f"    ys = torch.utils._pytree.tree_leaves(call({script.source.arguments}))",
        "    ys = [y for y in ys if isinstance(y, torch.Tensor) and y.is_floating_point()]",
        '    found = {f"output {number}": y.detach().clone() for number, y in enumerate(ys)}',
    ]
    if script.is_training:
        lines += [
            "    ys = [y for y in ys if y.requires_grad]",
            "    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])",
            "    grads = {name: weight.grad for name, weight in model.named_parameters()}",
            '    found |= {f"gradient of {name}": grad for name, grad in grads.items() if grad is not None}',
        ]
    return [*lines, "    return found", ""]


def _compared(recorded: str, limit: str) -> list[str]:
    return [
        "found, wrong = [], 0",
        "eager, compiled = values(model), values(net)",
        "for name, right in eager.items():",
        "    difference = (compiled[name] - right).abs().max().item()",
        f"    wrong += not difference <= {limit}",
        '    found.append((difference, f"{name:40} largest {right.abs().max().item():9.3g}"))',
        f"for difference, text in sorted(found, reverse=True)[:{_MOST_SHOWN}]:",
        '    print(f"{text}, compiled differs by {difference:9.3g}")',
        f'print(f"{{wrong}} of {{len(found)}} tensors differ; recorded: {recorded}")',
        f'print("{REPRODUCED}" if wrong else "{NOT_REPRODUCED}")',
        "sys.exit(not wrong)",
    ]


def code_line_count(text: str) -> int:
    """Lines of a script that do something: without its header, which is its first string, imports and blank lines."""
    lines = text.split('"""', 2)[-1].splitlines()
    return sum(bool(line.strip()) and not line.startswith(("import ", "from ")) for line in lines)


def _header(script: Script) -> list[str]:
    known = [(side.name, side.seconds) for side in script.sides if side.seconds is not None]
    times = ", ".join(f"{name} {format_seconds(float(seconds))}" for name, seconds in known)
    ratio = "not compared" if script.ratio is None else f"{format_ratio(script.ratio)} as fast"
    starts, what = f"Starts {STARTS} processes of each in turns", "conversions or ratio are"
    if script.ratio is None:
        starts, what = "Starts a process of each", "conversions are"
    return [
        *_title(script),
        f"Recorded by layoutdoctor {_versions(script)}: {times or 'no times'};",
        f"{script.sides[1].name}: {ratio}.",
        f"{starts}; exits 1 where {what} not as recorded.",
        '"""',
    ]


def _title(script: Script) -> list[str]:
    device = "a CPU" if script.is_on_cpu else "a GPU"
    step = "forward and backward" if script.is_training else "inference"
    return [f'"""{script.title}.', "", f"{script.source.what}; {step} on {device}."]


def _versions(script: Script) -> str:
    diagnosis = script.diagnosis
    return f"{_version(diagnosis.layoutdoctor_version)} with torch {_version(diagnosis.environment.torch)}"


def _version(text: str | None) -> str:
    return text if text is not None and _VERSION.fullmatch(text) else "(version not recorded)"


def _imports(script: Script, names: set[str]) -> list[str]:
    plain = sorted(f"import {name}" for name in names if " " not in name)
    lines = [*plain, *sorted(name for name in names if " " in name), "", "import torch"]
    if any(global_options(side.configuration) for side in script.sides):
        lines.append("import torch._inductor.config")
    if any("F." in line for line in script.source.lines):
        lines.append("import torch.nn.functional as F")
    return [*lines, *(["from torch import nn"] if any("nn." in line for line in script.source.lines) else [])]


def _settings(script: Script) -> list[str]:
    lines = ["torch.manual_seed(0)"]
    threads = script.diagnosis.environment.thread_count
    if script.is_on_cpu and threads is not None and 0 < threads < 10_000:
        lines.append(f"torch.set_num_threads({threads})")
    return lines if script.is_training else [*lines, "torch.set_grad_enabled(False)"]


def _configurations(script: Script) -> list[str]:
    """Lines that make ``net`` of the model and give the inputs their layout, by the configuration's name."""
    lines = []
    for side in script.sides:
        lines += [f'if sys.argv[1:] == ["{side.name}"]:', *(f"    {line}" for line in _prepared(side, script))]
    return lines


def _prepared(side: Side, script: Script) -> list[str]:
    source, configuration = script.source, side.configuration
    lines = _weights_in_format(configuration.model_format, source.weight_ranks)
    lines += _inputs_in_format(configuration.input_format, source)
    if configuration.backend == "eager":
        return [*lines, "net = model"]
    # Freezing has no effect as an option of the call, but keeps dynamo from taking the code of the other configuration.
    options = {**effective_options(configuration), **global_options(configuration)}
    lines.append(f"net = torch.compile(model, dynamic=False{_options(options)})")
    if options.get("freezing"):
        lines.append("with torch._inductor.config.patch(freezing=True):  # dynamo reads it where it compiles")
        lines.append(f"    net({source.arguments})")
    return lines


def _weights_in_format(wanted: FormatChoice | None, ranks: frozenset[int]) -> list[str]:
    formats = _formats(wanted, ranks)
    if len(formats) < 2:
        return [f"model = model.to(memory_format={name})" for name in formats.values()]
    return [
        f"formats = {_written(formats)}",
        "for weight in [*model.parameters(), *model.buffers()]:",
        "    weight.data = weight.data.to(memory_format=formats.get(weight.dim(), torch.preserve_format))",
    ]


def _inputs_in_format(wanted: FormatChoice | None, source: ModelSource) -> list[str]:
    formats = _formats(wanted, source.input_ranks)
    if source.arguments == "x":
        return [f"x = x.to(memory_format={name})" for name in formats.values()]
    if not formats:
        return []
    if "kwargs" not in source.arguments:
        return [
            f"args = [x.to(memory_format={name}) if x.dim() == {rank} else x for x in args]"
            for rank, name in formats.items()
        ]
    return [
        f"formats = {_written(formats)}",
        "def lay_out(x):",
        "    return x.to(memory_format=formats.get(x.dim(), torch.preserve_format))",
        "args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lay_out, (args, kwargs))",
    ]


def _written(formats: dict[int, str]) -> str:
    return f"{{{', '.join(f'{rank}: {name}' for rank, name in formats.items())}}}"


def _formats(wanted: FormatChoice | None, ranks: frozenset[int]) -> dict[int, str]:
    """The memory format by the number of dimensions; empty where tensors stay as they are."""
    if wanted in (None, "preserve"):
        return {}
    known = {rank: name for rank, name in _FORMATS.items() if rank in ranks}
    return {rank: "torch.contiguous_format" if wanted == "contiguous" else name for rank, name in known.items()}


def _options(options: dict[str, OptionValue]) -> str:
    for name, value in options.items():
        is_name = name.replace("_", "").replace(".", "").isalnum() and name.isascii() and name.islower()
        if not is_name or not (value is None or type(value) in (bool, int)):
            raise CannotWriteError("a configuration has options that are no numbers")
    written = ", ".join(f'"{name}": {value!r}' for name, value in options.items())
    return f", options={{{written}}}" if options else ""


def _run(script: Script) -> list[str]:
    source = script.source
    synchronized = [] if script.is_on_cpu else ["    torch.cuda.synchronize()"]
    if not script.is_training:
        return ["", "def run():", f"    net({source.arguments})", *synchronized, ""]
    lines = ["", "def run():", "    for weight in model.parameters():", "        weight.grad = None"]
    if source.has_many_outputs:
        lines.append(f"    ys = torch.utils._pytree.tree_leaves(net({source.arguments}))")
        lines.append("    ys = [y for y in ys if isinstance(y, torch.Tensor) and y.requires_grad]")
        lines.append("    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])")
    else:
        lines += [f"    y = net({source.arguments})", "    y.backward(torch.ones_like(y))"]
    return [*lines, *synchronized, ""]


def _conversions(script: Script) -> list[str]:
    if not script.is_on_cpu:
        return [
            "def conversions():  # kernels that only change a layout",
            "    with torch.profiler.profile() as profile:",
            "        run()",
            f'    names = r"{GPU_CONVERSIONS}"',
            "    return [sum(event.count for event in profile.key_averages() if re.search(names, event.key))]",
            "",
        ]
    return [
        "def conversions():  # oneDNN logs its primitives to the C-level stdout; the profiler sees ATen's copies",
        "    stdout, log = os.dup(1), tempfile.TemporaryFile()",
        "    os.dup2(log.fileno(), 1)",
        "    with torch.backends.mkldnn.verbose(1), torch.profiler.profile() as profile:",
        "        run()",
        "    os.dup2(stdout, 1)",
        "    log.seek(0)",
        '    copies = (event.count for event in profile.key_averages() if event.key == "aten::copy_")',
        '    return [log.read().count(b",exec,cpu,reorder,"), sum(copies)]',
        "",
    ]


def _one(script: Script) -> list[str]:
    longest = max((side.seconds or 0.0 for side in script.sides), default=0.0)
    calls = min(_MOST_CALLS, max(_FEWEST_CALLS, int(_SECONDS_OF_CALLS / longest))) if longest > 0 else _FEWEST_CALLS
    return [
        "if len(sys.argv) > 1:  # one configuration, in a process that does nothing else",
        "    for _ in range(3):",
        "        run()",
        '    print("ready", flush=True)',
        "    sys.stdin.readline()  # ends when it is its turn",
        f"    seconds = statistics.median(timeit.repeat(run, number=1, repeat={calls}))",
        "    print(json.dumps([seconds, conversions()]))",
        "    sys.exit()",
    ]


def _all(script: Script) -> list[str]:
    (first, second), ratio = script.sides, script.ratio
    recorded = ", ".join(f'"{side.name}": {_listed(side.counts)}' for side in script.sides)
    begin = [f"recorded = {{{recorded}}}  # {script.counted} of a call"]
    begin.append('pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}')
    if script.is_on_cpu:
        settings = ", ".join(f'"{name}": "{value}"' for name, value in KEEPS_MEMORY.items())
        begin.append(f'pipes["env"] = {{**os.environ, {settings}}}  # as it was measured')
    tests = [] if None in (first.counts, second.counts) else ["counts == recorded"]
    if ratio is None:  # counts are the same in every process, and times say nothing
        lines = [*begin, "counts = {}", *_started("")]
        lines.append(f'    print(f"{{name:30}} {_LINE.format("seconds", script.counted)}")')
    else:
        lines = [
            *begin,
            "times, counts = {name: [] for name in recorded}, {}",
            f"for _ in range({STARTS}):",
            *_started("    "),
            "        times[name].append(seconds)",
            "for name, seconds in times.items():",
            f'    print(f"{{name:30}} {_LINE.format("min(seconds)", script.counted)}")',
            "ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))",
            f'print(f"{second.name}: {{ratio:.2f}}x as fast, recorded {format_ratio(ratio)}")',
        ]
        tests.append(_agrees(ratio))
    if not tests:
        return [*lines, 'print("verdict: nothing to compare with was recorded")']
    return [
        *lines,
        f"reproduced = {' and '.join(tests)}",
        f'print("{COUNTS_REPRODUCED if ratio is None else REPRODUCED}" if reproduced else "{NOT_REPRODUCED}")',
        "sys.exit(not reproduced)",
    ]


def _started(indent: str) -> list[str]:
    """A process of each configuration; the block that ends this goes on with what one found."""
    return [
        f"{indent}{line}"
        for line in (
            "children = {name: subprocess.Popen([sys.executable, __file__, name], **pipes) for name in recorded}",
            "for child in children.values():  # all have compiled before one is timed, and the others sleep then",
            '    any(line.strip() == b"ready" for line in child.stdout)',
            "for name, child in children.items():",
            "    printed = child.communicate()[0]",
            "    if child.returncode:",
            '        sys.exit(f"{name} ended with exit status {child.returncode}")',
            "    seconds, counts[name] = json.loads(printed.splitlines()[-1])",
        )
    ]


def _agrees(ratio: float) -> str:
    return f"abs(ratio / {ratio:.3f} - 1) <= {AGREES_WITHIN}"


def _listed(counts: tuple[int, ...] | None) -> str:
    return str(None if counts is None else list(counts))
