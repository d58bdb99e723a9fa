"""Copies of a model and of its inputs, so that nothing of the caller's is changed, and what the tensors in them are."""

from __future__ import annotations

import contextlib
import copy
import functools
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.errors import SubjectError, first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutdoctor.diagnosis.records import FormatChoice, Mode

    Weights = Callable[[torch.Tensor], torch.Tensor | None]

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

_UNCHANGEABLE = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class CopiedModel(NamedTuple):
    """
    A copy of what the caller gave.

    Attributes:
        run: What to call: the copied module, or a function bound to copies of the modules and tensors it uses.
        module: The module that owns the copied parameters; None where a function uses no module.
    """

    run: Callable[..., Any]
    module: nn.Module | None

    def set_mode(self, mode: Mode) -> tuple[str, ...]:
        """
        Puts the copy in train mode for ``training``, in eval mode for everything else.

        Returns:
            A note where the module cannot change its mode, as one from an exported program.
        """
        try:
            if self.module is not None:
                self.module.train(mode == "training")
        except NotImplementedError:
            return ("the model cannot change between train and eval mode: it runs in the one it was exported in",)
        return ()


def layout_of(tensor: torch.Tensor) -> Layout:
    """The layout of a tensor; one that is not strided (sparse, oneDNN's own) has no strides to tell."""
    if tensor.layout != torch.strided:
        return Layout(tuple(int(size) for size in tensor.shape), None, ())
    return strided_layout([int(size) for size in tensor.shape], [int(step) for step in tensor.stride()])


def clone_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf tensor with the same values and strides and its own storage, also where elements overlap or have gaps."""
    source = tensor.detach()
    if type(source) is torch.Tensor and source.layout == torch.strided and not source.is_quantized and source.numel():
        source = source.resolve_conj().resolve_neg()
        # The whole span is copied: an expanded (stride 0) or sliced input keeps its strides, unlike with clone().
        span = 1 + sum((size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True))
        flat = source.as_strided((span,), (1,), source.storage_offset()).clone()
        cloned = flat.as_strided(source.shape, source.stride())
    else:
        cloned = source.clone()
    return with_dynamo_marks(cloned.requires_grad_(tensor.requires_grad), tensor)


def in_format(tensor: torch.Tensor, choice: FormatChoice) -> torch.Tensor:
    """
    A tensor in a memory format, by its rank; the tensor itself where nothing has to change.

    Args:
        choice: ``channels_last`` means ``torch.channels_last`` for 4-D and ``torch.channels_last_3d`` for 5-D ones.
    """
    if choice == "preserve" or tensor.layout != torch.strided:
        return tensor
    # ``to``, not ``contiguous``: the latter leaves the strides of a 1x1 weight, which satisfies both formats, as they
    # are, and torch then counts it as contiguous where ``model.to(memory_format=...)`` makes it channels_last.
    if choice == "contiguous":
        return tensor.to(memory_format=torch.contiguous_format)
    if tensor.dim() in CHANNELS_LAST:
        return tensor.to(memory_format=CHANNELS_LAST[tensor.dim()])
    return tensor


def with_dynamo_marks(copied: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """
    A copy that carries what ``torch._dynamo.mark_dynamic`` and ``mark_static`` said of the original.

    Source:
        ``torch/_dynamo/decorators.py``: attributes ``_dynamo_dynamic_indices`` and the like; torch 2.7 to 2.13.
    """
    for name, value in vars(original).items():
        if name.startswith("_dynamo_"):
            setattr(copied, name, copy.copy(value))
    return copied


def copy_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Copies of positional and keyword arguments: tensors by ``clone_tensor``, one tensor given twice stays one tensor.

    Args:
        args: Positional arguments, nested as torch's pytree understands it.

    Raises:
        SubjectError: What copies an object leaves tensors in it that are the caller's.
    """
    copied: dict[int, Any] = {}

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, _UNCHANGEABLE):
            return leaf
        if id(leaf) not in copied:
            copied[id(leaf)] = clone_tensor(leaf) if isinstance(leaf, torch.Tensor) else _deep_copy_or_same(leaf)
        return copied[id(leaf)]

    new_args, new_kwargs = pytree.tree_map(copy_leaf, (tuple(args), dict(kwargs)))
    return new_args, new_kwargs


def _deep_copy_or_same(leaf: Any) -> Any:
    try:
        copied = copy.deepcopy(leaf)
    except Exception:
        return leaf
    _check_is_a_copy(leaf, copied)
    return copied


def input_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Every tensor among the arguments, in order."""
    return [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def copy_model(model: Callable[..., Any], weights: Weights | None = None) -> CopiedModel:
    """
    A copy of a module, function, bound method or partial; no gradient is carried over, strides and tied weights stay.

    Args:
        model: What the caller gave; a function's copy is bound to copies of the modules and tensors that it reads
            from its closure, its defaults and its globals.
        weights: As for ``copy_module``; asked for a function's tensors too.

    Raises:
        SubjectError: It cannot be copied.
    """
    if isinstance(model, nn.Module):
        copied = copy_module(model, weights)
        return CopiedModel(copied, copied)
    copier = _Copier({}, weights)
    run = copier.copy_callable(model)
    return CopiedModel(run, nn.ModuleList(copier.modules.values()) if copier.modules else None)


def copy_module(module: nn.Module, weights: Weights | None = None) -> nn.Module:
    """
    A deep copy of a module with the strides of the original and without its gradients.

    Args:
        weights: Asked for each parameter and buffer of the module: what to take in its place, such as a parameter that
            shares its memory with that of other copies; None where it is to be copied like the rest.

    Raises:
        SubjectError: It is not initialised yet, or holds something that Python cannot copy, or the copy shares memory
            with it: what would be done to the copy would be done to the caller's model.
    """
    check_has_data(module)
    given: dict[int, torch.Tensor] = {}
    for tensor in own_tensors(module) if weights is not None else ():
        taken = weights(tensor) if weights is not None else None
        if taken is not None:
            given[id(tensor)] = taken
    try:
        copied = copy.deepcopy(module, {**_non_leaf_tensors(module), **given})
    except Exception as error:
        raise SubjectError(
            f"cannot copy {type(module).__name__}, and layoutdoctor never works on the model itself: "
            f"{first_line(error)}; give it a __deepcopy__, or diagnose a function that builds it (model.py:build)"
        ) from error
    _check_is_a_copy(module, copied, given.values())
    for ours, theirs in zip(own_tensors(copied), own_tensors(module), strict=True):
        ours.grad = None
        taken = given.get(id(theirs))
        if taken is not None:
            if ours is not taken:  # its own __deepcopy__ takes no memo
                ours.data = taken.detach()
        elif ours.layout == torch.strided and ours.stride() != theirs.stride():
            ours.data = clone_tensor(theirs).detach()  # deepcopy makes a parameter with gaps dense
    return copied


def _check_is_a_copy(original: Any, copied: Any, given: Iterable[torch.Tensor] = ()) -> None:
    """
    Refuses a deep copy in which a tensor lies in memory of the original, or a module is the original's.

    Args:
        given: Tensors that the copy was told to take; they may lie where they like.
    """
    known: dict[int, Any] = {}  # keeps what was met alive: no identity is used again
    theirs = {_memory_of(part) for _, part in _held(original, "", known)}
    allowed = {id(tensor) for tensor in given}
    for path, part in _held(copied, "", {}):
        if id(part) not in allowed and _memory_of(part) in theirs:
            name = type(original).__name__
            raise SubjectError(
                f"cannot copy {name}, and layoutdoctor never works on the original: "
                f"{path.removeprefix('.') or name!r} of the copy is still the original's, expected memory of its own; "
                "make __deepcopy__ return a real copy"
            )


def _held(value: Any, path: str, met: dict[int, Any]) -> Iterator[tuple[str, torch.Tensor | nn.Module]]:
    """Tensors and modules in a value with the way to them, each once; a module after what it holds."""
    if id(value) in met:
        return
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, (nn.Module, dict, list, tuple)):
        parts = parts_of(value, path)
    elif isinstance(value, torch.Tensor):
        pass
    elif hasattr(type(value), "__deepcopy__"):
        parts = ((f"{path}.{name}", part) for name, part in getattr(value, "__dict__", {}).items())
    else:
        return
    met[id(value)] = value
    for name, part in parts:
        yield from _held(part, name, met)
    if isinstance(value, (torch.Tensor, nn.Module)):
        yield path, value


def parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What a module, mapping or collection holds, each with the way to it; nothing of anything else."""
    if isinstance(value, nn.Module):
        for name, attribute in vars(value).items():
            if name in ("_modules", "_parameters", "_buffers"):
                yield from ((f"{path}.{key}", part) for key, part in attribute.items())
            else:
                yield f"{path}.{name}", attribute
    elif isinstance(value, Mapping):
        named = ((repr(key) if isinstance(key, (str, int)) else "...", part) for key, part in value.items())
        yield from ((f"{path}[{key}]", part) for key, part in named)
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(value))


def _memory_of(part: torch.Tensor | nn.Module) -> object:
    """What two parts have in common that share memory; the object's identity where it has no memory to tell."""
    address = 0
    if isinstance(part, torch.Tensor):
        with contextlib.suppress(RuntimeError):  # sparse, oneDNN's own, or a tensor around others
            address = part.untyped_storage().data_ptr()
    return (part.device, address) if address else id(part)


def check_has_data(module: nn.Module) -> None:
    """
    Refuses a module that cannot run as it is.

    Raises:
        SubjectError: A parameter or buffer has no shape yet, or is on the meta device.
    """
    name = type(module).__name__
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise SubjectError(
                f"cannot copy {name}: its parameter {key!r} has no shape yet (a lazy module); "
                "call the model once on the example input before diagnosing it"
            )
        if tensor.is_meta:
            raise SubjectError(
                f"cannot diagnose {name}: its parameter {key!r} is on the meta device, which holds no data; "
                "build the model on cpu or cuda, or call model.to_empty(device='cpu') and load weights"
            )


def own_tensors(module: nn.Module) -> list[torch.Tensor]:
    """A module's parameters and buffers, each once."""
    return [*module.parameters(), *module.buffers()]


def _non_leaf_tensors(module: nn.Module) -> dict[int, Any]:
    """Deepcopy's memo, with the tensors it refuses: results of autograd kept as attributes, as weight_norm does."""
    memo: dict[int, Any] = {}
    for part in module.modules():
        for value in [*vars(part).values(), *part._buffers.values()]:
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = clone_tensor(value).detach()
    return memo


class _Copier(NamedTuple):
    """Copies what a callable reads; ``modules`` maps the id of each module met to its copy."""

    modules: dict[int, nn.Module]
    weights: Weights | None

    def copy_callable(self, function: Any) -> Any:
        """A callable bound to copies."""
        if isinstance(function, nn.Module):
            return self._copy_value(function)
        if isinstance(function, functools.partial):
            args = [self._copy_value(value) for value in function.args]
            keywords = {name: self._copy_value(value) for name, value in function.keywords.items()}
            return functools.partial(self.copy_callable(function.func), *args, **keywords)
        if isinstance(function, types.MethodType):
            owner = function.__self__
            return types.MethodType(function.__func__, self._copy_value(owner))
        if isinstance(function, types.FunctionType):
            return self._copy_function(function)
        return function

    def _copy_value(self, value: Any) -> Any:
        if isinstance(value, nn.Module):
            if id(value) not in self.modules:
                self.modules[id(value)] = copy_module(value, self.weights)
            return self.modules[id(value)]
        if type(value) is not torch.Tensor:
            return value
        taken = self.weights(value) if self.weights is not None else None
        return clone_tensor(value) if taken is None else taken

    def _copy_function(self, function: types.FunctionType) -> types.FunctionType:
        """The same code bound to copies of what it reads; the function itself where that is no module or tensor."""
        kinds = (nn.Module, torch.Tensor)
        cells = function.__closure__ or ()
        held = [cell.cell_contents if _is_filled(cell) else None for cell in cells]
        names = global_names(function.__code__) & function.__globals__.keys()
        used = {name: function.__globals__[name] for name in names}
        used = {name: value for name, value in used.items() if isinstance(value, kinds)}
        defaults = function.__defaults__ or ()
        if not used and not any(isinstance(value, kinds) for value in (*held, *defaults)):
            return function
        pairs = zip(cells, held, strict=True)
        closure = tuple(types.CellType(self._copy_value(v)) if isinstance(v, kinds) else cell for cell, v in pairs)
        copies = {name: self._copy_value(value) for name, value in used.items()}
        copied = types.FunctionType(
            function.__code__,
            {**function.__globals__, **copies} if copies else function.__globals__,
            function.__name__,
            tuple(self._copy_value(value) for value in defaults) or None,
            closure or None,
        )
        copied.__kwdefaults__ = function.__kwdefaults__
        return copied


def _is_filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def global_names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that code, and the code within it, asks for."""
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return set(code.co_names).union(*(global_names(part) for part in inner))
