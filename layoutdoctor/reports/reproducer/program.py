"""
The operations of an eager iteration as a program that can be written down again: read, checked, trimmed, aligned.

Nothing of a record goes on from here but numbers, names that a strict pattern admits, and a few constants of torch: a
saved diagnosis that was edited by hand must never get a word of its own into a script.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, deque
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.records import FxNode, Graph

_TARGET = re.compile(r"aten\.[a-z0-9_]+\.[A-Za-z0-9_]+", re.ASCII)
_KEYWORD = re.compile(r"[a-z][a-z0-9_]{0,40}", re.ASCII)
_WORD = re.compile(r"[a-z_]{0,20}(:[0-9]{1,3})?", re.ASCII)
"""What a string argument may be: the name of a mode, or of a device."""

_TORCH_CONSTANTS = frozenset(
    "bfloat16 bool float16 float32 float64 half int16 int32 int64 int8 uint8 float8_e4m3fn float8_e5m2 "
    "channels_last channels_last_3d contiguous_format preserve_format strided".split()
)
_NOT_FINITE = frozenset({"inf", "nan"})
_LONGEST_TEXT = 4000
_MOST_OPERATIONS = 20_000
CONTIGUOUS = "contiguous"
RESHAPE = "reshape"
POOL_TO_ONE = "adaptive_avg_pool2d"
"""Targets of operations that run something else, or nothing, by the layout they meet."""

_FORMATS = frozenset({"torch.contiguous_format", "torch.channels_last", "torch.channels_last_3d"})


class CannotWriteError(Exception):
    """There is no program; the text is the reason, as a clause without a word of the record's own."""


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of another operation, or a placeholder, by its name in the record."""

    name: str


@dataclass(frozen=True, slots=True)
class Word:
    """A constant as Python writes it: ``torch.float32``, ``"tanh"``, ``float("inf")``."""

    text: str


Value = Ref | Word | bool | int | float | None | tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """
    One operation of the forward pass.

    Attributes:
        name: Its name in the record.
        target: The operator, such as ``aten.relu.default``, ``getitem`` or ``CONTIGUOUS``.
    """

    name: str
    target: str
    args: tuple[Value, ...]
    kwargs: tuple[tuple[str, Value], ...]
    node: FxNode

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it reads, repeated where read twice."""
        return tuple(refs_in((*self.args, *(value for _, value in self.kwargs))))

    def with_names(self, name_of: Callable[[str], str]) -> Operation:
        """The same operation on other values."""
        kwargs = tuple((key, renamed(value, name_of)) for key, value in self.kwargs)
        return replace(self, args=tuple(renamed(value, name_of) for value in self.args), kwargs=kwargs)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Sizes of its first result."""
        return sizes(self.node.layout.shape) if self.node.layout is not None else None


@dataclass(frozen=True, slots=True)
class Program:
    """
    Operations in the order they ran.

    Attributes:
        operations: Those of the forward pass that the outputs need.
        placeholders: What they read that no operation made, by name.
        outputs: Names of what the model returned.
    """

    operations: tuple[Operation, ...]
    placeholders: Mapping[str, FxNode]
    outputs: tuple[str, ...]


def refs_in(values: Iterable[Value]) -> Iterator[str]:
    """The names that arguments hold, in order."""
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple):
            yield from refs_in(value)


def renamed(value: Value, name_of: Callable[[str], str]) -> Value:
    """An argument with other names in place of those it holds."""
    if isinstance(value, Ref):
        return Ref(name_of(value.name))
    return tuple(renamed(part, name_of) for part in value) if isinstance(value, tuple) else value


def sizes(values: Sequence[int | str] | None) -> tuple[int, ...]:
    """
    Sizes or strides as integers.

    Raises:
        CannotWriteError: One is symbolic, negative or not known.
    """
    if values is None or not all(type(value) is int and 0 <= value < 2**48 for value in values):
        raise CannotWriteError("a tensor of the model has sizes that are no plain numbers")
    return tuple(value for value in values if isinstance(value, int))


def read_program(graph: Graph, output_count: int) -> Program:
    """
    The forward pass of an eager iteration, without what no output needs.

    Args:
        output_count: How many tensors the model returned; further outputs of the graph are only still held.

    Raises:
        CannotWriteError: An operation that is needed cannot be written down.
    """
    if len(graph.nodes) > _MOST_OPERATIONS:
        raise CannotWriteError(f"the model runs more than {_MOST_OPERATIONS} operations")
    if any("symbolic" in line or "sub-graph" in line for line in graph.not_understood):
        raise CannotWriteError("the model has symbolic sizes or sub-graphs")
    forward = [node for node in graph.nodes if not node.backward]
    placeholders = {node.name: node for node in forward if node.op == "placeholder"}
    outputs = graph.output_names[:output_count]
    wanted, kept = set(outputs), []
    for node in reversed([node for node in forward if node.op == "call_function"]):
        if node.name in wanted:
            operation = _read_operation(node)
            kept.append(operation)
            wanted.update(operation.inputs)
        elif _changes_something(node):
            raise CannotWriteError("the model changes a tensor in place through a view")
    known = {operation.name for operation in kept} | placeholders.keys()
    if not outputs or not wanted <= known:
        raise CannotWriteError("the record does not say where a value of the model comes from")
    used = {name: placeholders[name] for name in placeholders if name in wanted}
    return Program(tuple(reversed(kept)), used, outputs)


def _changes_something(node: FxNode) -> bool:
    """Whether an operation that no output needs writes into a tensor that counts: other than a counter of batches."""
    name = node.target.split(".")[1] if node.target.count(".") == 2 else ""
    is_counter = node.layout is not None and node.layout.shape == () and node.dtype == "int64"
    return name.endswith("_") and not name.endswith("__") and not is_counter


def _read_operation(node: FxNode) -> Operation:
    if node.target != "getitem" and not is_own_operator(node.target):
        raise CannotWriteError("the model runs an operation that is not one of torch's own")
    if node.arguments is None:
        raise CannotWriteError("the record does not hold the arguments of an operation")
    args, kwargs = parse_arguments(node.arguments)
    operation = Operation(node.name, node.target, args, kwargs, node)
    if set(operation.inputs) != set(node.inputs):
        raise CannotWriteError("the arguments of an operation contradict the record")
    return operation


def is_own_operator(target: str) -> bool:
    """Whether a target is written like an operator of ATen, and can be written down as one."""
    parts = target.split(".")
    return bool(_TARGET.fullmatch(target)) and not any(part.startswith("__") or iskeyword(part) for part in parts)


def parse_arguments(text: str) -> tuple[tuple[Value, ...], tuple[tuple[str, Value], ...]]:
    """
    The arguments of a call, from the text a record holds: names, numbers, constants, and lists of these; nothing else.

    Args:
        text: Such as ``value, weight, None, [1, 1], dtype=torch.float32``.

    Returns:
        Positional and keyword arguments.

    Raises:
        CannotWriteError: It is anything else.
    """
    try:
        call = _parsed_call(text)
        args = tuple(_parse(argument) for argument in call.args)
        kwargs = tuple((_keyword(keyword.arg), _parse(keyword.value)) for keyword in call.keywords)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotWriteError("the arguments of an operation are no plain data") from error
    return args, kwargs


def _parsed_call(text: str) -> ast.Call:
    if len(text) > _LONGEST_TEXT:
        raise ValueError("too long")
    call = ast.parse(f"f({text})", mode="eval").body
    # A bracket in the text could close the call and open another one.
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "f":
        raise ValueError("not a list of arguments")
    return call


def _keyword(name: str | None) -> str:
    if name is None or not _KEYWORD.fullmatch(name):
        raise ValueError("not a keyword argument")
    return name


def _parse(node: ast.expr) -> Value:
    match node:
        case ast.Constant(value=None | bool() | int() | float() as value):
            return value
        case ast.Constant(value=str() as value) if _WORD.fullmatch(value):
            return Word(f'"{value}"')
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return Word('float("-inf")')
        case ast.Name(id=name):
            return Word(f'float("{name}")') if name in _NOT_FINITE else Ref(name)
        case ast.Attribute(value=ast.Name(id="torch"), attr=attribute) if attribute in _TORCH_CONSTANTS:
            return Word(f"torch.{attribute}")
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return tuple(_parse(part) for part in parts)
        case _:
            raise ValueError("not plain data")


def simplified(program: Program) -> Program:
    """
    The program in the words of its author, where what ran depends on the layout.

    A reshape is a view or a copy, ``contiguous`` a copy or nothing, and a pooling to one element sets the strides of
    its result in channels_last only: written as what was called, each means the same in every configuration.
    """
    uses = Counter([*(name for operation in program.operations for name in operation.inputs), *program.outputs])
    made = {operation.name: operation for operation in program.operations}
    same: dict[str, str] = {}
    operations: dict[str, Operation] = {}
    for operation in program.operations:
        source = made.get(operation.inputs[0]) if operation.inputs else None
        written = operation.with_names(lambda name: same.get(name, name))
        if _is_copy(operation):
            written = replace(written, target=CONTIGUOUS)
        elif operation.target in ("aten.view.default", "aten._unsafe_view.default"):
            written = replace(written, target=RESHAPE)
            if source is not None and operation.target.startswith("aten._") and _is_copy(source):
                copy = operations[source.name]
                if uses[source.name] == 1 and copy.kwargs == _TO_CONTIGUOUS:
                    del operations[source.name]
                    written = replace(written, args=(copy.args[0], *written.args[1:]))
        elif operation.target == "aten.mean.dim" and operation.args[1:] == ((-1, -2), True):
            written = replace(written, target=POOL_TO_ONE, args=written.args[:1])
        elif operation.target == "aten.as_strided_.default" and source is not None and source.target == "aten.mean.dim":
            same[operation.name] = source.name
            continue
        operations[operation.name] = written
    outputs = tuple(same.get(name, name) for name in program.outputs)
    return replace(program, operations=tuple(operations.values()), outputs=outputs)


_TO_CONTIGUOUS = (("memory_format", Word("torch.contiguous_format")),)


def _is_copy(operation: Operation) -> bool:
    """Whether it is what ``contiguous`` runs: a clone into a memory format."""
    if operation.target != "aten.clone.default" or [name for name, _ in operation.kwargs] != ["memory_format"]:
        return False
    chosen = operation.kwargs[0][1]
    return isinstance(chosen, Word) and chosen.text in _FORMATS


def aligned(program: Program, other: Program) -> Program:
    """
    One program for two runs of the same model, on another layout each.

    ``Tensor.contiguous`` runs nothing where the layout is right already, so that it shows in one of them only.

    Args:
        program: The run whose names and layouts are kept.
        other: The run in the other layout.

    Raises:
        CannotWriteError: They differ in more than that.
    """
    if len(program.placeholders) != len(other.placeholders) or len(program.outputs) != len(other.outputs):
        raise _different()
    left, right = deque(program.operations), deque(other.operations)
    here: dict[str, str] = {}
    there = dict(zip(other.placeholders, program.placeholders, strict=True))
    source_of: dict[str, str] = {}
    operations: list[Operation] = []
    while left or right:
        if left and right and left[0].target == right[0].target and len(left[0].args) == len(right[0].args):
            one, two = left.popleft(), right.popleft()
            here[one.name] = there[two.name] = one.name
            operations.append(_joined(one, two, here, there, source_of))
            continue
        is_left = bool(left) and left[0].target == CONTIGUOUS
        if not is_left and not (right and right[0].target == CONTIGUOUS):
            raise _different()
        names, copy = (here, left.popleft()) if is_left else (there, right.popleft())
        source = names.get(copy.inputs[0], copy.inputs[0])
        name = copy.name if is_left else f"{copy.name} there"
        names[copy.name] = name
        source_of[name] = source
        operations.append(replace(copy, name=name, args=(Ref(source), *copy.args[1:])))
    outputs = tuple(
        _later(here.get(one, one), there.get(two, two), source_of)
        for one, two in zip(program.outputs, other.outputs, strict=True)
    )
    return Program(tuple(operations), program.placeholders, outputs)


def _joined(
    one: Operation, two: Operation, here: dict[str, str], there: dict[str, str], source_of: dict[str, str]
) -> Operation:
    named = [value for _, value in (*one.kwargs, *two.kwargs)]
    alike = renamed(one.args, lambda _: "") == renamed(two.args, lambda _: "")
    if any(refs_in(named)) or one.kwargs != two.kwargs or not alike:
        raise _different()
    read = zip(refs_in(one.args), refs_in(two.args), strict=True)
    chosen = iter([_later(here.get(a, a), there.get(b, b), source_of) for a, b in read])
    return replace(one, args=tuple(renamed(value, lambda _: next(chosen)) for value in one.args))


def _later(one: str, two: str, source_of: dict[str, str]) -> str:
    """Of two names of one value, the one that ``contiguous`` was called for."""
    for first, last in ((one, two), (two, one)):
        step: str | None = last
        while step is not None:
            if step == first:
                return last
            step = source_of.get(step)
    raise _different()


def _different() -> CannotWriteError:
    return CannotWriteError("the model runs other operations where its tensors have another layout")
