"""
Reads the structured log that ``TORCH_TRACE`` writes: FX nodes, buffers and layout decision of each compiled graph.

A record begins with a line of a glog prefix and a JSON object; the lines of its payload begin with a tab. For each
compile, two payloads are read: the graph after Inductor's passes, and the code generated from this graph. Only both
together show which node's value a buffer holds.

Source:
    ``trace_structured``, torch/_logging/_internal.py; its calls in torch/_dynamo, torch/_functorch and torch/_inductor;
    torch 2.13.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import msgspec

from layoutdoctor.diagnosis import Buffer, FxNode, Graph, GraphDirection, SourceLocation
from layoutdoctor.diagnosis.graph import base_name
from layoutdoctor.diagnosis.saved import UNREADABLE
from layoutdoctor.errors import first_line
from layoutdoctor.recording.decision import FxCall, FxTensor, derived_decision
from layoutdoctor.recording.generated_code import GeneratedCode, layout_in, names_in
from layoutdoctor.recording.recording import Problem
from layoutdoctor.recording.table import text_encoding
from layoutdoctor.recording.weights import SAME, behind, placeholder_kinds, weight_of
from layoutdoctor.words import DTYPES, described

if TYPE_CHECKING:
    from layoutdoctor.recording.files import TraceFile

RECORD = re.compile(r"(?:\[rank\d+\]:)?[VDIWEC]\d{4} [\d:.]+ \d+ [^{\n]*\] (\{.*)")
"""The first line of a record; group 1 is the JSON object."""
_GRAPH, _CODE, _TRACED = "inductor_post_grad_graph", "inductor_output_code", "dynamo_output_graph"
_WANTED = frozenset(
    f"{_GRAPH} {_CODE} {_TRACED} torch_version describe_source aot_forward_graph_fw_metadata fx_graph_runnable "
    "dynamo_graph_break_reason recompile_reasons".split()
)


@dataclass
class TorchTrace:
    """
    The contents of a log: the compiled graphs, and why graphs broke or were compiled again.

    Attributes:
        torch: Torch's version; None if the log does not have it.
        devices: Device types such as ``cuda``, one for each tensor in the graphs' texts.
        break_reasons: Reason of each graph break, in one line.
        recompile_reasons: Reason of each recompilation, in one line.
    """

    graphs: list[Graph] = field(default_factory=list)
    torch: str | None = None
    devices: list[str] = field(default_factory=list)
    break_reasons: list[str] = field(default_factory=list)
    recompile_reasons: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def _records(file: TraceFile) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yields name, object and payload of each wanted record; the payload is empty if it is cut off or damaged."""
    encoding = text_encoding(file.head())
    record: dict[str, Any] = {}
    payload: list[str] = []
    for line in chain(file.text_lines(encoding), [""]):  # the empty line ends the last record
        if line.startswith("\t"):
            if record:
                payload.append(line[1:])
            continue
        text, known = "\n".join(payload), record.get("has_payload")
        is_whole = known is None or hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == known
        for name in _wanted_names(record):
            yield name, record, text if is_whole else ""
        record, payload = _wanted_record(line), []


def _wanted_record(line: str) -> dict[str, Any]:
    """Decodes the object in the first line of a wanted record; empty for any other line."""
    found = RECORD.match(line.removeprefix("\ufeff"))
    if found is None:
        return {}
    try:
        record = msgspec.json.decode(found[1], type=dict[str, Any])
    except UNREADABLE:
        return {}
    return record if _wanted_names(record) else {}


def _wanted_names(record: Mapping[str, Any]) -> frozenset[str]:
    artifact = record.get("artifact")
    return _WANTED.intersection([str(artifact.get("name"))] if isinstance(artifact, dict) else record)


def read_torch_trace(file: TraceFile) -> TorchTrace:
    """Reads a log. Each part that an incomplete log lacks becomes a problem. Raises the errors of ``TraceFile``."""
    trace = TorchTrace()
    modules: dict[str, str] = {}
    seen: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, record, payload in _records(file):
        of_compile = seen[str([record.get(key) for key in ("rank", "frame_id", "frame_compile_id")])]
        if name == "describe_source":
            fields = record.get(name)
            source = str(fields.get("source")) if isinstance(fields, dict) else ""
            if path := ".".join(re.findall(r"_modules\['([^']+)'\]", source)):
                modules[_mangled(source)] = path
        elif name == "torch_version":
            version = re.search(r'"pytorch_version": "([^"]+)"', payload)
            trace.torch = version[1] if version else None
        elif name in ("dynamo_graph_break_reason", "recompile_reasons"):
            reasons = trace.break_reasons if name.startswith("dynamo") else trace.recompile_reasons
            reasons.append(first_words(payload))
        elif name == _CODE:
            graph, text = f"graph {len(trace.graphs)}", of_compile.pop(_GRAPH, "")
            try:
                if not payload:
                    trace.problems.append(Problem(f"{graph} is cut off or damaged in the log"))
                trace.graphs.append(_graph(graph, text, payload, of_compile, modules, trace))
            except Exception as error:  # the other graphs are kept if one has an unknown form
                what = f"no part of the graph could be read: {first_line(error)}"
                trace.graphs.append(Graph(name=graph, direction="inference", decision=None, hook_failure=what))
        elif name == "fx_graph_runnable":
            of_compile[name] = "\n".join(found[0] for found in _CONFIG.finditer(payload))
        else:
            of_compile[name] = payload
    for left in seen.values():
        if _GRAPH in left:
            what = "the log ends before the code of a graph, or Inductor failed to generate it"
            trace.problems.append(Problem(what))
    return trace


def first_words(reason: str) -> str:
    """Returns the first line of a reason that Dynamo logged."""
    return next((line.strip() for line in reason.splitlines() if line.strip()), "not said")


def _mangled(source: str) -> str:
    return re.sub(r"[\W_]+", "_", source).strip("_").lower()


@dataclass(frozen=True)
class _Line:
    """A line of a graph's text: the node, its call as Python's syntax tree, and the type of its result's device."""

    node: FxNode
    call: ast.expr | None
    device: str


_ANNOTATED = re.compile(r"(\w+)(\[[^\]]*\])(\[[^\]]*\])?(\w*)")
_FILE, _SAYS_CODE = "# File: ", ", code: "
_FILE_AND_LINE = re.compile(r"(.+):(\d+)")
_OF_TORCH = re.compile(r"/torch/(?:_\w+|nn|functional|utils|fx|autograd|amp|ao|optim|distributed|overrides)\b|^<")


def _text_lines(text: str) -> tuple[list[_Line], tuple[str | None, ...]]:
    """Parses torch's readable text of a graph. Returns the parsed lines, and the names of the graph's output nodes."""
    text = re.split(r"\n[ \t]*class ", text.lstrip())[0]  # sub-graphs follow
    head, _, body = text.partition("):\n        ")
    given = re.findall(r"\b\w+ ?: ?\"[^\"]*\"", head.partition("forward(")[2])
    found: dict[str, _Line] = {}
    place: dict[str, Any] = {}
    returned: tuple[str | None, ...] = ()
    for line in (*given, *filter(None, map(str.strip, body.split("\n")))):
        if location := _location_in(line):
            is_users = _OF_TORCH.search(location.file) is None
            place = {"location": location if is_users else None, "is_called_directly": is_users}
        elif "No stacktrace" in line:
            place = {}
        if line.startswith("#"):
            continue
        try:
            statements = ast.parse(line).body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            continue
        match statements[:1]:
            case [ast.Return(value=ast.Tuple(elts=parts) | ast.List(elts=parts))]:
                returned = tuple(part.id if isinstance(part, ast.Name) else None for part in parts)
            case [ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Constant(value=str(note)), value=value)]:
                found[name] = _line(name, note, value, found, place)
            case [ast.Assign(targets=[ast.Name(id=name)], value=value)]:
                found[name] = _line(name, "", value, found, place)
            case _:
                pass
    return list(found.values()), returned


def _location_in(line: str) -> SourceLocation | None:
    """Reads the source line from a comment such as ``# File: /x.py:3 in forward, code: return self.b(x)``."""
    where, said, code = line.removeprefix(_FILE).partition(_SAYS_CODE)
    if not said or not line.startswith(_FILE):
        return None
    for place in (where.rpartition(" in ")[0], where):
        if found := _FILE_AND_LINE.fullmatch(place):
            return SourceLocation(file=found[1], line=int(found[2][-9:]), code=code.strip() or None)
    return None


def _line(name: str, note: str, value: ast.expr | None, known: Mapping[str, _Line], place: Mapping[str, Any]) -> _Line:
    op, index = "call_function", None
    match value:
        case None:
            op, target = "placeholder", name
        case ast.Call(func=function):
            target = ast.unparse(function).removeprefix("torch.ops.").removeprefix("higher_order.")
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int(number))):
            target, index = "<built-in function getitem>", number
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            op, target = "get_attr", attribute
        case _:
            target = ast.unparse(value)
    facts, device = dict[str, Any](place), ""
    if (written := _ANNOTATED.match(note)) is not None:
        dtype, shape, stride, device = written.groups("")
        facts["dtype"] = {"b8": "bool"}.get(dtype) or DTYPES.get(dtype, dtype)
        facts["layout"] = layout_in(_parsed(shape), _parsed(stride))
    node = FxNode(
        name=name,
        op=op,
        target=target,
        inputs=tuple(one for one in names_in(value) if one in known),
        result_index=index,
        **facts,
    )
    return _Line(node, value, device)


def _parsed(sizes: str) -> ast.expr:
    return ast.parse(sizes or "None", mode="eval").body


_REDUCTIONS = frozenset("sum mean var var_mean amax amin max min prod any all argmax argmin std".split())
_MOST_TRIED = 24
_VIEWS = SAME - {"_to_copy", "convert_element_type", "clone"}


def _only_moves(buffer: Buffer) -> bool:
    """Whether a buffer is only a copy or a cast of another buffer, made by a generated kernel."""
    return not buffer.is_extern and len(buffer.reads) == 1 and {"to_dtype"}.issuperset(buffer.operations)


class _Flow:
    """Finds the node whose value each buffer holds, from a graph's text and its code."""

    def __init__(self, nodes: Sequence[FxNode], returned: Sequence[str | None], code: GeneratedCode) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.code = code
        self.value: dict[str, str] = {name: name for name in code.inputs if name in self.nodes}
        self.of_views: set[str] = set()
        self._match_calls()
        for written, result in zip(code.returned, returned, strict=False):
            if written is not None and result is not None:
                self.value.setdefault(written, behind(result, self.nodes, _VIEWS))
        for buffer in reversed(list(code.buffers.values())):
            if buffer.name in self.value and _only_moves(buffer) and buffer.reads[0] in code.buffers:
                self.value.setdefault(buffer.reads[0], self.value[buffer.name])
        self._match_loops()

    def _origin(self, name: str) -> str:
        """Returns the buffer or input that a buffer was copied or cast from, through any number of copies."""
        buffer = self.code.buffers.get(name)
        while buffer is not None and _only_moves(buffer):
            name = buffer.reads[0]
            buffer = self.code.buffers.get(name)
        return name

    def _match_calls(self) -> None:
        left: dict[str, list[FxNode]] = defaultdict(list)
        for node in self.nodes.values():
            if node.op == "call_function":
                left[base_name(node.target)].append(node)
        parts = {(node.inputs[0], node.result_index): node.name for node in left["getitem"] if node.inputs}
        for name, (function, given) in self.code.calls.items():
            inputs = {part for part in map(self._origin, given) if part in self.code.inputs}
            fitting = left[base_name(function).removeprefix("bias_")]
            same = [node for node in fitting if self._inputs_behind(node) == inputs] or fitting
            if not same:
                continue
            node = same[0]
            fitting.remove(node)
            self.value[name] = node.name
            if len(given) == len(node.inputs):
                for part, argument in zip(given, node.inputs, strict=True):
                    if part not in self.value:
                        self.value[part] = behind(argument, self.nodes, _VIEWS)
                        self._note_view(part, argument)
            for (call, index), result in self.code.results.items():
                if call == name and (node.name, index) in parts:
                    self.value[result] = parts[node.name, index]

    def _note_view(self, name: str, argument: str) -> None:
        """Adds a buffer to ``of_views`` if it has the shape of the call's argument, and not the shape of its node."""
        layouts = self.code.layout_of(name), self.nodes[argument].layout, self.nodes[self.value[name]].layout
        shapes = [layout.shape if layout is not None else None for layout in layouts]
        if shapes[0] == shapes[1] != shapes[2]:
            self.of_views.add(name)

    def _inputs_behind(self, node: FxNode) -> set[str]:
        return {behind(one, self.nodes, SAME) for one in node.inputs}.intersection(self.code.inputs)

    def _match_loops(self) -> None:
        """
        Finds the nodes of the remaining buffers: they are no outputs, and no library call writes or reads them.

        A candidate is a node that can be computed from exactly the values that the buffer's loop reads. For each
        candidate, the loops that read the buffer and can then be computed are counted. The candidate with the highest
        count is chosen; among equals, the last candidate in the graph.
        """
        for buffer in self.code.buffers.values():
            if buffer.name in self.value or buffer.is_extern:
                continue
            readers = [one for one in self.code.buffers.values() if buffer.name in one.reads and not one.is_extern]
            counts: dict[str, int] = {}
            for name in self._computed_by(buffer)[: -_MOST_TRIED - 1 : -1]:
                self.value[buffer.name] = name
                counts[name] = sum(bool(self._computed_by(reader)) for reader in readers[:_MOST_TRIED])
            if counts:
                self.value[buffer.name] = max(counts, key=counts.__getitem__)

    def _computed_by(self, buffer: Buffer) -> list[str]:
        """Returns the nodes of the buffer's size that can be computed from exactly the values that its loop reads."""
        wanted, values = {self.value.get(name) for name in buffer.reads}, set(self.value.values())
        if not wanted or None in wanted or buffer.layout is None:
            return []
        reads_of: dict[str, set[str]] = {}
        found = []
        for node in self.nodes.values():
            is_new = node.op == "call_function" and node.name not in values
            if not is_new or (node.inputs and not any(one in wanted or one in reads_of for one in node.inputs)):
                continue
            reads = {read for one in node.inputs for read in reads_of.get(one, {one})}
            if base_name(node.target) in _REDUCTIONS and not buffer.is_reduction:
                reads.add(node.name)
            reads_of[node.name] = reads
            if reads == wanted and node.layout and node.layout.element_count == buffer.layout.element_count:
                found.append(node.name)
        return found[:1] if buffer.is_reduction else found

    def buffers(self, visible: set[str | None] | None) -> tuple[Buffer, ...]:
        """Returns the buffers with their nodes. ``visible`` names the buffers that the user gets; None if not known."""
        values = set(self.value.values())
        returned = set(self.code.returned)
        found = []
        for buffer in self.code.buffers.values():
            node = self.nodes.get(self.value.get(buffer.name, ""))
            calls = self.code.calls.items()
            readers = [self.value[call] for call, (_, given) in calls if buffer.name in given and call in self.value]
            facts: dict[str, Any] = {"is_user_output": None if visible is None else buffer.name in visible}
            origins: list[str] = []
            if node is not None:
                origins = self._between(node.name, values)
                is_view = buffer.name in self.of_views - returned
                facts |= {"dtype": buffer.dtype or node.dtype, "source_node": None if is_view else node.name}
            facts["origins"] = tuple(origins) if buffer.is_extern else (*origins, *readers)
            facts["is_output"] = buffer.is_output or buffer.name in returned
            found.append(msgspec.structs.replace(buffer, **facts))
        return tuple(found)

    def _between(self, name: str, values: set[str]) -> list[str]:
        """Returns a node and the nodes that were fused into it, whose values no buffer holds."""
        found = [name]
        for one in found:
            found += [two for two in dict.fromkeys(self.nodes[one].inputs) if two not in found and two not in values]
        return [one for one in found if self.nodes[one].op != "placeholder"]


_CONFIG = re.compile(r"^torch\._inductor\.config\.(\w+) = (True|False)$", re.MULTILINE)


def _graph(
    name: str,
    text: str,
    code_text: str,
    of_compile: Mapping[str, str],
    modules: Mapping[str, str],
    trace: TorchTrace,
) -> Graph:
    """Builds the record of a compiled graph; without the FX graph's text, the record has no nodes and no decision."""
    found = re.search(r"^# AOT ID: \['\d+_(inference|forward|backward)'", code_text, re.MULTILINE)
    named = found[1] if found else "inference"
    lines, returned = _text_lines(text)
    names = [line.node.name for line in lines]
    direction: GraphDirection = "inference"
    if any("tangents" in one for one in names) or named == "backward":
        direction = "backward"
    elif any(one.startswith("primals") for one in names) or named == "forward":
        direction = "forward"
    code = GeneratedCode(code_text)
    lines = _with_names(lines, _text_lines(of_compile.get(_TRACED, ""))[0], modules, direction)
    trace.devices += [line.device for line in lines if line.device]
    nodes = tuple(line.node for line in lines)
    visible: set[str | None] | None = set(code.returned) if direction == "inference" else None
    if direction == "forward" and (metadata := of_compile.get("aot_forward_graph_fw_metadata")):
        changed = re.search(r"mutated_inp_runtime_indices=\[([\d, ]*)\]", metadata)
        first = len(re.findall(r"\d+", changed[1])) if changed else 0
        visible = set(code.returned[first : first + metadata.count("OutputAliasInfo(")])
    flow = _Flow(nodes, returned, code)
    buffers = flow.buffers(visible)
    problems: dict[str, list[str]] = {}
    for one, problem in (*((node.name, _problem(node)) for node in nodes), *((b.name, b.problem) for b in buffers)):
        if problem is not None:
            problems.setdefault(problem, []).append(one)
    settings = dict(_CONFIG.findall(of_compile.get("fx_graph_runnable", "")))
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
        hook_failure=None if lines else "the log lacks the graph's text, so its lines and decision are not known",
        not_understood=described(problems),
    )


KNOWN_NAMESPACES = frozenset("aten prims inductor inductor_prims prim mkldnn onednn rngprims".split())


def _problem(node: FxNode) -> str | None:
    """Returns the reason why a node cannot be followed; None if it can be followed."""
    namespace, dot, _ = node.target.partition(".")
    if node.op == "call_function" and node.target.isidentifier():
        return f"sub-graph ({node.target})"
    if node.op == "call_function" and "quantize" in node.target:
        return "quantised operation"
    if node.op == "call_function" and dot and namespace.isidentifier() and namespace not in KNOWN_NAMESPACES:
        return f"custom operation ({node.target})"
    if "as_strided" in node.target and "as_strided" in (node.called or ""):
        return "aliasing view (as_strided)"
    has_symbols = node.layout is not None and any(isinstance(size, str) for size in node.layout.shape)
    return "symbolic sizes" if has_symbols else None


def _calls(lines: Sequence[_Line]) -> Iterator[FxCall]:
    tensors = {line.node.name: FxTensor(line.node.layout, line.device) for line in lines}
    for line in lines:
        if isinstance(line.call, ast.Call):
            node = line.node
            args = tuple(_argument(part, tensors) for part in line.call.args)
            is_aten = node.target.startswith("aten.")
            yield FxCall(node.name, node.target, args, tensors[node.name], is_aten, node.location, node.module)


def _argument(node: ast.expr, tensors: Mapping[str, FxTensor]) -> Any:
    if isinstance(node, ast.Name):
        return tensors.get(node.id)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


_NUMBER = re.compile(r"(?:arg(\d+)_1|primals_(\d+))$")


def _with_names(
    lines: Sequence[_Line], traced: Sequence[_Line], modules: Mapping[str, str], direction: GraphDirection
) -> list[_Line]:
    """Adds to inputs their kind, to operations the function that the model called, to convolutions their module."""
    at_line: dict[SourceLocation | None, list[FxNode]] = defaultdict(list)
    for line in traced:
        if isinstance(line.call, ast.Call) and line.node.location is not None:
            at_line[line.node.location].append(line.node)
    given = [line.node for line in traced if line.node.op == "placeholder"]
    nodes = {line.node.name: line.node for line in lines}
    kinds = placeholder_kinds(nodes.values(), direction)
    found = []
    for line in lines:
        node, module, called = line.node, None, None
        if node.op == "call_function":
            fitting = at_line.get(node.location, [])
            same = [other for other in fitting if other.layout == node.layout] or fitting
            names = {other.target.rpartition(".")[2] for other in same}
            called = names.pop() if len(names) == 1 else None
            if (number := _NUMBER.match(weight_of(node, nodes) or "")) is not None:
                index = int(number[1]) if number[1] else int(number[2]) - 1
                module = modules.get(_mangled(given[index].name)) if index < len(given) else None
        node = msgspec.structs.replace(node, called=called, module=module, tensor=kinds.get(node.name))
        found.append(replace(line, node=node))
    return found
