"""
Reads the text of Inductor's generated kernels: each store, and the loads that its value was computed from.

The code is not run. An index is known only if it is a sum of whole multiples of loop variables, such as ``8 * x + 3``.

Source:
    ``CppKernel``, ``CppTile2DKernel`` and ``TritonKernel``, torch/_inductor/codegen/, torch 2.13.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

Steps = dict[str, int]
"""An index as multiples of loop variables and a constant: ``{"x": 8, "": 3}`` is ``8 * x + 3``."""


@dataclass(frozen=True)
class Read:
    """
    A load. ``steps`` is its index; None if the index is not known.

    ``pointer`` is a parameter of the kernel. If the kernel stored the value before, ``@0`` is its first store.
    """

    pointer: str
    steps: tuple[tuple[str, int], ...] | None
    is_masked: bool = False
    is_reduced: bool = False


@dataclass(frozen=True, eq=False)
class _Value:
    """The value of a name in a kernel: a load, or computed from other values."""

    parents: tuple[_Value, ...] = ()
    read: Read | None = None
    operation: str = ""
    is_reduced: bool = False


@dataclass(frozen=True)
class Store:
    """
    One store of a kernel.

    Attributes:
        steps: The index of the store; None if no steps describe it, as in a scatter.
        reads: The loads that the stored value was computed from. A value that was stored before counts as a load.
        operations: The operations between the loads and the store. In Triton, a cast is ``to_dtype``; in C++, casts are
            left out and arithmetic is ``computed``.
    """

    pointer: str
    steps: Steps | None
    reads: tuple[Read, ...]
    operations: tuple[str, ...]


@dataclass
class KernelText:
    """
    The contents of a kernel, filled while its text is read.

    Attributes:
        counts: Number of iterations of each loop variable; 0 if the code has an expression in place of a number.
        values: The value of each name in the kernel.
        aliases: Other names of pointers, each with the parameter that it is equal to.
    """

    parameters: tuple[str, ...]
    stores: list[Store] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    values: dict[str, _Value] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    _stored: dict[_Value, Read] = field(default_factory=dict)

    def load(self, pointer: str, steps: Steps | None, *, is_masked: bool = False) -> _Value:
        """Returns the value of a load. If the kernel stored to the pointer before, this is the last store's result."""
        pointer = self.aliases.get(pointer, pointer)
        last = max((number for number, store in enumerate(self.stores) if store.pointer == pointer), default=None)
        name = pointer if last is None else f"@{last}"
        return _Value(read=Read(name, None if steps is None else tuple(sorted(steps.items())), is_masked))

    def store(self, pointer: str, steps: Steps | None, value: _Value) -> None:
        """Adds a store. Later uses of the value count as reads of the buffer, even if a register has the value."""
        reads: dict[Read, None] = {}
        operations: set[str] = set()
        left, seen = [(value, False)], {(value, False)}
        while left:
            one, is_reduced = left.pop()
            if (read := self._stored.get(one) or one.read) is not None:
                reads[replace(read, is_reduced=is_reduced)] = None
                continue
            operations |= {one.operation} - {""}
            new = [(parent, is_reduced or one.is_reduced) for parent in reversed(one.parents)]
            left += [entry for entry in new if entry not in seen]
            seen.update(new)
        pointer = self.aliases.get(pointer, pointer)
        self.stores.append(Store(pointer, steps, tuple(reads), tuple(sorted(operations))))
        if operations or len(reads) != 1:  # a later use of a plain copy counts as a read of its source
            self._stored[value] = self.load(pointer, steps).read  # type: ignore[assignment]


def _linear(node: ast.AST, known: Mapping[str, Steps]) -> Steps | None:
    """Writes an index expression as a sum of whole multiples of loop variables; None if it is no such sum."""
    match node:
        case ast.Constant(value=int(number)):
            return {"": number}
        case ast.Name(id=name):
            return known.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _linear(ast.BinOp(ast.Constant(-1), ast.Mult(), operand), known)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() as op, right=right):
            one, other = _linear(left, known), _linear(right, known)
            if one is None or other is None:
                return None
            if isinstance(op, ast.Mult):
                factor, steps = (one, other) if set(one) <= {""} else (other, one)
                return {name: step * factor.get("", 0) for name, step in steps.items()} if set(factor) <= {""} else None
            sign = -1 if isinstance(op, ast.Sub) else 1
            return {name: one.get(name, 0) + sign * other.get(name, 0) for name in (*one, *other)}
        case _:
            return None


_TRITON_NEUTRAL = frozenset({"broadcast_to", "reshape", "to", "full", "debug_barrier"})
_TRITON_REDUCTIONS = re.compile(r"sum|max|min|max2|min2|any|prod|reduce\w*|welford\w*|argm\w+|\w+_with_index")


class _Triton:
    """Reads a Triton kernel. An index such as ``xindex`` is split into loops, as the kernel splits it by ``//``."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.kernel = KernelText(tuple(argument.arg for argument in function.args.args))
        self._steps: dict[str, Steps] = {}
        assigned = {
            node.targets[0].id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        self._split(assigned)
        self._read(function.body)

    def _split(self, assigned: Mapping[str, ast.expr]) -> None:
        digits: dict[str, dict[str, tuple[int, int]]] = {}
        for name, value in assigned.items():
            text = ast.unparse(value)
            if found := re.fullmatch(r"\(?(\w+)index(?: // (\d+))?\)?(?: % (\d+))?", text):
                divisor, modulus = int(found[2] or 1), int(found[3] or 0)
                digits.setdefault(found[1], {})[name] = (divisor, divisor * modulus)
        for prefix, parts in digits.items():
            count = assigned.get(f"{prefix}numel")
            if not isinstance(count, ast.Constant) or not isinstance(count.value, int):
                continue
            whole = count.value
            ends = {name: (low, high or whole) for name, (low, high) in parts.items()}
            cuts = sorted({1, whole, *(cut for pair in ends.values() for cut in pair if cut <= whole)})
            if any(high % low for low, high in pairwise(cuts)):
                continue
            places = {f"{prefix}{low}": (low, high) for low, high in pairwise(cuts)}
            self.kernel.counts |= {name: high // low for name, (low, high) in places.items()}
            for name, (first, end) in ends.items():
                self._steps[name] = {p: low // first for p, (low, _) in places.items() if first <= low < end}

    def _read(self, body: Sequence[ast.stmt]) -> None:
        values = self.kernel.values
        for statement in body:
            match statement:
                case ast.Assign(targets=[target], value=value):
                    found = self._value(value)
                    for name in (part.id for part in ast.walk(target) if isinstance(part, ast.Name)):
                        values[name] = found
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[place, value, *_])):
                    written, stored = self._place(place), self._value(value)
                    if written is not None and name == "store":
                        self.kernel.store(*written, stored)
                    elif written is not None and name == "atomic_add":
                        self.kernel.store(written[0], None, _Value((stored, *self._named(place)), operation="scatter"))
                case ast.For(body=inner) | ast.If(body=inner) | ast.While(body=inner):
                    self._read(inner)
                case _:
                    pass

    def _place(self, node: ast.expr) -> tuple[str, Steps | None] | None:
        match node:
            case ast.BinOp(left=ast.Name(id=pointer), op=ast.Add(), right=ast.Call(args=[inner, *_])):
                return pointer, _linear(inner, self._steps)  # tl.broadcast_to(index, ...)
            case ast.BinOp(left=ast.Name(id=pointer), op=ast.Add(), right=index):
                return pointer, _linear(index, self._steps)
            case _:
                return None

    def _named(self, node: ast.AST) -> list[_Value]:
        names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
        return [self.kernel.values[name] for name in names if name in self.kernel.values]

    def _value(self, node: ast.AST) -> _Value:
        operation = ""
        match node:
            case ast.Name(id=name):
                return self.kernel.values.get(name, _Value())
            case ast.Call(func=ast.Attribute(attr="load"), args=[place, *masks]):
                if (found := self._place(place)) is None:
                    return _Value()
                names = {part.id for mask in masks for part in ast.walk(mask) if isinstance(part, ast.Name)}
                load = self.kernel.load(*found, is_masked=any(name.startswith("tmp") for name in names))
                return load if found[1] is not None else _Value((load, *self._named(place)), operation="indirect")
            case ast.Call(func=ast.Attribute(value=of, attr=name), args=arguments):
                parts = [self._value(part) for part in (of, *arguments)]
                if name == "to":
                    return _Value((parts[0],), operation="to_dtype")
                if _TRITON_REDUCTIONS.fullmatch(name):
                    return _Value(tuple(parts), operation=name, is_reduced=True)
                return _Value(tuple(parts), operation="" if name in _TRITON_NEUTRAL else name)
            case ast.Subscript(value=inner):
                return self._value(inner)
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                operation = type(getattr(node, "op", node)).__name__.lower()
            case _:
                pass
        return _Value(tuple(self._value(part) for part in ast.iter_child_nodes(node)), operation=operation)


_FOR = re.compile(r"for ?\((?:int64_t|long|int) (\w+) ?= ?([^;]*);[^;<]*<([^;]*); ?\w+ ?(?:\+=[^{]*|\+\+)\)")
_ACCESS = re.compile(r"&?(\w*ptr\d+)(?: \+ |\[)(?=\()")
_LOADED = re.compile(r"[\w:<>]*::loadu\((?:@|\w+(?: \+ \([^()]*\))?)(?:, \(?\d+\)?)?\)")
_CASTS = re.compile(r"(?:static_cast|c10::convert|at::vec::convert|decltype)(?:<[\w:, ]+>|\(\w+\)(?=\())")
_NAMES = re.compile(r"\b\w*(?:tmp|welford)\w*")


class _Cpp:
    """
    Reads a C++ kernel, statement by statement. The vector part of a loop is read, its tail is left out.

    A tile that is transposed in a local array is read as two loops; the lanes of a vector add nothing to an index.
    """

    def __init__(self, source: str) -> None:
        text = re.sub(r"//.*|^\s*#.*", "", source, flags=re.MULTILINE).replace("static_cast<int64_t>", "")
        text = re.sub(r"(\d)L\b", r"\1", re.sub(r"\[\]\([^()]*\) *\{[^{}]*\}", "reduced", text))
        head, _, body = text.partition("kernel(")[2].partition(")")
        self.kernel = KernelText(tuple(re.findall(r"(\w+)\s*(?:,|\Z)", head)))
        self._steps: dict[str, Steps] = {}
        self._scopes: list[tuple[str, str]] = []  # kind of each open brace (loop, lambda, left out, block) and its name
        self._read(_FOR.sub(r"for@\1@\2@\3@", body))

    def _read(self, text: str) -> None:
        parts = re.split(r"([{};])", text)
        for before, mark in zip(parts[::2], parts[1::2], strict=False):
            if mark == "{":
                self._open(before)
            elif mark == "}" and self._scopes:
                kind, name = self._scopes.pop()
                if kind == "loop":
                    self._steps.pop(name, None)
            elif mark == ";" and not any(kind == "left out" for kind, _ in self._scopes):
                self._statement(" ".join(before.split()))

    def _open(self, before: str) -> None:
        scope = ("block", "")
        if found := re.search(r"for@(\w+)@(.*)@(.*)@", before):
            name, start, end = (part.strip(" ()") for part in found.groups())
            scope = ("loop", name) if start == "0" else ("left out", "")
            if not name.endswith("_inner"):
                place = f"{name}#{len(self.kernel.counts)}"
                self.kernel.counts[place] = int(end) if end.isdigit() else 0
                self._steps[name] = {place: 1} if end.isdigit() else self._steps.pop(name, {place: 1})
            else:
                self._steps[name] = {}
        elif re.search(r"C10_UNLIKELY\(.*>= \(?[1-9]", before):
            scope = ("left out", "")
        elif found := re.search(r"(\w+) = (?:.*\? .* : )?\[&\]", " ".join(before.split())):
            scope = ("lambda", found[1])
        self._scopes.append(scope)

    def _statement(self, text: str) -> None:
        values = self.kernel.values
        if found := re.match(r"auto (\w+ptr\d+) = (\w+ptr\d+)$", text):
            self.kernel.aliases[found[1]] = found[2]
        elif found := re.match(r"return (.*)", text):
            names = [name for kind, name in self._scopes if kind == "lambda"]
            if names:
                values[names[-1]] = self._value(found[1])
        elif found := re.match(r"(\w+)(?:\.\w+)?\.store\((.*)\)$", text):
            self._store(_arguments(found[2])[0], values.get(found[1], _Value()))
        elif "transpose_mxn<" in text:
            source, _, target, *_ = _arguments(text.partition(">(")[2])
            self._store(target, values.get(source) or self._value(source))
        elif found := re.match(r"(?:\w*atomic_add\w*(?:<[^(]*>)?\(|)(&?\w*ptr\d+\[.*)", text):
            target = found[1]
            bracket = target.index("[") + 1
            rest = target[bracket + len(_balanced(target, bracket)) :].lstrip("] ,=")
            self._store(target, values.get(rest) or self._value(rest), scattered="atomic_add" in text)
        elif found := re.match(r"(?:(?P<type>[\w:<>,* ]+?) )?(?P<name>\w+)(?:\[[^=]*\])? = (?P<value>.*)", text):
            value, name = self._value(found["value"]), found["name"]
            if "acc" in name or "welford" in name:
                known = _Value() if found["type"] else values.get(name, _Value())
                value = _Value((known, value), operation="" if found["type"] else "reduction", is_reduced=True)
            values[name] = value

    def _store(self, target: str, value: _Value, *, scattered: bool = False) -> None:
        if found := _ACCESS.match(target):
            index = _balanced(target, found.end())
            if scattered:
                value = _Value((value, *self._names(index)), operation="scatter")
            self.kernel.store(found[1], None if scattered else self._index(index), value)
        elif found := re.match(r"\w+", target):  # an array on the stack
            self.kernel.values[found[0]] = value

    def _names(self, text: str) -> list[_Value]:
        return [self.kernel.values[name] for name in _NAMES.findall(text) if name in self.kernel.values]

    def _index(self, text: str) -> Steps | None:
        try:
            return _linear(ast.parse(text, mode="eval").body, self._steps)
        except SyntaxError:
            return None  # c10::div_floor_integer and the like

    def _value(self, text: str) -> _Value:
        is_masked = any(kind == "lambda" for kind, _ in self._scopes)
        loads = []
        while found := _ACCESS.search(text):
            index = _balanced(text, found.end())
            load, indices = self.kernel.load(found[1], self._index(index), is_masked=is_masked), self._names(index)
            loads.append(_Value((load, *indices), operation="indirect") if indices else load)
            end = found.end() + len(index)
            text = f"{text[: found.start()]}@{text[end:].removeprefix(']')}"
        names = self._names(text)
        plain = _CASTS.sub("", _LOADED.sub("@", text)).strip(" ()")
        is_moved = plain == "@" or re.fullmatch(r"\w+(\.template cast<[^()]*>|\(\))?", plain)
        return _Value((*loads, *names), operation="" if is_moved else "computed")


def _balanced(text: str, start: int) -> str:
    """Returns the part of a text from an opening bracket to its closing bracket."""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return text[start : position + 1]
    return text[start:]


def _arguments(text: str) -> list[str]:
    """Splits the arguments of a call; the text begins behind the call's opening bracket."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            break
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [part.strip() for part in found]


def read_kernel(source: str) -> KernelText:
    """Reads a generated kernel; without stores if it is neither C++ nor Triton, or if no store was understood."""
    if 'extern "C"' in source:
        return _Cpp(source).kernel
    if "@triton.jit" in source:
        functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        return _Triton(functions[-1]).kernel
    return KernelText(())
