"""Applies a configuration to a model and its inputs: in a worker process, or to a copy for the caller."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import inductor_config, profiler_runs
from layoutdoctor.diagnosis import Configuration
from layoutdoctor.diagnosis.subject import FormatChoice, InputUse, Mode, OptionValue
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.examination.advice.applying import effective_options, global_options
from layoutdoctor.examination.kernels.operations import GRAPH_CALL
from layoutdoctor.state.switches import switched
from layoutdoctor.subjects.copies import (
    CHANNELS_LAST,
    copy_model,
    in_format,
    input_tensors,
    mark_sizes,
    outermost_modules,
    with_dynamo_marks,
)
from layoutdoctor.subjects.cures import apply_cures
from layoutdoctor.subjects.step import Step
from layoutdoctor.subjects.subject import callable_name, owned_module, set_mode, unwrap

if TYPE_CHECKING:
    from layoutdoctor.subjects.subject import LoadedSubject

T = TypeVar("T")


def prepare(subject: LoadedSubject, configuration: Configuration, mode: Mode) -> Step:
    """
    Applies a configuration to a subject, whose model is changed in place; returns the step that runs the model.

    Raises:
        UsageError: A cure of the configuration is not known, or does not fit the model.
    """
    module = owned_module(subject)
    notes = [*set_mode(module, mode)]
    if outermost_modules(subject.model):
        converted = apply_model_format(module, configuration.model_format)
        if configuration.model_format == "channels_last" and not converted:
            notes.append(_why_nothing_changed(module))
        apply_cures(module, configuration)
    elif configuration.model_format not in (None, "preserve"):
        notes.append(f"{configuration.model_format} was given to the inputs only: the function uses no module")
    args, kwargs = apply_input_format((subject.args, subject.kwargs), configuration)
    if configuration.dynamic is not None:
        mark_sizes(subject.model, input_tensors(args, kwargs), dynamic=configuration.dynamic)
    switches = configuration.library_switches
    return Step(subject.model, module, args, kwargs, mode, switches=switches, notes=tuple(notes))


def _why_nothing_changed(module: nn.Module) -> str:
    ranks = {tensor.dim() for tensor in [*module.parameters(), *module.buffers()]}
    if ranks.isdisjoint(CHANNELS_LAST):
        return "channels_last changed no weight: the model has no 4-D or 5-D parameter"
    return "channels_last changed no weight: all 4-D and 5-D parameters already have this format"


def apply_model_format(module: nn.Module, choice: FormatChoice | None) -> int:
    """
    Converts a module's parameters and buffers in place, each by ``in_format``; tied weights stay tied.

    ``Module.to(memory_format=...)`` cannot be used: it raises if a module has both 4-D and 5-D tensors.

    Returns:
        Number of tensors whose strides changed.
    """
    changed = 0
    for tensor in [*module.parameters(), *module.buffers()]:
        converted = in_format(tensor.detach(), choice)
        if converted.layout == torch.strided and converted.stride() != tensor.stride():
            tensor.data = converted  # the Parameter object stays, so references to it stay valid
            changed += 1
    return changed


def apply_input_format(inputs: T, configuration: Configuration) -> T:
    """Converts the inputs that a model reads as images or frames to a configuration's memory format, and no others."""
    uses = iter(configuration.input_uses)

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        converted = _in_format_for(leaf, configuration.input_format, next(uses, "images"))
        if converted is leaf or not leaf.is_leaf:
            return converted
        return with_dynamo_marks(converted.detach().requires_grad_(leaf.requires_grad), leaf)

    return pytree.tree_map(convert, inputs)


def _in_format_for(tensor: torch.Tensor, choice: FormatChoice | None, use: InputUse) -> torch.Tensor:
    if use == "other" or tensor.layout != torch.strided:
        return tensor
    if use == "images" or choice != "channels_last":
        return in_format(tensor, choice)
    return in_format(tensor.flatten(0, 1), choice).unflatten(0, tensor.shape[:2])


def same_preparation_key(step: Step, configuration: Configuration) -> Hashable:
    """Returns a key of the settings, formats and cures in effect; configurations with equal keys compile only once."""
    options: dict[str, object] = {}
    if configuration.backend == "inductor":
        options = {
            "layout_optimization": inductor_config().layout_optimization,
            "force_layout_optimization": inductor_config().force_layout_optimization,
            "freezing": inductor_config().freezing,
            **compiler_options(configuration),
            **global_options(configuration),
            **configuration.compile_arguments,
            "symbolic sizes": configuration.dynamic,
            "ahead of time": configuration.ahead_of_time,
        }
    chosen = tuple(sorted((name, repr(value)) for name, value in options.items()))
    cures = tuple((cure.name, cure.modules) for cure in configuration.cures)
    switches = tuple(step.switches.items())
    return (configuration.backend, chosen, formats_in_effect(step), cures, switches)


def compiler_options(configuration: Configuration) -> dict[str, OptionValue]:
    """Returns Inductor's options for a configuration, including the options of its mode."""
    mode, dynamic = (configuration.compile_arguments.get(name) for name in ("mode", "dynamic"))
    options = torch._inductor.list_mode_options(mode, dynamic) if mode else {}
    return {**options, **effective_options(configuration)}


class Packaged:
    """
    A module compiled by AOTInductor: the first call exports and compiles it, or loads the package if the file exists.

    A profile shows the names of the package's kernels.

    Args:
        package: File for the package; None for a file in Inductor's cache.

    Raises:
        SubjectError: ``run`` is no module.

    Source:
        ``aoti_compile_and_package`` and ``aoti_load_package``, torch/_inductor/__init__.py; torch 2.13.
    """

    def __init__(self, run: Callable[..., Any], options: Mapping[str, Any], package: Path | None) -> None:
        if not isinstance(run, nn.Module):
            raise SubjectError(
                f"cannot export {callable_name(run)}: AOTInductor compiles a module, got a function; give the module, "
                "or leave the package out"
            )
        self._run, self._options, self._package = run, {**options, "cpp.enable_kernel_profile": True}, package
        self._loaded: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the package; the inputs must have the sizes, strides and dtypes of the inputs that were exported."""
        if self._loaded is None:
            path = self._package
            if path is None or not path.exists():
                program = torch.export.export(self._run, args, kwargs)
                where = None if path is None else str(path)
                path = torch._inductor.aoti_compile_and_package(
                    program, package_path=where, inductor_configs=dict(self._options)
                )
            self._loaded = torch._inductor.aoti_load_package(str(path))
        if not profiler_runs():
            return self._loaded(*args, **kwargs)
        with torch.profiler.record_function(GRAPH_CALL):  # as torch.compile marks the call of a graph
            return self._loaded(*args, **kwargs)


def compile_as(
    run: Callable[..., Any], configuration: Configuration, package: Path | None = None
) -> Callable[..., Any]:
    """
    Returns a model that is compiled with a configuration's arguments at its first call.

    ``torch.compile`` takes either a mode or options, so the options of the mode are passed.

    Args:
        package: File for the package of an ahead-of-time configuration; None for a file in Inductor's cache.
    """
    if configuration.ahead_of_time:
        return Packaged(run, {**compiler_options(configuration), **global_options(configuration)}, package)
    given = configuration.compile_arguments.items()
    arguments: dict[str, Any] = {name: value for name, value in given if name != "mode"}
    return torch.compile(run, options=compiler_options(configuration) or None, **arguments)


def options_beside_code(configuration: Configuration) -> Hashable:
    """
    Returns the Inductor options in effect that do not show in generated code, such as CUDA graphs.

    Two trials with equal code are different if these options are different.
    """
    if configuration.backend != "inductor":
        return ()
    options = {"triton.cudagraphs": inductor_config().triton.cudagraphs, **compiler_options(configuration)}
    return tuple(sorted((name, repr(value)) for name, value in options.items() if "cudagraph" in name))


def formats_in_effect(step: Step) -> Hashable:
    """Returns strides of weights, buffers and inputs; trials with equal code are different if these strides differ."""
    module = step.module
    weights = [*module.parameters(), *module.buffers()]
    inputs = input_tensors(step.args, step.kwargs)
    return tuple(map(_strides, weights)), tuple(map(_strides, inputs))


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else None


@contextlib.contextmanager
def global_settings(configuration: Configuration) -> Iterator[None]:
    """
    A block with the global settings of Inductor that a configuration needs whenever dynamo compiles.

    Gradients are disabled if the configuration freezes weights, because Inductor freezes them only without gradients.
    """
    options = global_options(configuration)
    if not options:
        yield
        return
    with (
        inductor_config().patch(options),
        torch.set_grad_enabled(torch.is_grad_enabled() and not options.get("freezing")),
    ):
        yield


class ReadyModel:
    """
    A copy of a model with a configuration applied; a call converts the inputs and runs the copy.

    Attributes:
        module: The copied module, for training or saving; None for a function.
    """

    def __init__(self, run: Callable[..., Any], compiled: Callable[..., Any], configuration: Configuration) -> None:
        self.module = run if isinstance(run, nn.Module) else None
        self.configuration = configuration
        self._run, self._compiled = run, compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Converts the inputs to the configuration's memory format and calls the copy."""
        args, kwargs = apply_input_format((args, kwargs), self.configuration)
        with switched(self.configuration.library_switches), global_settings(self.configuration):
            return self._compiled(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<{callable_name(self._run)} as configuration {self.configuration.name!r}>"


def _package_by_inputs(run: Callable[..., Any], configuration: Configuration) -> Callable[..., Any]:
    """Compiles a package for each kind of inputs: with other sizes or strides, a package returns wrong results."""
    packages: dict[Hashable, Callable[..., Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = input_tensors(args, kwargs)
        kind = tuple((tensor.shape, _strides(tensor), tensor.dtype) for tensor in tensors)
        if kind not in packages:
            packages[kind] = compile_as(run, configuration)
        return packages[kind](*args, **kwargs)

    return call


def compile_for(model: Callable[..., Any], configuration: Configuration) -> ReadyModel:
    """
    Prepares a copy of a model in the way in which a configuration's trial ran it.

    Args:
        model: A module or a function. A module is copied, and the original does not change. The copy keeps its training
            mode; a copy with frozen weights is in eval mode, as in the trial.

    Raises:
        UsageError: The model is a class, or cannot be called. The configuration is a recorded trace, has a cure that
            does not fit the model, or would change the module that a given function uses.
        SubjectError: The model cannot be copied, is TorchScript, or is a function to be compiled by AOTInductor.
    """
    if configuration.backend == "recorded":
        raise UsageError(
            f"cannot compile for {configuration.name!r}: it is a recorded trace; choose a measured configuration"
        )
    model, _, _ = unwrap(model)
    run = copy_model(model)
    modules = outermost_modules(run)
    is_changed = configuration.freezes or configuration.cures or configuration.model_format not in (None, "preserve")
    if is_changed and not {id(one) for one in modules}.isdisjoint(id(one) for one in outermost_modules(model)):
        raise UsageError(
            f"cannot apply {configuration.name!r} to {callable_name(model)}: it changes the module that this function "
            "uses; give the module itself"
        )
    for module in modules:
        if configuration.freezes:
            set_mode(module, "inference")
        apply_model_format(module, configuration.model_format)
        apply_cures(module, configuration)
    compiled = run
    if configuration.ahead_of_time:
        compiled = _package_by_inputs(run, configuration)
    elif configuration.backend == "inductor":
        compiled = compile_as(run, configuration)
    return ReadyModel(run, compiled, configuration)
