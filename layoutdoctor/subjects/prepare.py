"""A configuration applied to copies of the model and its inputs; the caller's own are left alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import inductor_config
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.state.switches import switched
from layoutdoctor.subjects.copies import (
    CHANNELS_LAST,
    CopiedModel,
    check_has_data,
    copy_model,
    device_of,
    in_format,
    input_tensors,
    with_dynamo_marks,
)
from layoutdoctor.subjects.cures import apply_cures
from layoutdoctor.subjects.step import Step
from layoutdoctor.subjects.subject import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from layoutdoctor.diagnosis.records import Configuration, FormatChoice, Mode
    from layoutdoctor.subjects.subject import LoadedSubject

T = TypeVar("T")


@dataclass(frozen=True)
class PreparedModel:
    """
    A copy of the subject as one configuration wants it, not compiled yet.

    Attributes:
        module: The module that owns the parameters; None for a function without any.
        switches: Of libraries, under which it runs.
    """

    run: Callable[..., Any]
    module: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    switches: dict[str, bool] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """Where it runs, such as ``cpu`` or ``cuda:1``."""
        return device_of(self.module, self.args, self.kwargs) or "cpu"

    def step(self, mode: Mode, *, fresh_inputs: bool) -> Step:
        """One iteration of it."""
        return Step(
            self.run,
            self.module,
            self.args,
            self.kwargs,
            mode,
            fresh_inputs,
            switches=self.switches,
        )


def prepare(subject: LoadedSubject, configuration: Configuration, mode: Mode) -> PreparedModel:
    """
    Gives a subject the configuration's memory formats, and applies its cures; nobody else uses the subject.

    Raises:
        SubjectError: The model cannot be copied.
    """
    model_format, input_format = configuration.model_format or "preserve", configuration.input_format or "preserve"
    model, args, kwargs = subject.model, subject.args, subject.kwargs
    if isinstance(model, nn.Module):
        check_has_data(model)
        copied = CopiedModel(model, model)
    else:
        copied = copy_model(model, _as_it_is)
    notes = [*copied.set_mode(mode)]
    if copied.module is not None:
        converted = apply_model_format(copied.module, model_format)
        if configuration.model_format == "channels_last" and not converted:
            notes.append(_why_nothing_changed(copied.module))
        apply_cures(copied.module, configuration)
    elif configuration.model_format not in (None, "preserve"):
        notes.append(f"{configuration.model_format} was given to the inputs only: the function uses no module")
    args, kwargs = apply_input_format((args, kwargs), input_format)
    return PreparedModel(copied.run, copied.module, args, kwargs, tuple(notes), dict(configuration.library_switches))


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _why_nothing_changed(module: nn.Module) -> str:
    ranks = {tensor.dim() for tensor in [*module.parameters(), *module.buffers()]}
    if ranks.isdisjoint(CHANNELS_LAST):
        return "channels_last changed no weight: the model has no 4-D or 5-D parameter"
    return "channels_last changed no weight: all 4-D and 5-D parameters are in it already"


def apply_model_format(module: nn.Module, choice: FormatChoice) -> int:
    """
    Gives every 4-D and 5-D parameter and buffer of a module a memory format, in place; tied weights stay tied.

    Args:
        choice: ``preserve`` does nothing; ``channels_last`` means the 4-D or 5-D format by rank, one tensor after the
            other, because ``Module.to(memory_format=...)`` raises where both ranks occur.

    Returns:
        How many tensors changed their strides.
    """
    changed = 0
    for tensor in [*module.parameters(), *module.buffers()]:
        converted = in_format(tensor.detach(), choice)
        if converted.layout == torch.strided and converted.stride() != tensor.stride():
            tensor.data = converted  # the Parameter itself stays, and with it what refers to it
            changed += 1
    return changed


def apply_input_format(inputs: T, choice: FormatChoice) -> T:
    """Inputs in a memory format, by rank; what is no tensor, and a tensor that has the format already, is passed on."""

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        converted = in_format(leaf, choice)
        if converted is leaf or not leaf.is_leaf:
            return converted
        return with_dynamo_marks(converted.detach().requires_grad_(leaf.requires_grad), leaf)

    converted_inputs: T = pytree.tree_map(convert, inputs)
    return converted_inputs


def same_preparation_key(prepared: PreparedModel, configuration: Configuration) -> Hashable:
    """What is in effect for a prepared model: configurations with equal keys are the same without compiling either."""
    options: dict[str, object] = {}
    if configuration.backend == "inductor":
        options = {
            "layout_optimization": inductor_config().layout_optimization,
            "force_layout_optimization": inductor_config().force_layout_optimization,
            "freezing": inductor_config().freezing,
            **effective_options(configuration),
            **global_options(configuration),
        }
    chosen = tuple(sorted((name, repr(value)) for name, value in options.items()))
    cures = tuple((cure.name, cure.modules) for cure in configuration.cures)
    return (configuration.backend, chosen, formats_in_effect(prepared), cures, tuple(prepared.switches.items()))


def options_beside_code(configuration: Configuration) -> Hashable:
    """
    Inductor's options in effect that its generated code does not show, as CUDA graphs.

    Equal code under other such options is not the same trial.
    """
    if configuration.backend != "inductor":
        return ()
    options = {"triton.cudagraphs": inductor_config().triton.cudagraphs, **effective_options(configuration)}
    return tuple(sorted((name, repr(value)) for name, value in options.items() if "cudagraph" in name))


def formats_in_effect(prepared: PreparedModel) -> Hashable:
    """Strides of weights, buffers and inputs: equal code on other layouts is not the same trial."""
    module = prepared.module
    weights = [*module.parameters(), *module.buffers()] if module is not None else []
    inputs = input_tensors(prepared.args, prepared.kwargs)
    return tuple(map(_strides, weights)), tuple(map(_strides, inputs))


def _strides(tensor: torch.Tensor) -> tuple[int, ...] | None:
    return tuple(tensor.stride()) if tensor.layout == torch.strided else None


class ReadyModel:
    """
    A model prepared as a configuration says: converts its inputs, then calls the (compiled) copy.

    Attributes:
        module: The copy that owns the parameters; None for a function without any. Train or save this one.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        module: nn.Module | None,
        compiled: Callable[..., Any],
        configuration: Configuration,
    ) -> None:
        self.module = module
        self.configuration = configuration
        self._run = run
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the copy on the inputs in the configuration's memory format."""
        args, kwargs = apply_input_format((args, kwargs), self.configuration.input_format or "preserve")
        settings = global_options(self.configuration)
        with switched(self.configuration.library_switches):
            if not settings:
                return self._compiled(*args, **kwargs)
            # Dynamo looks at the global setting whenever it compiles, also for a later input of another shape.
            with inductor_config().patch(settings), _no_grad_if(needed=bool(settings.get("freezing"))):
                return self._compiled(*args, **kwargs)

    def __repr__(self) -> str:
        name = type(self.module).__name__ if self.module is not None else getattr(self._run, "__name__", "function")
        return f"<{name} as configuration {self.configuration.name!r}>"


def compile_for(model: Callable[..., Any], configuration: Configuration) -> ReadyModel:
    """
    A model prepared the way a configuration's trial ran it, ready to call.

    Args:
        model: A module or function; it is copied, and not changed. The copy keeps its training mode; one whose weights
            are frozen is in eval mode, as the trial ran it.

    Raises:
        UsageError: The configuration names no way to run (a recorded trace).
        SubjectError: The model cannot be copied.
    """
    if configuration.backend == "recorded":
        raise UsageError(
            f"cannot compile for {configuration.name!r}: it is a recorded trace; choose a measured configuration"
        )
    copied = copy_model(unwrap(model)[0])
    if copied.module is not None:
        if configuration.freezes:
            copied.set_mode("inference")
        apply_model_format(copied.module, configuration.model_format or "preserve")
        apply_cures(copied.module, configuration)
    elif configuration.cures:
        raise UsageError(f"cannot apply {configuration.name!r} to a function: its cures change a module")
    compiled = copied.run
    if configuration.backend == "inductor":
        compiled = torch.compile(copied.run, options=effective_options(configuration) or None)
    return ReadyModel(copied.run, copied.module, compiled, configuration)


def _no_grad_if(*, needed: bool) -> contextlib.AbstractContextManager[Any]:
    return torch.no_grad() if needed else contextlib.nullcontext()
