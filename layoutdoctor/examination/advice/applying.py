"""Applies a configuration: makes lines to paste, and options of the compiler."""

from __future__ import annotations

import ast
from collections.abc import Mapping  # needed at run time: calls are decoded from messages by annotation
from typing import NamedTuple

from layoutdoctor.diagnosis import Configuration
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.diagnosis.subject import FormatChoice, OptionValue


class ModelCall(NamedTuple):
    """
    The call of the model in the user's code.

    Attributes:
        ranks: Number of dimensions of each assignable tensor, by its code: ``x`` or ``batch['image']``.
        unassignable: Arguments with 4-D or 5-D tensors in a container that cannot be assigned to, such as a tuple.
        has_modes: Whether ``model.eval()`` works; it raises for an exported program.
        places: Index of each tensor in ``ranks`` among all tensors; empty if ``ranks`` contains all tensors.
    """

    text: str
    ranks: Mapping[str, int]
    unassignable: tuple[str, ...] = ()
    has_modes: bool = True
    places: tuple[int, ...] = ()


def how_to_apply(configuration: Configuration, parameter_ranks: frozenset[int], call: ModelCall) -> str:
    """
    Code that applies a configuration to ``model`` and its inputs, one statement per line.

    Args:
        parameter_ranks: Numbers of dimensions of the model's parameters and buffers; only 4 and 5 matter.

    Returns:
        Lines without a newline at the end; the last one calls the model.
    """
    lines = _model_lines(configuration.model_format, sorted(parameter_ranks & CHANNELS_LAST_BY_RANK.keys()))
    lines += [line for cure in configuration.cures for line in cure.how.splitlines()]
    lines += [f"torch.backends.{name} = {value}" for name, value in configuration.library_switches.items()]
    lines += _compile_lines(configuration, has_modes=call.has_modes)
    lines += _input_lines(configuration, call)
    if configuration.ahead_of_time:
        lines += _package_lines(configuration, call)
    elif configuration.freezes:
        lines.append("with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # where it compiles")
        return "\n".join([*lines, f"    {_call_line(call)}"])
    elif not lines:
        lines = ["# nothing to change: call the model as it is, without torch.compile"]
    return "\n".join([*lines, _call_line(call)])


def _call_line(call: ModelCall) -> str:
    """The statement that calls the model; its result is ``y`` unless an argument has this name."""
    names = {node.id for node in ast.walk(ast.parse(call.text)) if isinstance(node, ast.Name)}
    return f"{'result' if 'y' in names else 'y'} = {call.text}"


def effective_options(configuration: Configuration) -> dict[str, OptionValue]:
    """
    The value of ``torch.compile(options=...)``.

    Returns:
        Inductor's option names and values, without ``freezing``: dynamo reads this option from the global setting
        before options apply, so it is in ``global_options``.
    """
    options: dict[str, OptionValue] = {}
    if configuration.layout_optimization in ("off", "on", "forced"):
        options["layout_optimization"] = configuration.layout_optimization != "off"
    if configuration.layout_optimization == "forced":
        options["force_layout_optimization"] = True
    further = {name: value for name, value in configuration.inductor_options.items() if name != "freezing"}
    return {**options, **further}


def compile_words(configuration: Configuration) -> str:
    """The arguments of ``torch.compile`` as code: ``mode="reduce-overhead", dynamic=True``; may be empty."""
    arguments = dict(configuration.compile_arguments)
    effective = effective_options(configuration)
    # torch.compile takes a mode or options
    options = _listed(effective, arguments.pop("mode", None)) if effective else []
    words = [f"{name}={_value(value)}" for name, value in arguments.items()]
    return ", ".join([*words, *(["options={" + ", ".join(options) + "}"] if options else [])])


def global_options(configuration: Configuration) -> dict[str, OptionValue]:
    """
    Options that must be patched into Inductor's global settings around the first call.

    Source:
        ``is_parameter_freezing`` in torch/_dynamo reads ``torch._inductor.config.freezing`` while tracing, torch 2.13:
        with ``options={"freezing": True}``, the parameters stay graph inputs.
    """
    return {name: value for name, value in configuration.inductor_options.items() if name == "freezing"}


def _model_lines(choice: FormatChoice | None, ranks: list[int]) -> list[str]:
    if choice in (None, "preserve") or not ranks:
        return []
    if choice == "contiguous":
        return [
            "for tensor in [*model.parameters(), *model.buffers()]:",
            "    tensor.data = tensor.data.contiguous()",
        ]
    if len(ranks) == 1:
        return [f"model = model.to(memory_format=torch.{CHANNELS_LAST_BY_RANK[ranks[0]]})"]
    # Module.to(memory_format=...) raises on a model with both ranks.
    lines = ["for tensor in [*model.parameters(), *model.buffers()]:"]
    for rank in ranks:
        lines += [
            f"    if tensor.dim() == {rank}:",
            f"        tensor.data = tensor.data.to(memory_format=torch.{CHANNELS_LAST_BY_RANK[rank]})",
        ]
    return lines


def _package_lines(configuration: Configuration, call: ModelCall) -> list[str]:
    """The lines that compile ``model`` to a package, for inputs in the memory format of ``call``."""
    options = {**global_options(configuration), **effective_options(configuration)}
    words = ", ".join(_listed(options, configuration.compile_arguments.get("mode")))
    model = "model.eval()" if call.has_modes else "model"
    configs = f", inductor_configs={{{words}}}" if words else ""
    return [
        f"program = torch.export.export({model}, {_arguments_of(call.text)})",
        f'package = torch._inductor.aoti_compile_and_package(program, package_path="model.pt2"{configs})',
        "model = torch._inductor.aoti_load_package(package)  # it does not check the memory format of its inputs",
    ]


def _arguments_of(call: str) -> str:
    """The arguments of a call as code: ``(x,)`` for ``model(x)``, ``(x,), {"y": y}`` for ``model(x, y=y)``."""
    parsed = ast.parse(call, mode="eval").body
    assert isinstance(parsed, ast.Call)
    named = ", ".join(f'"{one.arg}": {ast.unparse(one.value)}' for one in parsed.keywords)
    given = "".join(f"{ast.unparse(one)}, " for one in parsed.args).rstrip()
    return f"({given if len(parsed.args) == 1 else given.rstrip(',')})" + (f", {{{named}}}" if named else "")


def _compile_lines(configuration: Configuration, *, has_modes: bool) -> list[str]:
    if configuration.backend != "inductor" or configuration.ahead_of_time:
        return []
    words = compile_words(configuration)
    compiled = f"model = torch.compile(model{', ' if words else ''}{words})"
    if configuration.freezes:
        return ["import torch._inductor.config", *(["model.eval()"] if has_modes else []), compiled]
    return [compiled]


def _input_lines(configuration: Configuration, call: ModelCall) -> list[str]:
    choice, uses = configuration.input_format, dict(enumerate(configuration.input_uses))
    if choice in (None, "preserve"):
        return []
    lines = []
    for number, (name, rank) in enumerate(call.ranks.items()):
        use = uses.get(call.places[number] if call.places else number, "images")
        if rank not in CHANNELS_LAST_BY_RANK or use == "other":
            continue
        new = f"to(memory_format=torch.{CHANNELS_LAST_BY_RANK[rank]})"
        if choice == "contiguous":
            new = "contiguous()"
        elif use == "frames":
            new = f"flatten(0, 1).to(memory_format=torch.channels_last).unflatten(0, {name}.shape[:2])"
        lines.append(f"{name} = {name}.{new}")
    return [*lines, *(f"# and every 4-D and 5-D tensor in {name}" for name in call.unassignable)]


def _listed(options: Mapping[str, OptionValue], mode: OptionValue) -> list[str]:
    """Options as the entries of a dict in code; the options of a mode come first, if a mode is given."""
    of_mode = [] if mode is None else [f"**torch._inductor.list_mode_options({_value(mode)})"]
    return of_mode + [f'"{name}": {_value(value)}' for name, value in options.items()]


def _value(value: OptionValue) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if isinstance(value, str) else repr(value)
