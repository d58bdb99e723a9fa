"""
A program as Python code: lines that make ``model``, as short as they can be read.

A chain of layers becomes an ``nn.Sequential``, everything else a module with a ``forward``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.layout import CHANNELS_LAST_BY_RANK, contiguous_stride, dense_stride
from layoutdoctor.reports.reproducer.layers import free_placeholders, steps_of, written
from layoutdoctor.reports.reproducer.program import CannotWriteError, sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.records import FxNode
    from layoutdoctor.reports.reproducer.layers import Step
    from layoutdoctor.reports.reproducer.program import Program

_LONGEST_EXPRESSION = 96
_NAMES = tuple("yzabcdeghkqrstuvw")
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_DTYPES = _FLOATS | {"int8", "int16", "int32", "int64", "uint8", "bool"}
_LAYER = re.compile(r"\bm\[")
_OPERATOR = re.compile(r"\{\d+\} [-+*/] ")
WIDTH = 118
"""Columns of a line of a script."""


@dataclass(frozen=True, slots=True)
class ModelCode:
    """
    A model as code.

    Attributes:
        lines: What makes ``model``, with the class it needs.
        inputs: Code that makes each input, in the order of the arguments.
        input_ranks: Dimensions that occur among the inputs.
        weight_ranks: Dimensions that occur among the weights.
    """

    lines: tuple[str, ...]
    inputs: tuple[str, ...]
    input_ranks: frozenset[int]
    weight_ranks: frozenset[int]
    output_count: int


def model_code(program: Program, inputs: Sequence[str], *, is_training: bool, device: str) -> ModelCode:
    """
    The code of a program.

    Args:
        program: Simplified.
        inputs: The placeholders that are the model's inputs; the others become its parameters.

    Raises:
        CannotWriteError: Something in it cannot be written down.
    """
    writer = _ModelWriter(program, tuple(inputs), is_training=is_training, device=device)
    lines = writer.lines()
    placed = [program.placeholders[name] for name in inputs]
    return ModelCode(
        lines=tuple(lines),
        inputs=tuple(tensor_code(node, device) for node in placed),
        input_ranks=frozenset(_rank(node) for node in placed),
        weight_ranks=frozenset(_rank(node) for node in writer.weights),
        output_count=len(writer.outputs),
    )


def _rank(node: FxNode) -> int:
    return len(node.layout.shape) if node.layout is not None else 0


def _outputs(program: Program, steps: Sequence[Step]) -> tuple[str, ...]:
    """The outputs by the names of the steps that make them."""
    known = {step.result for step in steps} | set(program.placeholders)
    made = {operation.name: operation for operation in program.operations}
    found = []
    for output in program.outputs:
        name = output
        while name not in known:  # the first result of a layer, or what a layer swallowed at its end
            name = made[name].inputs[0]
        found.append(name)
    return tuple(dict.fromkeys(found))


def tensor_code(node: FxNode, device: str = "cpu", *, is_parameter: bool = False) -> str:
    """
    Code that makes a random tensor of a placeholder's layout.

    Args:
        is_parameter: Whether its numbers should be as small as those of a weight.

    Raises:
        CannotWriteError: Its layout or dtype cannot be made.
    """
    if node.layout is None or node.dtype not in _DTYPES:
        raise CannotWriteError("a tensor that the model reads has no layout or dtype that can be made")
    shape, stride = sizes(node.layout.shape), sizes(node.layout.stride)
    listed = ", ".join(map(str, shape)) if shape else "()"
    options = "" if device == "cpu" else f', device="{device}"'
    if node.dtype in _FLOATS:
        options = ("" if node.dtype == "float32" else f", dtype=torch.{node.dtype}") + options
        code = f"torch.randn({listed}{options})"
    elif node.dtype == "bool":
        code = f"(torch.rand({listed}{options}) > 0.5)"
    else:
        code = f"torch.randint(0, 2, {written(shape)}, dtype=torch.{node.dtype}{options})"
    if is_parameter:
        code = f"0.05 * {code}"
    if _is_contiguous(shape, stride):
        return code
    if stride == _channels_last_stride(shape):
        return f"{_in_brackets(code)}.to(memory_format=torch.{CHANNELS_LAST_BY_RANK[len(shape)]})"
    if 0 in stride or node.dtype == "bool":
        raise CannotWriteError("a tensor that the model reads overlaps itself")
    return f"torch.empty_strided({written(shape)}, {written(stride)}{options}).copy_({code})"


def _in_brackets(code: str) -> str:
    return f"({code})" if code.startswith("0.05") else code


def _is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether it is, but for strides that mean nothing."""
    return all(size == 1 or one == two for size, one, two in zip(shape, stride, contiguous_stride(shape), strict=True))


def _channels_last_stride(shape: Sequence[int]) -> tuple[int, ...] | None:
    if len(shape) not in CHANNELS_LAST_BY_RANK:
        return None
    return dense_stride(shape, (0, *range(2, len(shape)), 1))


class _ModelWriter:
    """Writes one model."""

    def __init__(self, program: Program, inputs: tuple[str, ...], *, is_training: bool, device: str) -> None:
        self.steps, self.inputs, self.device = steps_of(program), inputs, device
        if not self.steps:
            raise CannotWriteError("the model runs no operation")
        self.outputs = _outputs(program, self.steps)
        self.loose = [node for node in free_placeholders(program, self.steps) if node.name not in inputs]
        self.weights = [node for step in self.steps for node in step.weights] + self.loose
        steps = self.steps
        normalizing = [step.is_evaluated for step in steps if step.is_evaluated is not None]
        self.is_evaluated = not is_training and False not in normalizing
        self.uses = Counter([*(name for step in steps for name in step.inputs), *self.outputs])
        self.is_chain = self._is_chain()
        dtypes = {node.dtype for node in self.weights if node.dtype in _FLOATS}
        self.dtype = dtypes.pop() if len(dtypes) == 1 else None
        self.numbers: dict[tuple[str, ...], int] = {}
        self.layers: list[Step] = []
        for step in steps:
            if (self.is_chain or step.owns_weights) and step.key not in self.numbers:
                self.numbers[step.key] = len(self.layers)
                self.layers.append(step)

    def _is_chain(self) -> bool:
        if self.loose or len(self.inputs) != 1 or self.outputs != (self.steps[-1].result,):
            return False
        shared = [node.name for step in self.steps for node in step.weights]
        if len(shared) != len(set(shared)):
            return False
        before = self.inputs[0]
        for step in self.steps:
            if step.inputs != (before,) or step.layer is None or self.uses.get(before) != 1:
                return False
            before = step.result
        return True

    def lines(self) -> list[str]:
        if self.is_chain:
            return self._finished(self._listed("model = nn.Sequential(", ")", ""))
        lines = ["class Model(nn.Module):", "    def __init__(self):", "        super().__init__()"]
        if self.layers:
            lines += self._listed("self.m = nn.ModuleList([", "])", "        ")
        if self.loose:
            lines += self._parameters()
        names = [f"x{number}" for number in range(1, len(self.inputs) + 1)] if len(self.inputs) > 1 else ["x"]
        lines += ["", f"    def forward(self, {', '.join(names) if self.inputs else ''}):".replace(", )", ")")]
        lines += [f"        {line}" for line in self._forward(dict(zip(self.inputs, names, strict=False)))]
        return [*lines, "", *self._finished(["model = Model()"])]

    def _finished(self, made: list[str]) -> list[str]:
        """The model of these lines in its dtype, mode and layout, on its device."""
        suffix = f".to(torch.{self.dtype})" if self.dtype not in (None, "float32") else ""
        suffix += ".eval()" if self.is_evaluated else ""
        suffix += f'.to("{self.device}")' if self.device != "cpu" else ""
        whole, single = self._layouts()
        suffix += whole
        made[-1] += suffix
        return [*made, *single]

    def _layouts(self) -> tuple[str, list[str]]:
        """What gives the weights their recorded layout: one call for all, else lines for those that need it."""
        where = "model" if self.is_chain else "model.m"
        layouts: dict[str | None, list[int]] = {}  # the numbers of the layers by the format of their weights
        odd: list[str] = []
        for number, step in enumerate(self.layers):
            layout = step.weights[0].layout if step.weights else None
            if layout is None or len(layout.shape) not in CHANNELS_LAST_BY_RANK:
                continue
            shape, stride = sizes(layout.shape), sizes(layout.stride)
            if stride == _channels_last_stride(shape) != contiguous_stride(shape):
                layouts.setdefault(CHANNELS_LAST_BY_RANK[len(shape)], []).append(number)
            elif stride == contiguous_stride(shape):
                layouts.setdefault(None, []).append(number)
            elif not _is_contiguous(shape, stride):
                text = f"torch.empty_strided({written(shape)}, {written(stride)})"
                odd.append(f"{where}[{number}].weight.data = {text}.copy_({where}[{number}].weight.data)")
        (first, *others) = layouts or {None: []}
        if first is not None and not others and not odd:
            return f".to(memory_format=torch.{first})", []
        lines = []
        for name, numbers in layouts.items():
            if name is not None:
                lines.append(f"for i in {written(tuple(numbers))}:")
                lines.append(f"    {where}[i].weight.data = {where}[i].weight.data.to(memory_format=torch.{name})")
        return "", lines + odd

    def _listed(self, opening: str, closing: str, indent: str) -> list[str]:
        """A list of the layers, on one line or on several full ones."""
        items = [self._made(step) for step in self.layers]
        on_one_line = f"{indent}{opening}{', '.join(items)}{closing}"
        if len(on_one_line) <= WIDTH - 30:
            return [on_one_line]
        return [indent + opening, *packed(items, indent + "    "), indent + closing]

    def _made(self, step: Step) -> str:
        text = str(step.layer)
        dtype = step.weights[0].dtype if step.weights else None
        if self.dtype is None and dtype in _FLOATS and dtype != "float32":
            text += f".to(torch.{dtype})"
        return f"{text}.eval()" if step.is_evaluated and not self.is_evaluated else text

    def _parameters(self) -> list[str]:
        lines = ["        self.p = nn.ParameterList(["]
        for node in self.loose:
            if node.dtype not in _FLOATS:
                raise CannotWriteError("the model reads a tensor of integers that is none of its inputs")
            lines.append(f"            {tensor_code(node, is_parameter=True)},")
        return [*lines, "        ])"]

    def _forward(self, names: dict[str, str]) -> list[str]:
        statements = self._statements(names)
        lines = ["m = self.m"] if len(self.layers) > 3 and any(_LAYER.search(line) for line in statements) else []
        if not lines:
            statements = [_LAYER.sub("self.m[", line) for line in statements]
        lines += ["p = self.p"] if self.loose else []
        lines += statements
        returned = ", ".join(names[output] for output in self.outputs)
        before, _, expression = lines[-1].partition(" = ")
        if before == returned and len(self.outputs) == 1:
            return [*lines[:-1], f"return {expression}"]
        return [*lines, f"return {returned}"]

    def _statements(self, names: dict[str, str]) -> list[str]:
        """One line for each step, or for several where each is read by the next one alone."""
        last = {name: index for index, step in enumerate(self.steps) for name in step.inputs}
        last.update(dict.fromkeys(self.outputs, len(self.steps)))
        names.update({node.name: f"p[{number}]" for number, node in enumerate(self.loose)})
        statements: list[str] = []
        pending: tuple[str, str] | None = None  # name, expression
        for index, step in enumerate(self.steps):
            if pending is not None and len(pending[1]) + len(step.call) > _LONGEST_EXPRESSION:
                statements.append(self._assigned(pending, names, last, index - 1))
                pending = None
            pending = self._expression(step, names, pending)
            following = self.steps[index + 1 : index + 2]
            if self.uses[step.result] != 1 or not any(step.result in other.inputs for other in following):
                statements.append(self._assigned(pending, names, last, index))
                pending = None
        return statements

    def _expression(self, step: Step, names: dict[str, str], pending: tuple[str, str] | None) -> tuple[str, str]:
        texts = [pending[1] if pending is not None and name == pending[0] else names[name] for name in step.inputs]
        if step.owns_weights:
            return step.result, f"m[{self.numbers[step.key]}]({texts[0]})"
        is_operator = _OPERATOR.match(step.call) is not None
        if is_operator or step.call.startswith("{0}"):
            texts = [f"({text})" if _is_operation(text) else text for text in texts]
        return step.result, re.sub(r"\{(\d+)\}", lambda match: texts[int(match[1])], step.call)

    def _assigned(self, pending: tuple[str, str], names: dict[str, str], last: dict[str, int], index: int) -> str:
        result, expression = pending
        dead = [name for name in names if last.get(name, -1) <= index and not names[name].startswith("p[")]
        taken = {names[name] for name in names if name not in dead}
        preferred = [name for name in ("x", *_NAMES, *(f"v{number}" for number in range(1, 500))) if name not in taken]
        for name in dead:
            del names[name]
        names[result] = preferred[0]
        return f"{names[result]} = {expression}"


def _is_operation(text: str) -> bool:
    """Whether an operator stands outside of all brackets."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0 and text[position : position + 3] in (" + ", " - ", " * ", " / "):
            return True
    return False


def packed(items: Sequence[str], indent: str) -> list[str]:
    """Items of a list, as many on a line as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{indent}{item},")
    return lines
