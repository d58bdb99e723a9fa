"""Copies of a model and of its inputs, so that nothing of the caller's is changed, and what the tensors in them are."""

from __future__ import annotations

import copy
import types
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils import _pytree as pytree

from layoutdoctor.diagnosis.layout import Layout, strided_layout
from layoutdoctor.errors import SubjectError, first_line
from layoutdoctor.subjects.reach import UNCHANGEABLE, Reach, global_names, is_filled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from layoutdoctor.diagnosis.records import FormatChoice, Mode

    Weights = Callable[[torch.Tensor], torch.Tensor | None]

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


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
        SubjectError: An object with tensors in it cannot be copied.
    """
    copied: dict[int, Any] = {}

    def copy_leaf(leaf: Any) -> Any:
        if isinstance(leaf, UNCHANGEABLE):
            return leaf
        if id(leaf) not in copied:
            copied[id(leaf)] = clone_tensor(leaf) if isinstance(leaf, torch.Tensor) else _deep_copy_or_same(leaf)
        return copied[id(leaf)]

    new_args, new_kwargs = pytree.tree_map(copy_leaf, (tuple(args), dict(kwargs)))
    return new_args, new_kwargs


def _deep_copy_or_same(leaf: Any) -> Any:
    reach = Reach(leaf)
    if not reach.carriers():
        try:
            return copy.deepcopy(leaf)
        except Exception:
            return leaf
    return _deep_copy(leaf, _Memo(reach, {}))


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same; NaN equals NaN. True for types that cannot be compared."""
    if not _is_plain(one) or not _is_plain(other):
        return True
    if one.shape != other.shape or one.dtype != other.dtype or one.device != other.device:
        return False
    with torch.no_grad():
        return torch.equal(one, other) or bool(((one == other) | ((one != one) & (other != other))).all())


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_quantized


def input_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Every tensor among the arguments, in order."""
    return [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def device_of(
    module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "the model"
) -> str | None:
    """
    Where a model runs: on the GPU that a tensor of its is on, such as ``cuda:1``, else where its first tensor is.

    Args:
        module: The module that owns the parameters; None for a function without any.

    Returns:
        None without any tensor.

    Raises:
        SubjectError: Tensors are on several GPUs.
    """
    found = [*module.named_parameters(), *module.named_buffers()] if module is not None else []
    named = [(repr(key), tensor) for key, tensor in found]
    named += [("an input", tensor) for tensor in input_tensors(args, kwargs)]
    gpus: dict[str, str] = {}
    for what, tensor in named:
        if tensor.device.type == "cuda":
            gpus.setdefault(str(tensor.device), what)
    if len(gpus) > 1:
        places = ", ".join(f"{what} on {device}" for device, what in gpus.items())
        raise SubjectError(
            f"cannot diagnose {name}: its tensors are on {len(gpus)} GPUs ({places}), expected one; "
            f"move model and inputs to one (--device {next(iter(gpus))}), or diagnose a part of it (--module PATH)"
        )
    return next(iter([*gpus, *(tensor.device.type for _, tensor in named)]), None)


def copy_model(model: Callable[..., Any], weights: Weights | None = None) -> CopiedModel:
    """
    A copy of a module or of any other callable; no gradient is carried over, strides and tied weights stay.

    Args:
        model: What the caller gave; a function's copy is bound to copies of the modules and tensors that it reads, be
            it from a collection or by way of other functions.
        weights: Asked for each parameter and buffer, and for a function's tensors: what to take in its place, such as
            the same parameter in another dtype; None if it is to be copied like the rest.

    Raises:
        SubjectError: It is not initialised yet, or Python cannot copy it.
    """
    reach = Reach(model)
    modules = reach.outermost_modules()
    for module in modules:
        check_has_data(module)
    if not reach.carriers():
        return CopiedModel(model, None)
    tensors = {id(tensor): tensor for module in modules for tensor in own_tensors(module)}
    if not isinstance(model, nn.Module):
        tensors.update((id(tensor), tensor) for tensor in reach.tensors())
    given = {key: taken for key, tensor in tensors.items() if weights and (taken := weights(tensor)) is not None}
    memo = _Memo(reach, given)
    copied = _deep_copy(model, memo)
    for module in modules:
        ours = copied if module is model else memo.get(id(module))
        if ours is not None:
            _finish(ours, module, given)
    for key, tensor in reach.values.items():
        if isinstance(tensor, torch.Tensor) and memo.get(key) is not None:
            _finish_tensor(memo[key], tensor, given.get(key))
    if isinstance(model, nn.Module):
        return CopiedModel(copied, copied)
    copies = [memo[id(module)] for module in modules if id(module) in memo]
    return CopiedModel(copied, nn.ModuleList(copies) if copies else None)


def copy_module(module: nn.Module) -> nn.Module:
    """The same for a module."""
    copied: nn.Module = copy_model(module).run
    return copied


def _deep_copy(original: Any, memo: _Memo) -> Any:
    try:
        copied = copy.deepcopy(original, memo)
        memo.fill()
    except Exception as error:
        raise SubjectError(
            f"cannot copy {_name_of(original)}, and layoutdoctor never works on the original: {first_line(error)}; "
            "give it a __deepcopy__, or diagnose a function that builds it (model.py:build)"
        ) from error
    return copied


def _name_of(value: Any) -> str:
    return str(getattr(value, "__name__", type(value).__name__))


def _finish(copied: nn.Module, original: nn.Module, given: Mapping[int, torch.Tensor]) -> None:
    pairs = list(zip(own_tensors(copied), own_tensors(original), strict=False))
    if len(pairs) != len(own_tensors(copied)) or len(pairs) != len(own_tensors(original)):
        raise SubjectError(
            f"cannot copy {_name_of(original)}: its copy has {len(own_tensors(copied))} parameters and buffers, "
            f"expected {len(own_tensors(original))}; make __deepcopy__ return a real copy"
        )
    for ours, theirs in pairs:
        if ours is theirs and given.get(id(theirs)) is not theirs:
            raise SubjectError(
                f"cannot copy {_name_of(original)}: its copy holds the parameters of the original; make __deepcopy__ "
                "return a real copy"
            )
        _finish_tensor(ours, theirs, given.get(id(theirs)))


def _finish_tensor(ours: torch.Tensor, theirs: torch.Tensor, taken: torch.Tensor | None) -> None:
    if ours is theirs:
        return
    if ours.is_leaf:
        ours.grad = None
    if taken is not None:
        if ours is not taken:  # its own __deepcopy__ takes no memo
            ours.data = taken.detach()
    elif ours.layout == torch.strided and theirs.layout == torch.strided and ours.stride() != theirs.stride():
        ours.data = clone_tensor(theirs).detach()  # deepcopy makes a parameter with gaps dense


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


class _Memo(dict[int, Any]):
    """
    Deepcopy's memo, which knows copies of what deepcopy passes on, or refuses.

    A function that reaches a tensor or a module becomes one with the same code, bound to copies; it is made when it is
    first asked for, and bound by ``fill``. A weak reference becomes one to the copy. A result of autograd kept as an
    attribute, as weight_norm does, becomes a constant.
    """

    def __init__(self, reach: Reach, given: Mapping[int, torch.Tensor]) -> None:
        super().__init__({id(one): clone_tensor(one).detach() for one in reach.tensors() if not one.is_leaf})
        self.update(given)
        self._reach = reach  # keeps what is copied alive: no identity is used again
        self._carriers = reach.carriers()
        self._made: list[tuple[types.FunctionType, types.FunctionType]] = []

    def get(self, key: int, default: Any = None) -> Any:
        """The copy of what has this identity."""
        original = self._reach.values.get(key)
        if key not in self and key in self._carriers:
            if isinstance(original, types.FunctionType):
                self[key] = self._copy_of(original)
            elif type(original) is weakref.ref:
                self[key] = weakref.ref(copy.deepcopy(original(), self))
        return super().get(key, default)

    def _copy_of(self, function: types.FunctionType) -> types.FunctionType:
        cells = function.__closure__ or ()
        names = global_names(function.__code__) & function.__globals__.keys()
        scope = function.__globals__
        if any(id(scope[name]) in self._carriers for name in names):
            # Without a name: dynamo looks globals up in the module of that name, where the caller's own are.
            scope = {name: value for name, value in scope.items() if name != "__name__"}
        closure = tuple(types.CellType() if self._is_carried(cell) else cell for cell in cells)
        copied = types.FunctionType(function.__code__, scope, function.__name__, None, closure or None)
        for name in ("__module__", "__qualname__", "__doc__", "__annotations__", "__type_params__"):
            if hasattr(function, name):
                setattr(copied, name, getattr(function, name))
        self._made.append((function, copied))
        return copied

    def _is_carried(self, cell: types.CellType) -> bool:
        return is_filled(cell) and id(cell.cell_contents) in self._carriers

    def fill(self) -> None:
        """Binds every function that was made to copies; each may lead to further ones."""
        for function, copied in self._made:  # it grows meanwhile
            for ours, theirs in zip(copied.__closure__ or (), function.__closure__ or (), strict=True):
                if ours is not theirs:
                    ours.cell_contents = copy.deepcopy(theirs.cell_contents, self)
            if copied.__globals__ is not function.__globals__:
                for name in global_names(function.__code__) & copied.__globals__.keys():
                    if id(copied.__globals__[name]) in self._carriers:
                        copied.__globals__[name] = copy.deepcopy(function.__globals__[name], self)
            copied.__defaults__ = self._copied(function.__defaults__)
            copied.__kwdefaults__ = self._copied(function.__kwdefaults__)
            copied.__dict__.update({name: self._copied(value) for name, value in vars(function).items()})

    def _copied(self, value: Any) -> Any:
        return copy.deepcopy(value, self) if id(value) in self._carriers else value
