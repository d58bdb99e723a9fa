"""
Copies models and inputs, finds their tensors, and walks over all objects that a Python value refers to.

From a function, the walk follows closure variables, defaults, and the globals that its code reads. It does not follow
attributes of classes and of Python modules.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import gc
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from layoutdoctor.diagnosis import Layout
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.errors import SubjectError, first_line

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import FormatChoice

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}

M = TypeVar("M")


def layout_of_tensor(tensor: torch.Tensor) -> Layout:
    """Returns the layout of a tensor; without strides if the tensor is sparse or in oneDNN's own layout."""
    if tensor.layout != torch.strided:
        return Layout(tuple(int(size) for size in tensor.shape), None, ())
    return strided_layout([int(size) for size in tensor.shape], [int(step) for step in tensor.stride()])


def clone_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Copies a tensor to a new leaf. A plain strided tensor keeps its strides, also if it is expanded or sliced."""
    source = tensor.detach()
    if type(source) is torch.Tensor and source.layout == torch.strided and not source.is_quantized and source.numel():
        source = source.resolve_conj().resolve_neg()
        # Copies the whole span of memory: unlike clone(), this keeps the strides of an expanded or sliced tensor.
        span = 1 + sum((size - 1) * step for size, step in zip(source.shape, source.stride(), strict=True))
        flat = source.as_strided((span,), (1,), source.storage_offset()).clone()
        cloned = flat.as_strided(source.shape, source.stride())
    else:
        cloned = source.clone()
    return with_dynamo_marks(cloned.requires_grad_(tensor.requires_grad), tensor)


def in_format(tensor: torch.Tensor, choice: FormatChoice | None) -> torch.Tensor:
    """
    Converts a tensor to a memory format; returns the tensor itself if nothing has to change.

    Args:
        choice: ``channels_last`` means ``torch.channels_last`` for a 4-D and ``torch.channels_last_3d`` for a 5-D
            tensor; None and ``preserve`` change nothing.
    """
    if choice in (None, "preserve") or tensor.layout != torch.strided:
        return tensor
    # ``to``, which ``model.to(memory_format=...)`` also uses. A 1x1 weight satisfies both formats, so that
    # ``contiguous(memory_format=...)`` would not change its strides, and torch would still take it as contiguous.
    if choice == "contiguous":
        return tensor.to(memory_format=torch.contiguous_format)
    if tensor.dim() in CHANNELS_LAST:
        return tensor.to(memory_format=CHANNELS_LAST[tensor.dim()])
    return tensor


def with_dynamo_marks(copied: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """
    Copies the marks of ``torch._dynamo.mark_dynamic`` and ``mark_static`` to a copied tensor, and returns the copy.

    Source:
        ``torch/_dynamo/decorators.py``: attributes ``_dynamo_dynamic_indices`` and the like, which count only if
        ``_has_dynamo_dim_marking`` is set; torch 2.7 to 2.13.
    """
    for name, value in vars(original).items():
        if name.startswith(_DYNAMO_MARKS):
            setattr(copied, name, copy.copy(value))
    return copied


_DYNAMO_MARKS = ("_dynamo_", "_has_dynamo_", "_specialize_on")


def mark_sizes(model: object, tensors: Sequence[torch.Tensor], *, dynamic: bool) -> None:
    """Marks symbolic sizes of inputs as dynamic for torch.compile, in place; ``dynamic=False`` removes all marks."""
    for tensor, dimensions in zip(tensors, symbolic_dimensions(model, tensors), strict=True):
        if dynamic and dimensions:
            torch._dynamo.mark_dynamic(tensor, list(dimensions))
        for name in () if dynamic else [name for name in vars(tensor) if name.startswith(_DYNAMO_MARKS)]:
            delattr(tensor, name)


def symbolic_dimensions(model: object, tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Finds the dimensions of each input whose size was exported as a symbol or marked as dynamic."""
    marked = ("_dynamo_dynamic_indices", "_dynamo_unbacked_indices", "_dynamo_weak_dynamic_indices")
    found = [{dimension for name in marked for dimension in getattr(tensor, name, ())} for tensor in tensors]
    nodes = model.graph.nodes if isinstance(model, fx.GraphModule) else ()
    values = [node.meta.get("val") for node in nodes if node.op == "placeholder"]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
    if len(shapes) == len(tensors):
        for shape, dimensions in zip(shapes, found, strict=True):
            dimensions.update(number for number, size in enumerate(shape) if not isinstance(size, int))
    return [tuple(sorted(dimensions)) for dimensions in found]


def copy_inputs(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, tensors_only: bool = False
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Copies positional and keyword arguments, which may be nested in torch's pytrees.

    Tensors are copied by ``clone_tensor``. A tensor that occurs twice is copied once. An object that Python cannot copy
    is not copied.

    Args:
        tensors_only: Whether only tensors are copied. Other objects stay the same, so that nothing is compiled again.
    """
    copied: dict[int, Any] = {}

    def copy_leaf(leaf: Any) -> Any:
        if id(leaf) not in copied:
            copied[id(leaf)] = leaf
            if isinstance(leaf, torch.Tensor):
                copied[id(leaf)] = clone_tensor(leaf)
            elif not tensors_only:
                with contextlib.suppress(Exception):
                    copied[id(leaf)] = copy.deepcopy(leaf)
        return copied[id(leaf)]

    new_args, new_kwargs = pytree.tree_map(copy_leaf, (tuple(args), dict(kwargs)))
    return new_args, new_kwargs


def input_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Lists the tensors in the arguments, in order."""
    return [leaf for leaf in pytree.tree_leaves((tuple(args), dict(kwargs))) if isinstance(leaf, torch.Tensor)]


def device_of_model(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], name: str = "the model") -> str:
    """
    Returns the GPU of the model and its inputs, such as ``cuda:1``.

    If no tensor is on a GPU, this is the device type of the first tensor; without any tensor, ``cpu``.

    Raises:
        SubjectError: Tensors are on several GPUs.
    """
    named = [(repr(key), tensor) for key, tensor in (*module.named_parameters(), *module.named_buffers())]
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
    return next(iter([*gpus, *(tensor.device.type for _, tensor in named)]), "cpu")


def copy_model(model: M) -> M:
    """
    Makes a deep copy of a module, a bound method or a callable object; a function is returned itself.

    An attribute that is a result of autograd, such as the weight of weight_norm, becomes a constant in the copy. The
    parameters of a copied module have no gradients.

    Raises:
        SubjectError: Python cannot copy the model, or the copy is wrong: it requires other gradients or uses the model.
    """
    kept = (value for _, value in reached(model) if isinstance(value, torch.Tensor) and not value.is_leaf)
    name = getattr(model, "__name__", type(model).__name__)
    try:
        copied = copy.deepcopy(model, {id(tensor): clone_tensor(tensor).detach() for tensor in kept})
    except Exception as error:
        raise SubjectError(f"cannot copy {name}: {first_line(error)}; give it a __deepcopy__") from error
    if _trained(copied) != _trained(model):  # possible with a subclass of torch.Tensor
        raise SubjectError(f"cannot copy {name}: the copy of a parameter requires no gradient; give it a __deepcopy__")
    originals = {id(one) for one in model.modules()} if isinstance(model, nn.Module) else set()
    if any(id(value) in originals for _, value in reached(copied)):  # such as a forward that closes over its module
        raise SubjectError(f"cannot copy {name}: a function in its copy uses the original; give it a __deepcopy__")
    for parameter in copied.parameters() if isinstance(copied, nn.Module) else ():
        parameter.grad = None
    return copied


def _trained(model: object) -> list[bool]:
    return [one.requires_grad for one in model.parameters()] if isinstance(model, nn.Module) else []


def check_has_data(module: nn.Module) -> None:
    """
    Refuses a module with tensors that hold no data.

    Raises:
        SubjectError: A parameter or buffer has no shape yet, or is on the meta device.
    """
    name = type(module).__name__
    for key, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if nn.parameter.is_lazy(tensor):
            raise SubjectError(
                f"cannot diagnose {name}: its tensor {key!r} has no shape yet (a lazy module); "
                "call the model once on the example input before diagnosing it"
            )
        if tensor.is_meta:
            raise SubjectError(
                f"cannot diagnose {name}: its tensor {key!r} is on the meta device, which holds no data; "
                "build the model on cpu or cuda, or call model.to_empty(device='cpu') and load weights"
            )


_LEAVES = (
    *(bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, torch.Tensor),
    *(types.ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.GeneratorType),
    *(type, property, fx.Graph, fx.Node, torch.Generator),
)
_LIBRARIES = frozenset({"torch", "numpy", "layoutdoctor", *sys.stdlib_module_names} - {"__main__"})


def reached(value: Any, path: str = "", *, enters_modules: bool = True) -> Iterator[tuple[str, Any]]:
    """
    Yields a value and all objects that it refers to, each once with its path, such as ``model.blocks[0]``.

    Args:
        enters_modules: Whether the objects inside an nn.Module are yielded, and not only the module itself.
    """
    seen: dict[int, Any] = {}  # keeps each object alive, so that no ``id`` is used twice
    waiting = [(path, value)]
    while waiting:
        place, met = waiting.pop()
        if id(met) in seen:
            continue
        seen[id(met)] = met
        yield place, met
        if not isinstance(met, _LEAVES) and (enters_modules or not isinstance(met, nn.Module)):
            waiting.extend(reversed(list(_parts_of(met, place))))


def outermost_modules(model: Any) -> list[nn.Module]:
    """Lists the modules that a callable uses, without submodules; only the callable itself if it is a module."""
    return [part for _, part in reached(model, enters_modules=False) if isinstance(part, nn.Module)]


def _parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, types.MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, dict):
        for key, part in list(value.items()):
            yield f"{path}[{repr(key) if isinstance(key, (str, int)) else '...'}]", part
    elif isinstance(value, (tuple, list, set, frozenset)):
        yield from ((f"{path}[{number}]", part) for number, part in enumerate(list(value)))
    elif not hasattr(value, "__dict__"):
        yield from ((path, part) for part in gc.get_referents(value))  # such as a deque, or an object with slots
    for name, attribute in list(getattr(value, "__dict__", {}).items()):
        if isinstance(value, nn.Module) and name in ("_modules", "_parameters", "_buffers"):
            yield from ((f"{path}.{key}", part) for key, part in list(attribute.items()))
        else:
            yield f"{path}.{name}", attribute


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    own_name = function.__qualname__.rpartition("<locals>.")[2]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # a variable that has no value yet
            yield f"variable {name} of {own_name}", cell.cell_contents
    if str(function.__module__).partition(".")[0] not in _LIBRARIES:  # a library's globals hold nothing of the user's
        for name in sorted(_global_names(function.__code__) & function.__globals__.keys()):
            yield f"global {name} of {own_name}", function.__globals__[name]
    yield f"a default of {own_name}", function.__defaults__
    yield f"a default of {own_name}", function.__kwdefaults__


@cache
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Returns the names of the globals that a code object, or one nested in it, reads."""
    names = {str(step.argval) for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(names).union(*map(_global_names, inner))
