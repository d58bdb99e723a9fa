"""
What generated kernels really do to the values they are given: an oracle for conversions that shares no code with them.

Every kernel of a compiled graph is wrapped in the generated module's globals, and its tensor arguments are copied
before and after it runs. Fresh memory is filled with one value first, so that what a kernel wrote is what changed. A
layout conversion is told by values alone: an argument that was written holds, element by element, another argument's
values, and its dimensions larger than one stand in another order in memory.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.capture.session import CapturedGraph


@dataclass(frozen=True)
class Argument:
    """A tensor argument of one launch: its name in the generated code, its values before and after, its strides."""

    name: str
    before: torch.Tensor
    after: torch.Tensor
    stride: tuple[int, ...]

    @property
    def is_written(self) -> bool:
        return not same_values(self.before, self.after)


@dataclass
class Launch:
    """One call of a generated kernel."""

    kernel: str
    arguments: list[Argument]

    def argument(self, name: str) -> Argument | None:
        return next((argument for argument in self.arguments if argument.name == name), None)


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same elements; a NaN, with which fresh memory is filled, equals itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def order_of(shape: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """The dimensions larger than one, slowest first."""
    return sorted((d for d, size in enumerate(shape) if size > 1), key=lambda d: (-stride[d], d))


@contextlib.contextmanager
def watched(captured: CapturedGraph) -> Iterator[tuple[list[Launch], list[Argument]]]:
    """Meanwhile every launch of the graph's generated kernels is recorded, and every tensor given to a library."""
    call = captured.generated.call
    namespace = getattr(call, "__func__", call).__globals__
    launches, given = list[Launch](), list[Argument]()
    names = iter(argument_names(Path(captured.generated.__file__), captured.graph.kernel_names))
    changed: dict[str, Any] = {
        name: _watching(name, namespace[name], names, launches) for name in captured.graph.kernel_names
    }
    changed["empty_strided_cpu"] = _filling(namespace["empty_strided_cpu"])
    changed["extern_kernels"] = _Recording(namespace["extern_kernels"], given)
    with mock.patch.dict(namespace, changed):
        yield launches, given


class _Recording:
    """Stands for ``extern_kernels``: every function of it notes down what it is given."""

    def __init__(self, inner: Any, found: list[Argument]) -> None:
        self._inner, self._found = inner, found

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._inner, name)

        def call(*args: Any, **keywords: Any) -> Any:
            for value in (*args, *keywords.values()):
                if isinstance(value, torch.Tensor):
                    self._found.append(as_argument(name, value))
            return function(*args, **keywords)

        return call


def as_argument(name: str, value: torch.Tensor) -> Argument:
    """A tensor as it is now."""
    held = value.contiguous().clone()
    return Argument(name, held, held, value.stride())


def lies_as(argument: Argument, other: Argument) -> bool:
    """Whether two arguments hold the same values in the same order in memory."""
    return same_values(argument.after, other.after) and not _orders_differ(argument, other)


def _filling(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*args: Any) -> torch.Tensor:
        fresh = allocate(*args)
        return fresh.fill_(float("nan") if fresh.is_floating_point() else 77)

    return call


def _watching(
    kernel: str, function: Callable[..., Any], names: Iterator[tuple[str, list[str]]], launches: list[Launch]
) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        expected, spelled = next(names)
        assert expected == kernel, "the generated code was read in another order than it runs"
        tensors = [pair for pair in zip(spelled, args, strict=True) if isinstance(pair[1], torch.Tensor)]
        before = [as_argument(*pair).after for pair in tensors]
        result = function(*args)
        after = [as_argument(*pair) for pair in tensors]
        launches.append(Launch(kernel, [replace(one, before=old) for one, old in zip(after, before, strict=True)]))
        return result

    return call


def argument_names(file: Path, kernels: tuple[str, ...]) -> list[tuple[str, list[str]]]:
    """Each launch in the generated code, in order: the kernel and its arguments as they are spelled."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    (body,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    calls = [node.value for node in body.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return [
        (call.func.id, [ast.unparse(argument) for argument in call.args])
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in kernels
    ]


def shared_memory(file: Path) -> dict[str, str]:
    """Names of the generated code that stand for another one's memory: ``buf2 = buf1; del buf1  # reuse``."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        value = node.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "reinterpret_tensor" and value.args:
            value = value.args[0]
        if isinstance(value, ast.Name):
            found[node.targets[0].id] = value.id
    return found


def conversions_in(launch: Launch) -> Iterator[tuple[Argument, Argument]]:
    """(written argument, the one it was converted from): the same elements, the same dimensions, in another order."""
    for target, source in itertools.permutations(launch.arguments, 2):
        if target.is_written and any(_is_reordered(target, source, held) for held in (source.before, source.after)):
            yield target, source


def concatenations_in(launch: Launch) -> Iterator[tuple[Argument, Argument]]:
    """The same for written arguments that others make up completely, side by side along one dimension."""
    for target in launch.arguments:
        if target.is_written:
            for dimension in range(target.after.dim()):
                parts = {start: (size, source) for start, size, source in _parts(launch, target, dimension)}
                place = 0
                while place in parts:
                    place += parts[place][0]
                if place == target.after.shape[dimension] and len(parts) > 1:
                    yield from ((target, source) for _, source in parts.values() if _orders_differ(target, source))


def is_view_reordered(launch: Launch, target_name: str, source_name: str) -> bool:
    """
    Whether a written argument holds another one's elements, seen with other dimensions, in another order in memory.

    The dimensions of either may be permuted; flattened, the two are the same.
    """
    target, source = launch.argument(target_name), launch.argument(source_name)
    if target is None or source is None or not target.is_written:
        return False
    own, others = tuple(range(target.after.dim())), tuple(range(source.after.dim()))
    walks = [(order, others) for order in itertools.permutations(own)]
    walks += [(own, order) for order in itertools.permutations(others)]
    return any(
        same_values(_flat(target.after, order), _flat(values, other))
        and not torch.equal(_places(target, order).argsort(), _places(source, other).argsort())
        for values in (source.before, source.after)
        for order, other in walks
    )


def _flat(values: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    return values.permute(order).reshape(-1)


def _places(argument: Argument, order: tuple[int, ...]) -> torch.Tensor:
    """Where in memory each element lies, in the order in which they are walked."""
    places = torch.zeros(argument.after.shape, dtype=torch.int64)
    for dimension, step in enumerate(argument.stride):
        shape = [-1 if d == dimension else 1 for d in range(places.dim())]
        places += step * torch.arange(argument.after.shape[dimension]).reshape(shape)
    return _flat(places, order)


def is_part_reordered(launch: Launch, target_name: str, source_name: str) -> bool:
    """Whether a written argument holds another one's values in a part of it, in another order."""
    target, source = launch.argument(target_name), launch.argument(source_name)
    if target is None or source is None or not _orders_differ(target, source):
        return False
    return any(
        source.name == found.name
        for dimension in range(target.after.dim())
        for _, _, found in _parts(launch, target, dimension)
    )


def _is_reordered(target: Argument, source: Argument, values: torch.Tensor) -> bool:
    wanted, given = target.after.squeeze(), values.squeeze()
    target_stride = [s for s, size in zip(target.stride, target.after.shape, strict=True) if size > 1]
    source_stride = [s for s, size in zip(source.stride, values.shape, strict=True) if size > 1]
    if wanted.dim() != given.dim() or wanted.dim() < 2:
        return False
    for order in itertools.permutations(range(given.dim())):
        moved = given.permute(order)
        if same_values(wanted, moved):
            stride = tuple(source_stride[d] for d in order)
            return order_of(tuple(wanted.shape), tuple(target_stride)) != order_of(tuple(moved.shape), stride)
    return False


def _orders_differ(target: Argument, source: Argument) -> bool:
    if target.after.dim() != source.after.dim():
        return False
    kept = [d for d in range(target.after.dim()) if target.after.shape[d] > 1 and source.after.shape[d] > 1]
    orders = [[d for d in order_of(tuple(a.after.shape), a.stride) if d in kept] for a in (target, source)]
    return orders[0] != orders[1]


def _parts(launch: Launch, target: Argument, dimension: int) -> Iterator[tuple[int, int, Argument]]:
    """Where along a dimension an argument holds other ones: (start, size, which)."""
    whole = target.after
    for source in launch.arguments:
        part = source.after
        if source is target or part.dim() != whole.dim():
            continue
        same = [d for d in range(whole.dim()) if part.shape[d] == whole.shape[d]]
        if len(same) != whole.dim() - 1 or dimension in same or part.shape[dimension] > whole.shape[dimension]:
            continue
        size = int(part.shape[dimension])
        for start in range(whole.shape[dimension] - size + 1):
            if same_values(whole.narrow(dimension, start, size), part):
                yield start, size, source
