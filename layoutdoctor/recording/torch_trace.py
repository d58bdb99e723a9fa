"""
The structured log that ``TORCH_TRACE`` writes, as compiled graphs: FX nodes, buffers and the layout decision.

A line has a glog prefix and a JSON object; the lines of its payload begin with a tab. Of each compile the graph after
Inductor's passes and the code generated from it are read; which node a buffer holds follows from both together.

Source:
    ``trace_structured``, torch/_logging/_internal.py; its calls in torch/_dynamo, torch/_functorch and torch/_inductor;
    torch 2.13.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis.graph import FxNode, Graph
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.subject import SourceLocation
from layoutdoctor.errors import first_line
from layoutdoctor.recording.decision import Call, Tensor, derived_decision
from layoutdoctor.recording.generated_code import GeneratedCode
from layoutdoctor.recording.recording import Problem
from layoutdoctor.words import DTYPES, described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from layoutdoctor.diagnosis.conversion import TensorKind
    from layoutdoctor.diagnosis.graph import Buffer, GraphDirection
    from layoutdoctor.recording.files import TraceFile

FIRST_LINE = re.compile(r"(?:\[rank\d+\]:)?[VDIWEC]\d{4} [\d:.]+ \d+ [^\n]*\] \{")
_RECORD = re.compile(r"(?:\[rank\d+\]:)?[VDIWEC]\d{4} [\d:.]+ \d+ .*?\] (\{.*)", re.DOTALL)
_GRAPH, _CODE, _TRACED = "inductor_post_grad_graph", "inductor_output_code", "dynamo_output_graph"
_WANTED = frozenset(
    f"{_GRAPH} {_CODE} {_TRACED} torch_version describe_source aot_forward_graph_fw_metadata fx_graph_runnable "
    "dynamo_graph_break_reason recompile_reasons".split()
)


@dataclass
class TorchTrace:
    """
    The compiles of a log.

    Attributes:
        torch: Torch's version; None if this torch does not log it.
        break_reasons: Why graphs were broken, one line each.
        recompile_reasons: Why graphs were compiled again, likewise.
    """

    graphs: list[Graph] = field(default_factory=list)
    torch: str | None = None
    devices: list[str] = field(default_factory=list)
    break_reasons: list[str] = field(default_factory=list)
    recompile_reasons: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def _records(file: TraceFile) -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Names, objects and payloads of the records wanted; the payload is None if the log ends within it."""
    head: tuple[str, dict[str, Any]] | None = None
    payload: list[str] = []
    for line in (*_lines(file), ""):
        if line.startswith("\t"):
            payload.append(line[1:])
            continue
        if head is not None:
            text, known = "\n".join(payload), head[1].get("has_payload")
            is_whole = known is None or hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == known
            yield *head, text if is_whole else None
        head, payload = None, []
        if found := _RECORD.match(line):
            try:
                record = json.loads(found[1])
            except ValueError:
                continue
            name = record["artifact"].get("name") if isinstance(record.get("artifact"), dict) else None
            name = name or next((key for key in record if key in _WANTED), None)
            head = (name, record) if name in _WANTED else None


def _lines(file: TraceFile) -> Iterator[str]:
    rest = b""
    for piece in file.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in lines)
    yield rest.decode("utf-8", "replace")


def read_torch_trace(file: TraceFile) -> TorchTrace:
    """Reads a log as far as it goes; a graph of which a part is missing is counted as a problem."""
    trace = TorchTrace()
    modules: dict[str, str] = {}
    seen: defaultdict[tuple[Any, ...], dict[str, str | None]] = defaultdict(dict)
    for name, record, payload in _records(file):
        compile_id = tuple(record.get(key) for key in ("rank", "frame_id", "frame_compile_id"))
        of_compile = seen[compile_id]
        if name == "describe_source":
            source = str(record[name].get("source"))
            if path := ".".join(re.findall(r"_modules\['([^']+)'\]", source)):
                modules[_mangled(source)] = path
        elif name == "torch_version":
            version = re.search(r'"pytorch_version": "([^"]+)"', payload or "")
            trace.torch = version[1] if version else None
        elif name in ("dynamo_graph_break_reason", "recompile_reasons"):
            reasons = trace.break_reasons if name.startswith("dynamo") else trace.recompile_reasons
            reasons.append(next((line.strip() for line in (payload or "").splitlines() if line.strip()), "not said"))
        elif name == _CODE:
            graph, text = f"graph {len(trace.graphs)}", of_compile.pop(_GRAPH, None)
            try:
                if payload is None:
                    trace.problems.append(Problem(f"{graph} is cut off or damaged in the log", is_loss=True))
                trace.graphs.append(_graph(graph, text, payload or "", of_compile, modules, trace))
            except Exception as error:  # a graph of a form that nobody here has seen costs only itself
                what = f"nothing of it could be read: {first_line(error)}"
                trace.graphs.append(Graph(name=graph, direction="inference", decision=None, hook_failure=what))
        else:
            of_compile[name] = payload
    for left in seen.values():
        if _GRAPH in left:
            what = "the log ends before the code of a graph, or Inductor failed to generate it"
            trace.problems.append(Problem(what, is_loss=True))
    return trace


def _mangled(source: str) -> str:
    return re.sub(r"[\W_]+", "_", source).strip("_").lower()


@dataclass(frozen=True)
class _Line:
    """A line of a graph's text: the node, its call as Python reads it, and the device of its result."""

    node: FxNode
    call: ast.expr | None
    device: str | None


_ANNOTATED = re.compile(r"(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(\w*)")
_FILE = re.compile(r"\s*# File: (.*):(\d+)(?: in .*?)?, code: (.*)")
_OF_TORCH = re.compile(r"/torch/(?:_\w+|nn|functional|utils|fx|autograd|amp|ao|optim|distributed|overrides)\b|^<")


def _text_lines(text: str) -> tuple[list[_Line], tuple[str | None, ...]]:
    """The nodes of a graph in torch's own readable text, and those it returns."""
    text = re.split(r"\n\s*class ", text.lstrip().removeprefix("class "))[0]  # sub-graphs follow
    head, _, body = text.partition("):\n        ")
    found = [
        _line(name, "placeholder", name, note, None, None, ())
        for name, note in re.findall(r"(\w+)\s*:\s*\"([^\"]*)\"", head.partition("forward(")[2])
    ]
    known = {line.node.name for line in found}
    place: tuple[SourceLocation | None, bool | None] = (None, None)
    returned: tuple[str | None, ...] = ()
    for line in body.split("\n"):
        if of_file := _FILE.match(line):
            is_users = _OF_TORCH.search(of_file[1]) is None
            location = SourceLocation(file=of_file[1], line=int(of_file[2]), code=of_file[3].strip() or None)
            place = (location if is_users else None, is_users)
        elif "No stacktrace" in line:
            place = (None, None)
        elif line.strip() and not line.lstrip().startswith("#"):
            try:
                statement = ast.parse(line.strip()).body[0]
            except SyntaxError:
                continue
            match statement:
                case ast.Return(value=value) if value is not None:
                    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
                    returned = tuple(part.id if isinstance(part, ast.Name) else None for part in parts)
                case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Constant(value=note), value=value):
                    found.append(_of_value(name, str(note), value, known, place))
                    known.add(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    found.append(_of_value(name, "", value, known, place))
                    known.add(name)
                case _:
                    pass
    return found, returned


def _of_value(name: str, note: str, value: ast.expr | None, known: set[str], place: tuple[Any, Any]) -> _Line:
    inputs = tuple(_named(value, known)) if value is not None else ()
    target, op, index = ast.unparse(value) if value is not None else "", "call_function", None
    match value:
        case ast.Call(func=function):
            target = ast.unparse(function).removeprefix("torch.ops.").removeprefix("higher_order.")
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int(number))):
            target, index = "<built-in function getitem>", number
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            target, op = attribute, "get_attr"
        case _:
            pass
    return _line(name, op, target, note, value, index, inputs, *place)


def _named(node: ast.AST, known: set[str]) -> Iterator[str]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.Name):
            if part.id in known:
                yield part.id
        else:
            yield from _named(part, known)


def _line(
    name: str,
    op: str,
    target: str,
    note: str,
    value: ast.expr | None,
    index: int | None,
    inputs: tuple[str, ...],
    location: SourceLocation | None = None,
    is_users: bool | None = None,
) -> _Line:
    layout, dtype, device = None, None, None
    if found := _ANNOTATED.match(note):
        sizes, steps = (_sizes(part) for part in (found[2], found[3]))
        layout = strided_layout(sizes, steps) if found[3] is not None and len(sizes) == len(steps) else None
        dtype, device = {"b8": "bool"}.get(found[1]) or DTYPES.get(found[1], found[1]), found[4] or None
    node = FxNode(
        name=name,
        op=op,
        target=target,
        inputs=inputs,
        layout=layout,
        dtype=dtype,
        location=location,
        result_index=index,
        is_called_directly=is_users,
    )
    return _Line(node, value, device)


def _sizes(text: str | None) -> list[int | str]:
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    return [int(part) if part.isdigit() else part for part in parts]


def _base(target: str) -> str:
    """``convolution`` of ``aten.convolution.default`` and ``extern_kernels.convolution`` alike."""
    if target.endswith("getitem>"):
        return "getitem"
    parts = target.removeprefix("torch.ops.").removeprefix("bias_").split(".")
    return parts[1].removeprefix("bias_") if len(parts) > 1 else parts[0]


_SAME = frozenset(
    "_to_copy convert_element_type clone alias detach view _unsafe_view reshape unsqueeze squeeze permute transpose t "
    "expand slice select".split()
)
"""Operations whose result is their first argument's elements, seen, cast or copied."""
_REDUCTIONS = frozenset("sum mean var var_mean amax amin max min prod any all argmax argmin std".split())
_MOST_TRIED = 24
_VIEWS = _SAME - {"_to_copy", "convert_element_type", "clone"}


def _only_moves(buffer: Buffer) -> bool:
    """Whether a loop copies one other buffer, or casts it."""
    return not buffer.is_extern and len(buffer.reads) == 1 and {"to_dtype"}.issuperset(buffer.operations)


class _Flow:
    """A graph's text and its code together: which node's value a buffer holds."""

    def __init__(self, lines: Sequence[_Line], returned: Sequence[str | None], code: GeneratedCode) -> None:
        self.nodes = {line.node.name: line.node for line in lines}
        self.code = code
        self.value: dict[str, str] = {name: name for name in code.inputs if name in self.nodes}
        self.called: dict[str, str] = {}
        self.order = {name: position for position, name in enumerate(self.nodes)}
        self.users: dict[str, list[str]] = defaultdict(list)
        self.constants: set[str] = set()
        self.of_views: set[str] = set()
        for node in self.nodes.values():
            for name in node.inputs:
                self.users[name].append(node.name)
            if node.op == "call_function" and self.constants.issuperset(node.inputs):
                self.constants.add(node.name)
        self._match_calls()
        for written, result in zip(code.returned, returned, strict=False):
            if written is not None and result is not None:
                self.value.setdefault(written, self._behind(result, _VIEWS))
        for buffer in reversed(list(code.buffers.values())):
            if buffer.name in self.value and _only_moves(buffer) and buffer.reads[0] in code.buffers:
                self.value.setdefault(buffer.reads[0], self.value[buffer.name])
        self._match_loops()

    def _behind(self, name: str, through: frozenset[str]) -> str:
        """The node that a value comes from through views, or through copies and casts as well."""
        node = self.nodes.get(name)
        while node is not None and node.op == "call_function" and _base(node.target) in through and node.inputs:
            name = node.inputs[0]
            node = self.nodes.get(name)
        return name

    def _origin(self, name: str) -> str:
        """The buffer or input that a buffer was only moved from."""
        buffer = self.code.buffers.get(name)
        while buffer is not None and _only_moves(buffer):
            name = buffer.reads[0]
            buffer = self.code.buffers.get(name)
        return name

    def _match_calls(self) -> None:
        left: dict[str, list[FxNode]] = defaultdict(list)
        for node in self.nodes.values():
            if node.op == "call_function":
                left[_base(node.target)].append(node)
        parts = {(node.inputs[0], node.result_index): node.name for node in left["getitem"] if node.inputs}
        for name, (function, given) in self.code.calls.items():
            inputs = {part for part in map(self._origin, given) if part in self.code.inputs}
            fitting = left[_base(function)]
            same = [one for one in fitting if self._inputs_behind(one) == inputs] or fitting
            if not same:
                continue
            node = same[0]
            fitting.remove(node)
            self.called[name] = self.value[name] = node.name
            if len(given) == len(node.inputs):
                for part, argument in zip(given, node.inputs, strict=True):
                    if part not in self.value:
                        self.value[part] = self._behind(argument, _VIEWS)
                        self._note_view(part, argument)
            for (call, index), result in self.code.results.items():
                if call == name and (node.name, index) in parts:
                    self.value[result] = parts[node.name, index]

    def _note_view(self, name: str, argument: str) -> None:
        """A buffer that was made for a call which reads a view: it holds the view, and no node in memory."""
        layouts = self.code.layout_of(name), self.nodes[argument].layout, self.nodes[self.value[name]].layout
        shapes = [layout.shape if layout is not None else None for layout in layouts]
        if shapes[0] == shapes[1] != shapes[2]:
            self.of_views.add(name)

    def _inputs_behind(self, node: FxNode) -> set[str]:
        return {name for name in (self._behind(one, _SAME) for one in node.inputs) if name in self.code.inputs}

    def _match_loops(self) -> None:
        """
        Buffers that no call reads and that are no output: a node computed from what the loop reads, and from no more.

        Of several the one from which the loops behind it can go on; of these the last.
        """
        for buffer in self.code.buffers.values():
            if buffer.name in self.value or buffer.is_extern or (wanted := self._values_of(buffer)) is None:
                continue
            values = set(self.value.values())
            fitting = self._computed_from(buffer, wanted, values)
            if fitting:
                last = fitting[: -_MOST_TRIED - 1 : -1]
                counts = [self._goes_on(buffer, name, values) for name in last] if len(last) > 1 else [0]
                self.value[buffer.name] = last[counts.index(max(counts))]

    def _goes_on(self, buffer: Buffer, name: str, values: set[str]) -> int:
        """How many of the loops that read a buffer compute a node of the graph, if it holds this node's value."""
        readers = [one for one in self.code.buffers.values() if buffer.name in one.reads and not one.is_extern]
        known = {**self.value, buffer.name: name}
        given = ((one, self._values_of(one, known)) for one in readers[:_MOST_TRIED])
        return sum(bool(self._computed_from(one, wanted, {*values, name})) for one, wanted in given if wanted)

    def _values_of(self, buffer: Buffer, known: Mapping[str, str] | None = None) -> frozenset[str] | None:
        """The nodes whose values a loop reads; None if one is not known."""
        found = [(known or self.value).get(name) for name in buffer.reads]
        return None if None in found else frozenset(name for name in found if name is not None)

    def _computed_from(self, buffer: Buffer, wanted: frozenset[str], values: set[str]) -> list[str]:
        """Nodes of a buffer's size that loops can compute from values that are known, each of which they need."""
        behind: dict[str, frozenset[str]] = {}
        left = list(wanted)
        while left:
            for user in self.users[left.pop()]:
                if user not in behind and user not in values:
                    behind[user] = frozenset()
                    left.append(user)
        size, found = buffer.layout.element_count if buffer.layout is not None else None, []
        for name in sorted(behind, key=self.order.__getitem__):
            node, reads = self.nodes[name], set[str]()
            for one in node.inputs:
                reads |= {one} if one in values else behind.get(one, {one} - self.constants)
            if _base(node.target) in _REDUCTIONS and not buffer.is_reduction:
                reads.add(name)
            behind[name] = frozenset(reads)
            if reads == wanted and node.layout is not None and node.layout.element_count == size:
                found.append(name)
        return found[:1] if buffer.is_reduction else found

    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers with the nodes that they come from."""
        values = set(self.value.values())
        returned = set(self.code.returned)
        found = []
        for buffer in self.code.buffers.values():
            node = self.nodes.get(self.value.get(buffer.name, ""))
            calls = self.code.calls.items()
            readers = [self.called[call] for call, (_, given) in calls if buffer.name in given and call in self.called]
            origins = dict.fromkeys(self._between(node.name, values) if node is not None else ())
            found.append(
                msgspec.structs.replace(
                    buffer,
                    dtype=buffer.dtype or (node.dtype if node is not None else None),
                    source_node=node.name if node is not None and buffer.name not in self.of_views - returned else None,
                    origins=tuple(origins) if buffer.is_extern else (*origins, *readers),
                    is_output=buffer.is_output or buffer.name in returned,
                )
            )
        return tuple(found)

    def _between(self, name: str, values: set[str]) -> Iterator[str]:
        """A node, and those behind it whose values no buffer holds."""
        left, seen = [name], {name}
        while left:
            name = left.pop()
            if self.nodes[name].op != "placeholder":
                yield name
                new = [one for one in self.nodes[name].inputs if one not in seen and one not in values]
                seen.update(new)
                left += new


_CONFIG = re.compile(r"^torch\._inductor\.config\.(\w+) = (True|False)$", re.MULTILINE)


def _graph(
    name: str,
    text: str | None,
    code_text: str,
    of_compile: Mapping[str, str | None],
    modules: Mapping[str, str],
    trace: TorchTrace,
) -> Graph:
    """A compiled graph; without its text it has buffers alone."""
    found = re.search(r"^# AOT ID: \['\d+_(inference|forward|backward)'", code_text, re.MULTILINE)
    lines, returned = _text_lines(text) if text else ([], ())
    names = [line.node.name for line in lines]
    direction: GraphDirection = "inference"
    if any("tangents" in one for one in names) or (found is not None and found[1] == "backward"):
        direction = "backward"
    elif any(one.startswith("primals") for one in names) or (found is not None and found[1] == "forward"):
        direction = "forward"
    code = GeneratedCode(code_text)
    lines = _with_names(lines, _text_lines(of_compile.get(_TRACED) or "")[0], modules)
    trace.devices += [line.device.partition(":")[0] for line in lines if line.device]
    kinds = _kinds(lines, direction)
    nodes = tuple(msgspec.structs.replace(line.node, tensor=kinds.get(line.node.name)) for line in lines)
    flow = _Flow(lines, returned, code)
    buffers = _with_outputs(flow.buffers(), code, direction, of_compile.get("aot_forward_graph_fw_metadata"))
    problems: dict[str, list[str]] = {}
    for one in nodes:
        if (problem := _problem(one)) is not None:
            problems.setdefault(problem, []).append(one.name)
    for buffer in buffers:
        if buffer.problem is not None:
            problems.setdefault(buffer.problem, []).append(buffer.name)
    settings = dict(_CONFIG.findall(of_compile.get("fx_graph_runnable") or ""))
    written = {flow.value[b.name]: b.layout for b in buffers if b.is_extern and b.layout and b.name in flow.value}
    return Graph(
        name=name,
        direction=direction,
        decision=derived_decision(
            tuple(_calls(lines)),
            len(lines) + 1,
            is_inference=direction == "inference",
            enabled=settings.get("layout_optimization") != "False",
            forced=settings.get("force_layout_optimization") == "True",
            counts_backward=re.match(r"2\.(1[4-9]|[2-9]\d)|[3-9]", trace.torch or "") is not None,
            written=written,
        )
        if lines
        else None,
        nodes=nodes,
        buffers=buffers,
        kernel_names=tuple(code.kernels),
        output_names=tuple(one for one in returned if one is not None),
        hook_failure=None if lines else "the log lacks its text, so it has no lines and no decision",
        not_understood=described(problems),
    )


_KNOWN_NAMESPACES = frozenset("aten prims inductor inductor_prims prim mkldnn onednn rngprims".split())


def _problem(node: FxNode) -> str | None:
    """Why a node cannot be followed; None if it can."""
    namespace, dot, _ = node.target.partition(".")
    if node.op == "call_function" and node.target.isidentifier():
        return f"sub-graph ({node.target})"
    if node.op == "call_function" and dot and namespace.isidentifier() and namespace not in _KNOWN_NAMESPACES:
        return f"custom operation ({node.target})"
    if "as_strided" in node.target and "as_strided" in (node.called or ""):
        return "aliasing view (as_strided)"
    has_symbols = node.layout is not None and any(isinstance(size, str) for size in node.layout.shape)
    return "symbolic sizes" if has_symbols else None


def _calls(lines: Sequence[_Line]) -> Iterator[Call]:
    tensors = {line.node.name: Tensor(line.node.layout, (line.device or "").partition(":")[0]) for line in lines}
    for line in lines:
        if isinstance(line.call, ast.Call):
            node = line.node
            args = tuple(_argument(part, tensors) for part in line.call.args)
            is_aten = node.target.startswith("aten.")
            yield Call(node.name, node.target, args, tensors[node.name], is_aten, node.location, node.module)


def _argument(node: ast.expr, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(node, ast.Name):
        return tensors.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _kinds(lines: Sequence[_Line], direction: GraphDirection) -> dict[str, TensorKind]:
    """The kind of each graph input, as ``capture.session.placeholder_kinds`` has it."""
    nodes = {line.node.name: line.node for line in lines}
    inputs = [node.name for node in nodes.values() if node.op in ("placeholder", "get_attr")]
    kinds: dict[str, TensorKind] = dict.fromkeys(inputs, "activation")
    if direction == "backward":
        kinds |= {name: "gradient" for name in inputs if "tangents" in name}
    for node in nodes.values():
        if weight := _weight(node, nodes):
            kinds[weight] = "weight"
    return kinds


def _weight(node: FxNode, nodes: Mapping[str, FxNode]) -> str | None:
    """The graph input that is a convolution's weight, through casts and views."""
    position = 2 if "convolution_backward" in node.target else 1
    if "convolution" not in node.target or len(node.inputs) <= position:
        return None
    name = node.inputs[position]
    while nodes[name].op == "call_function" and _base(nodes[name].target) in _SAME and nodes[name].inputs:
        name = nodes[name].inputs[0]
    return name if nodes[name].op in ("placeholder", "get_attr") else None


_NUMBER = re.compile(r"(?:arg(\d+)_1|primals_(\d+))$")


def _with_names(lines: list[_Line], traced: Sequence[_Line], modules: Mapping[str, str]) -> list[_Line]:
    """The lines with what the traced graph says: which function the model called, and the module of a weight."""
    at_line: dict[SourceLocation | None, list[_Line]] = defaultdict(list)
    for line in traced:
        if isinstance(line.call, ast.Call) and line.node.location is not None:
            at_line[line.node.location].append(line)
    given = [line.node for line in traced if line.node.op == "placeholder"]
    nodes = {line.node.name: line.node for line in lines}
    found = []
    for line in lines:
        node, module, called = line.node, None, None
        if node.op == "call_function":
            fitting = at_line.get(node.location, [])
            same = [other for other in fitting if other.node.layout == node.layout] or fitting
            names = {other.node.target.rpartition(".")[2] for other in same}
            called = names.pop() if len(names) == 1 else None
            if (number := _NUMBER.match(_weight(node, nodes) or "")) is not None:
                index = int(number[1]) if number[1] else int(number[2]) - 1
                module = modules.get(_mangled(given[index].name)) if index < len(given) else None
        found.append(_Line(msgspec.structs.replace(node, called=called, module=module), line.call, line.device))
    return found


def _with_outputs(
    buffers: Iterable[Buffer], code: GeneratedCode, direction: GraphDirection, metadata: str | None
) -> tuple[Buffer, ...]:
    """The buffers, and which of them the caller sees; the other outputs are saved for the backward."""
    visible: set[str | None] | None = set(code.returned) if direction == "inference" else None
    if direction == "forward" and metadata is not None:
        changed = re.search(r"mutated_inp_runtime_indices=\[([^\]]*)\]", metadata)
        first = len(re.findall(r"\d+", changed[1])) if changed else 0
        visible = set(code.returned[first : first + metadata.count("OutputAliasInfo(")])
    return tuple(
        msgspec.structs.replace(buffer, is_user_output=None if visible is None else buffer.name in visible)
        for buffer in buffers
    )
