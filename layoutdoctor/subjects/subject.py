"""Makes the subject of a diagnosis, which is a model with example inputs, and describes the subject in a record."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.capture.compat import compile_arguments_of
from layoutdoctor.diagnosis import InputTensor, Subject
from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.examination.advice.applying import ModelCall
from layoutdoctor.measure.environment import notes_on_gpu
from layoutdoctor.measure.timing import kind_of
from layoutdoctor.subjects.copies import (
    check_has_data,
    copy_inputs,
    device_of_model,
    input_tensors,
    layout_of_tensor,
    outermost_modules,
    symbolic_dimensions,
)
from layoutdoctor.subjects.recorded_inputs import RecordedInputs, as_called, convolution_module_count
from layoutdoctor.words import listing, shape_words

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Mode

_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True)
class LoadedSubject:
    """
    A model and the arguments that it is called with.

    Attributes:
        model: A module or any other callable, never a compiled one.
        notes: Facts for the report, such as which wrapper was removed.
        source: Path of the user's file; None if the model does not come from a file.
        compile_arguments: Arguments of the ``torch.compile`` that was removed; empty if the model was not compiled.
    """

    name: str
    model: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    notes: tuple[str, ...] = ()
    source: str | None = None
    compile_arguments: Mapping[str, Any] = field(default_factory=dict)


def subject_from_python(model: Callable[..., Any], example_input: Any, *, name: str | None = None) -> LoadedSubject:
    """
    Makes the subject of ``diagnose(model, example_input)``; raises errors of ``unwrap`` and ``split_example_input``.

    Args:
        model: A module, function, bound method or partial. The wrappers of torch.compile and of data parallelism are
            removed, with a note.
        example_input: A tensor for one positional argument, a tuple or list for several, a dict for keyword arguments,
            or a call recorded by ``record_inputs``.
    """
    inner, notes, compiled = unwrap(model)
    name = name or callable_name(inner)
    if isinstance(example_input, RecordedInputs):
        called, more = as_called(inner, example_input)
        args, kwargs = example_input.args, example_input.kwargs
        return LoadedSubject(name, called, args, kwargs, (*notes, *more), compile_arguments=compiled)
    args, kwargs = split_example_input(example_input)
    return LoadedSubject(name, inner, args, kwargs, notes, compile_arguments=compiled)


def unwrap(model: Any) -> tuple[Callable[..., Any], tuple[str, ...], Mapping[str, Any]]:
    """
    Removes the wrappers that torch.compile, data parallelism and torch.export put around a model.

    Returns:
        The model, a note for every removed wrapper, and the arguments of the outermost torch.compile, if any.

    Raises:
        UsageError: The model is a class, or cannot be called.
        SubjectError: The model is TorchScript, which cannot be compiled again.
    """
    notes: list[str] = []
    compiled: Mapping[str, Any] = {}
    while (found := _inside(model)) is not None:
        compiled = compiled or compile_arguments_of(model)
        model, note = found
        notes.append(note)
    own_call = getattr(model, "_compiled_call_impl", None)
    if own_call is not None:
        compiled = compiled or compile_arguments_of(own_call)
        notes.append("model.compile() had been called: the copies that are diagnosed are compiled again")
    _check_callable(model)
    return model, tuple(notes), compiled


def _inside(model: Any) -> tuple[Any, str] | None:
    """Returns the model inside a wrapper, with a note; None if the model is no wrapper."""
    if isinstance(model, _WRAPPERS):
        wrapper = type(model).__name__
        return model.module, f"the model was wrapped in {wrapper}: the module inside was diagnosed, on one device"
    if isinstance(model, torch.export.ExportedProgram):
        return model.module(), "the model was an exported program: its module was diagnosed, in the mode of its export"
    # torch.compile keeps the original under these two names (torch/_dynamo/eval_frame.py, torch 2.7 to 2.13).
    if isinstance(model, nn.Module):
        inner = dict(model.named_children()).get("_orig_mod")
    else:
        inner = getattr(model, "_torchdynamo_orig_callable", None)
    note = "the model was compiled already: its original was diagnosed, and compiled as each configuration says"
    return None if inner is None else (inner, note)


def _check_callable(model: Any) -> None:
    if isinstance(model, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        raise SubjectError(
            f"cannot diagnose {callable_name(model)}: it is TorchScript, expected a plain nn.Module or function; "
            "give the model from before torch.jit.script or torch.jit.trace"
        )
    if isinstance(model, type):
        raise UsageError(f"cannot diagnose the class {model.__name__}: expected an instance; call it first")
    if not callable(model):
        raise UsageError(f"cannot diagnose a {type(model).__name__}: expected an nn.Module or another callable")


def callable_name(model: Any) -> str:
    """Returns a short name: the class of a module, or the name of a function."""
    if isinstance(model, functools.partial):
        return callable_name(model.func)
    if isinstance(model, nn.Module):
        return str(getattr(model, "original_name", type(model).__name__))
    return str(getattr(model, "__name__", type(model).__name__))


def split_example_input(example_input: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Splits an example input into positional and keyword arguments.

    Raises:
        UsageError: The input is no tensor, tuple, list or dict, or a key of the dict is no string.
    """
    if isinstance(example_input, torch.Tensor):
        return (example_input,), {}
    if isinstance(example_input, Mapping):
        wrong = [key for key in example_input if not isinstance(key, str)]
        if wrong:
            raise UsageError(f"cannot use {wrong[0]!r} as a keyword of the example input: expected the argument's name")
        return (), dict(example_input)
    if isinstance(example_input, (tuple, list)):
        return tuple(example_input), {}
    raise UsageError(
        f"cannot use a {type(example_input).__name__} as example input: expected a tensor, a tuple of positional "
        "arguments, or a dict of keyword arguments; torch.as_tensor makes a tensor of an array"
    )


def describe_subject(subject: LoadedSubject, mode: Mode) -> Subject:
    """
    Makes the record of a subject.

    Raises:
        SubjectError: A parameter or input holds no data, all input tensors are empty, or tensors are on several GPUs.
    """
    parts = outermost_modules(subject.model)
    for part in parts:
        check_has_data(part)
    module = owned_module(subject)
    device = device_of(subject)
    parameters = list(module.parameters())
    tensors = input_tensors(subject.args, subject.kwargs)
    if tensors and not any(tensor.numel() for tensor in tensors):
        shapes = listing(shape_words(tensor.shape) for tensor in tensors)
        raise SubjectError(
            f"cannot diagnose {subject.name}: its inputs have no element ({shapes}), so nothing is computed; "
            "give a batch of one or more"
        )
    if any(tensor.is_meta for tensor in tensors):
        raise SubjectError(
            f"cannot run {subject.name}: an example input is on the meta device, which holds no data; "
            "make it on cpu or cuda, or give --input"
        )
    return Subject(
        name=subject.name,
        mode=mode,
        device=kind_of(device),
        inputs=_describe_inputs(subject),
        model=type(subject.model).__name__ if isinstance(subject.model, nn.Module) else None,
        parameter_count=sum(parameter.numel() for parameter in parameters) if parts else None,
        convolution_module_count=convolution_module_count(module) if parts else None,
        parameter_formats=_count_formats(parameters),
        notes=(*subject.notes, *notes_on_gpu(device)),
    )


INPUT_GRADIENTS_NOTE = "no parameter requires a gradient: training takes the gradients of the floating-point inputs"


def with_something_to_train(subject: LoadedSubject) -> LoadedSubject:
    """
    Makes training possible if nothing requires a gradient: the floating-point and complex inputs then require one.

    The returned subject has copies of these inputs. A subject that already has something to train is returned itself.
    """
    tensors = input_tensors(subject.args, subject.kwargs)
    if any(tensor.requires_grad for tensor in [*owned_module(subject).parameters(), *tensors]):
        return subject

    def require(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        return leaf.requires_grad_(True) if floating else leaf

    args, kwargs = pytree.tree_map(require, copy_inputs(subject.args, subject.kwargs))
    return dataclasses.replace(subject, args=args, kwargs=kwargs, notes=(*subject.notes, INPUT_GRADIENTS_NOTE))


def owned_module(subject: LoadedSubject) -> nn.Module:
    """Returns the model if it is a module; for a function, an nn.ModuleList of the modules that it uses, if any."""
    return subject.model if isinstance(subject.model, nn.Module) else nn.ModuleList(outermost_modules(subject.model))


def device_of(subject: LoadedSubject) -> str:
    """Returns the device of the model and its inputs; raises as ``device_of_model`` does."""
    return device_of_model(owned_module(subject), subject.args, subject.kwargs, subject.name)


def set_mode(module: nn.Module, mode: Mode) -> tuple[str, ...]:
    """Puts a module in train mode for ``training``, else in eval mode; returns a note if this fails."""
    try:
        module.train(mode == "training")
    except NotImplementedError:
        return ("the model cannot change between train and eval mode: it runs in the mode of its export",)
    return ()


def call_of(subject: LoadedSubject) -> ModelCall:
    """Describes the call of a model, with its parameter names, for code that a user can paste."""
    has_modes = "eval" not in getattr(subject.model, "__dict__", {})  # the ``eval`` of an exported module raises
    ranks: dict[str, int] = {}
    unassignable: list[str] = []
    places: list[int] = []
    count = 0

    def word(name: str, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float)):
            return repr(value)
        nonlocal count
        for path, leaf in pytree.tree_leaves_with_path(value):
            if isinstance(leaf, torch.Tensor):
                count += 1
                if not path or isinstance(value, (dict, list)):
                    ranks[f"{name}{pytree.keystr(path)}"] = leaf.dim()
                    places.append(count - 1)
                elif leaf.dim() in CHANNELS_LAST_BY_RANK and name not in unassignable:
                    unassignable.append(name)
        return name

    words = [word(name, value) for name, value in zip(_positional_names(subject), subject.args, strict=True)]
    words += [f"{name}={word(name, value)}" for name, value in subject.kwargs.items()]
    return ModelCall(
        f"model({', '.join(words)})",
        ranks,
        tuple(unassignable),
        has_modes,
        tuple(places) if len(places) < count else (),
    )


def _positional_names(subject: LoadedSubject) -> list[str]:
    """Names the positional arguments by the model's signature, else ``x``, or ``x1``, ``x2`` and so on."""
    called = subject.model.forward if isinstance(subject.model, nn.Module) else subject.model
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):  # written in C
        parameters = []
    known = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    count = len(subject.args)
    if count == 1:
        return ["x" if not known or hasattr(builtins, known[0]) else known[0]]  # torch's own modules use ``input``
    return [*known, *(f"x{number + 1}" for number in range(len(known), count))][:count]


def _describe_inputs(subject: LoadedSubject) -> tuple[InputTensor, ...]:
    described: list[InputTensor] = []
    names = _positional_names(subject)
    symbolic = symbolic_dimensions(subject.model, input_tensors(subject.args, subject.kwargs))
    for path, leaf in pytree.tree_leaves_with_path((subject.args, subject.kwargs)):
        if isinstance(leaf, torch.Tensor):
            layout = layout_of_tensor(leaf)
            described.append(
                InputTensor(
                    shape=layout.shape,
                    stride=layout.stride,
                    dtype=str(leaf.dtype).removeprefix("torch."),
                    memory_formats=layout.memory_formats,
                    name=_input_name(path, names),
                    symbolic=symbolic[len(described)],
                )
            )
    return tuple(described)


def _input_name(path: tuple[Any, ...], names: list[str]) -> str:
    """Names an input tensor by its argument, and by its key inside the argument: ``"batch['image']"``."""
    is_keyword, first, rest = path[0].idx == 1, path[1], path[2:]
    return f"{first.key if is_keyword else names[first.idx]}{pytree.keystr(rest)}"


def _count_formats(parameters: list[nn.Parameter]) -> dict[str, int]:
    """Counts 4-D and 5-D parameters by memory format. A 1x1 weight fits several: the most frequent format counts."""
    every = [
        layout_of_tensor(parameter).memory_formats
        for parameter in parameters
        if parameter.dim() in CHANNELS_LAST_BY_RANK
    ]
    sure = Counter(formats[0] for formats in every if len(formats) == 1)
    either = [formats for formats in every if len(formats) > 1]
    return dict(
        sure + Counter(max(formats, key=lambda one: (sure[one], one == "contiguous_format")) for formats in either)
    )
