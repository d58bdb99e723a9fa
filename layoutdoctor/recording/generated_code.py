"""
Reads Inductor's generated code as text: the buffers that kernels and library calls write, and the strides of each read.

A buffer that cannot be followed is recorded with a problem; nothing is guessed. The code is not run.

Source:
    ``PythonWrapperCodegen``, torch/_inductor/codegen/wrapper.py, torch 2.13.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from layoutdoctor.diagnosis import Buffer, BufferRead, Layout, Size
from layoutdoctor.diagnosis.layout import known_numbers, strided_layout
from layoutdoctor.recording.kernels_text import read_kernel

if TYPE_CHECKING:
    from layoutdoctor.recording.kernels_text import KernelText, Store

_IN_PLACE = " (in place)"
_LIBRARIES = ("extern_kernels.", "torch.ops.", "aten.", "inductor_ops.")


class GeneratedCode:
    """
    Facts about the Python module that Inductor generates to run a graph.

    Attributes:
        inputs: Names of the graph's inputs.
        buffers: The buffers by name, in the order in which they are written.
        calls: Function and tensor arguments of each library call, by the buffer that the call makes.
        results: Buffer of each result of a call with several results, by ``(buffer of the call, index of the result)``.
        returned: The buffer or input that each output of the graph is; None for an output that is no tensor.
        kernels: The contents of each generated kernel, by name.

    Raises:
        SyntaxError: The text is not a complete Python module.
    """

    def __init__(self, source: str) -> None:
        self.inputs: tuple[str, ...] = ()
        self.buffers: dict[str, Buffer] = {}
        self.calls: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.results: dict[tuple[str, int], str] = {}
        self.returned: tuple[str | None, ...] = ()
        self.kernels: dict[str, KernelText] = {}
        self._layouts: dict[str, tuple[Layout | None, str | None]] = {}
        self._former: dict[str, str] = {}  # by buffer: the former buffer of the same memory
        self._parts: dict[str, tuple[str, int]] = {}  # by buffer: the larger buffer around it, and its offset there
        self._launch_count = 0
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id="async_compile")), args=arguments),
                ):
                    texts = [str(part.value) for part in arguments if isinstance(part, ast.Constant)]
                    self.kernels[name] = read_kernel(next((text for text in reversed(texts) if "\n" in text), ""))
                case ast.FunctionDef(name=name, body=body) if name == "call" or name.startswith("partition_"):
                    self._read(body)
        for whole in dict.fromkeys(whole for whole, _ in self._parts.values()):
            if whole not in self.buffers and whole not in self.inputs:
                self._written(whole, None)

    def layout_of(self, name: str) -> Layout | None:
        """Returns the layout of a buffer or input in the code; None if it is not known."""
        return self._layouts.get(name.removesuffix(_IN_PLACE), (None, None))[0]

    def _read(self, body: Sequence[ast.stmt]) -> None:
        for statement, behind in zip(body, [*body[1:], None], strict=True):
            match statement:
                case ast.With(body=inner):
                    self._read(inner)
                case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Name(id="args")):
                    found = (name.id for name in names if isinstance(name, ast.Name))
                    self.inputs = tuple(dict.fromkeys((*self.inputs, *found)))
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    gone = isinstance(behind, ast.Delete) and behind.lineno == statement.lineno
                    self._assigned(name, value, takes_over=gone)
                case ast.Expr(value=ast.Call() as call):
                    self._called(call)
                case ast.Return(value=ast.Tuple(elts=values)):
                    self.returned = tuple(next(self._names(value), None) for value in values)
                case _:
                    pass

    def _assigned(self, name: str, value: ast.expr, *, takes_over: bool) -> None:
        match value:
            case ast.Name(id=other) if other in self._layouts:  # any other name is a size
                self._layouts[name], self._former[name] = self._layouts[other], other
            case ast.Call(func=ast.Name(id="reinterpret_tensor"), args=[ast.Name(id=other), shape, stride, *offset]):
                self._layouts[name] = (layout_in(shape, stride), self._layouts.get(other, (None, None))[1])
                if takes_over:
                    self._former[name] = other
                else:
                    start = _size(offset[0]) if offset else 0
                    self._parts[name] = (other, start if isinstance(start, int) else 0)
            case ast.Call(func=ast.Name(id=function), args=[shape, stride, *types]) if function.startswith("empty_str"):
                texts = [ast.unparse(part) for part in (*types, *(keyword.value for keyword in value.keywords))]
                dtype = next((text[6:] for text in texts if text.startswith("torch.")), None)
                self._layouts[name] = (layout_in(shape, stride), dtype)
            case ast.Call(func=function) if ast.unparse(function).startswith(_LIBRARIES):
                self._library_call(name, value)
            case ast.Subscript(value=ast.Name(id=other), slice=ast.Constant(value=int(index))) if other in self.buffers:
                self.results[other, index] = name
                self._written(name, "MultiOutput", reads=(other,), is_extern=True)
            case _:
                pass

    def _library_call(self, name: str, call: ast.Call) -> None:
        given = (*call.args, *(keyword.value for keyword in call.keywords if keyword.arg != "out"))
        reads = tuple(read for part in given for read in self._names(part))
        self.calls[name] = (ast.unparse(call.func), reads)
        self._written(name, self.calls[name][0], reads=tuple(sorted(set(reads))), is_extern=True)

    def _written(self, name: str, kernel: str | None, **facts: Any) -> None:
        layout, dtype = self._layouts.setdefault(name.removesuffix(_IN_PLACE), (None, None))
        whole, offset = self._parts.get(name, (None, 0))
        self.buffers[name] = Buffer(
            name=name, layout=layout, dtype=dtype, kernel=kernel, alias_of=whole, offset=offset, **facts
        )

    def _called(self, call: ast.Call) -> None:
        function = ast.unparse(call.func)
        if (name := function.removesuffix(".run")) in self.kernels:
            self._launched(name, [next(self._names(part), "") for part in call.args])
        elif function == "assert_size_stride" and isinstance(call.args[0], ast.Name):
            name, layout = call.args[0].id, layout_in(*call.args[1:3])
            self._layouts[name] = (layout, self._layouts.get(name, (None, None))[1])
            if (known := self.buffers.get(name)) is not None and known.layout is None:
                self._written(name, known.kernel, reads=known.reads, is_extern=True)
        else:
            out = [name for keyword in call.keywords if keyword.arg == "out" for name in self._names(keyword.value)]
            if out:
                self._library_call(out[0], call)

    def _names(self, node: ast.AST) -> Iterator[str]:
        """Yields the buffers and inputs in an expression, in order."""
        return (name for name in names_in(node) if name in self._layouts or name in self.inputs)

    def _launched(self, name: str, given: Sequence[str]) -> None:
        kernel, launch = self.kernels[name], self._launch_count
        self._launch_count += 1
        of = dict(zip(kernel.parameters, given, strict=False))
        left = {pointer: sum(store.pointer == pointer for store in kernel.stores) for pointer in of}
        names = {pointer: self._before(of[pointer], count) for pointer, count in left.items()}
        for position, store in enumerate(kernel.stores):
            left[store.pointer] -= 1
            written = self._before(of[store.pointer], left[store.pointer])
            written += _IN_PLACE if written in self.inputs else ""
            self._store(kernel, store, written, names, name, launch)
            names[f"@{position}"] = written
        wholes = {whole for whole, _ in self._parts.values()}
        for unread in dict.fromkeys(given):
            if unread in wholes and unread not in self.buffers:
                self._written(unread, None)
            elif unread and unread not in self.buffers and unread not in self.inputs:
                self._written(unread, name, launch=launch, problem="generated kernel of an unknown form")

    def _before(self, name: str, count: int) -> str:
        """Returns the name of the buffer that used the same memory ``count`` buffers earlier."""
        for _ in range(count):
            name = self._former.get(name, name)
        return name

    def _store(
        self, kernel: KernelText, store: Store, written: str, names: Mapping[str, str], name: str, launch: int
    ) -> None:
        known, own = known_numbers(self.layout_of(written)), dict(store.steps or {})
        looping = {place for place, count in kernel.counts.items() if count != 1}
        reduced = {p for read in store.reads if read.is_reduced for p, _ in read.steps or ()} & looping
        is_reduction = (own.keys() & looping) < reduced
        reads: dict[BufferRead, None] = {}
        for read in store.reads:
            steps, seen = dict(read.steps or ()), None
            places = (own.keys() | steps.keys()) & looping
            is_known = store.steps is not None and read.steps is not None and all(kernel.counts[p] for p in places)
            if is_known and known is not None and (is_reduction or not read.is_reduced):
                loops = [Loop(kernel.counts[place], own.get(place, 0), steps.get(place, 0)) for place in places]
                seen = seen_strides(*known, loops)
            found = BufferRead(
                name=names[read.pointer],
                stride=seen,
                offset=steps.get("", 0),
                is_masked=read.is_masked,
            )
            reads[found] = None
        self._written(
            written,
            name,
            reads=tuple(sorted({read.name for read in reads})),
            accesses=tuple(reads),
            operations=store.operations,
            is_reduction=is_reduction,
            launch=launch,
            is_output=written.endswith(_IN_PLACE),
            problem="symbolic sizes" if known is None else None,
        )


def names_in(node: ast.AST | None) -> Iterator[str]:
    """Yields the names in an expression, in order."""
    if isinstance(node, ast.Name):
        yield node.id
    elif node is not None:
        for part in ast.iter_child_nodes(node):
            yield from names_in(part)


def layout_in(shape: ast.AST, stride: ast.AST) -> Layout | None:
    """Reads a layout from the sizes and strides, symbols as text; None unless both are lists of equal length."""
    sizes = [[_size(part) for part in node.elts] for node in (shape, stride) if isinstance(node, (ast.Tuple, ast.List))]
    return strided_layout(*sizes) if len(sizes) == 2 and len(sizes[0]) == len(sizes[1]) else None


def _size(node: ast.expr) -> Size:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else ast.unparse(node)


# ------------------------------------------------ the strides with which a loop reads one buffer and writes another
@dataclass(frozen=True)
class Loop:
    """
    One loop variable around a store and a load.

    Attributes:
        count: Number of iterations of the loop.
        store_step: Elements by which the store moves per iteration; 0 if it does not depend on the variable.
        load_step: Elements by which the load moves per iteration; 0 if it does not depend on the variable.
    """

    count: int
    store_step: int
    load_step: int


def seen_strides(shape: Sequence[int], stride: Sequence[int], loops: Sequence[Loop]) -> tuple[int, ...] | None:
    """
    Finds a load's strides along the dimensions of the buffer that the same loop stores.

    Args:
        stride: The stored buffer's strides in elements; dimensions do not overlap.

    Returns:
        One stride per dimension, in elements. The stride is 0 if the size is 1, or if the load does not depend on the
        dimension. None if the load moves in unequal steps along a dimension.
    """
    strides: list[int] = []
    for size, step in zip(shape, stride, strict=True):
        seen = 0 if size == 1 else _seen_stride(size, step, loops)
        if seen is None:
            return None
        strides.append(seen)
    return tuple(strides)


def _seen_stride(size: int, step: int, loops: Sequence[Loop]) -> int | None:
    """
    Finds the load's stride along one dimension of the stored buffer; None if the loops give no single stride.

    The dimension's elements are at 0, ``step``, ``2 * step``... in the stored buffer. Each loop covers a part of them,
    from its ``store_step`` up to ``store_step * count``. All these loops must give the same stride.
    """
    seen: int | None = None
    place, left = step, size
    while left > 1:
        ahead = (loop for loop in loops if loop.store_step > 0 and place < loop.store_step * loop.count)
        loop = next((loop for loop in ahead if place % loop.store_step == 0), None)
        if loop is None or loop.store_step * loop.count % place:
            return None
        count = loop.store_step * loop.count // place
        load_step = loop.load_step * (place // loop.store_step)
        multiple = place // step
        if seen is None:
            seen = load_step
        elif load_step != seen * multiple:
            return None
        if count < left and left % count:
            return None
        left = 1 if count >= left else left // count
        place *= count
    return seen
