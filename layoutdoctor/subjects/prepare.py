"""A configuration applied to copies of the model and its inputs; the caller's own are left alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import inductor_config
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.examination.applying import effective_options, global_options
from layoutdoctor.measure.memory import Need, why_too_little
from layoutdoctor.state.switches import switched
from layoutdoctor.subjects.copies import (
    CHANNELS_LAST,
    copy_model,
    in_format,
    input_tensors,
    with_dynamo_marks,
)
from layoutdoctor.subjects.cures import apply_cures
from layoutdoctor.subjects.step import Step
from layoutdoctor.subjects.subject import unwrap
from layoutdoctor.subjects.weights import SharedTensors, byte_count

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from torch import nn

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
    loss_weights: dict[Hashable, torch.Tensor] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)

    def step(self, mode: Mode, *, fresh_inputs: bool) -> Step:
        """One iteration of it."""
        return Step(
            self.run,
            self.module,
            self.args,
            self.kwargs,
            mode,
            fresh_inputs,
            loss_weights=self.loss_weights,
            switches=self.switches,
        )


def prepare(
    subject: LoadedSubject,
    configuration: Configuration,
    mode: Mode,
    shared: SharedTensors | None = None,
    *,
    is_alone: bool = False,
) -> PreparedModel:
    """
    Copies a subject, gives the copies the configuration's memory formats, and applies its cures.

    Args:
        shared: What it may share with other configurations; None copies everything.
        is_alone: Whether nobody else is there to use the subject: weights and inputs are taken as they are. What a
            process frees decides how its allocator serves it from then on, and a user's process frees no copies.

    Raises:
        SubjectError: The model cannot be copied, or the copy does not fit into the memory.
    """
    model_format, input_format = configuration.model_format or "preserve", configuration.input_format or "preserve"
    if shared is None:
        copied = copy_model(subject.model, _as_it_is if is_alone else None)
    else:
        _check_fits(shared, configuration)
        with shared.all_or_nothing():
            copied = copy_model(subject.model, shared.weights(model_format))
    notes = [*copied.set_mode(mode)]
    if copied.module is not None:
        converted = apply_model_format(copied.module, model_format)
        converted += 0 if shared is None else shared.converted_count(model_format)
        if configuration.model_format == "channels_last" and not converted:
            notes.append(_why_nothing_changed(copied.module))
        apply_cures(copied.module, configuration)
    elif configuration.model_format not in (None, "preserve"):
        notes.append(f"{configuration.model_format} was given to the inputs only: the function uses no module")
    shared = SharedTensors(changes_inputs=True) if shared is None else shared
    inputs = (subject.args, subject.kwargs)
    if is_alone:
        args, kwargs = apply_input_format(inputs, input_format)
    else:
        args, kwargs = shared.inputs(*inputs, input_format, lambda given: apply_input_format(given, input_format))
    switches = dict(configuration.library_switches)
    return PreparedModel(copied.run, copied.module, args, kwargs, tuple(notes), shared.loss_weights, switches)


def _as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _check_fits(shared: SharedTensors, configuration: Configuration) -> None:
    need = shared.need(configuration.model_format or "preserve")
    if configuration.freezes:
        need = Need((*need.parts, ("constants of frozen weights", byte_count(shared.originals))))
    is_more = need.parts[0][1] or configuration.freezes
    problem = why_too_little(need, shared.device) if is_more else None
    if problem is not None:
        raise SubjectError(
            f"cannot run {configuration.name}: it needs {problem}; diagnose it alone "
            f"(--configurations {configuration.name}), with a smaller input, or on a machine with more memory"
        )


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
