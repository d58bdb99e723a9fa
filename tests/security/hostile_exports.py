"""
Exported programs that would run code: a genuine one is taken apart, changed in one place and put together again.

Each payload makes the file that the environment variable CANARY names, so that a test sees whether anything ran.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import stat
import struct
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

CANARY = "$CANARY"  # a shell puts the path in its place
PAYLOAD = f"__import__('os').system('touch {CANARY}')"
Parts = dict[str, bytes]
Program = dict[str, Any]


class Touch:
    """Unpickled, it runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, mode: str) -> torch.Tensor:
        return self.conv(x).relu() * 2


def genuine_export() -> bytes:
    """A convolution with a dynamic batch and a text among its inputs, as torch.export.save writes it."""
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "mode": None}
    program = torch.export.export(Net().eval(), (torch.randn(4, 3, 8, 8), "plain"), dynamic_shapes=shapes)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def parts_of(data: bytes) -> Parts:
    """What stands in an archive, by name with its folder."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts: Parts, *more: tuple[zipfile.ZipInfo | str, bytes], packed: bool = False) -> bytes:
    """An archive of parts; those in ``more`` come last, under names that a dict could not hold."""
    stream = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", kind) as archive:
        warnings.simplefilter("ignore", UserWarning)  # a name that stands twice
        for name, data in (*parts.items(), *more):
            archive.writestr(name, data)
    return stream.getvalue()


def saved(value: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    stream = io.BytesIO()
    torch.save(value, stream, **options)
    return stream.getvalue()


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


class Maker:
    """Makes changed copies of one genuine export."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.parts = parts_of(data)
        self.folder = next(iter(self.parts)).partition("/")[0]

    def name(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def replaced(self, name: str, data: bytes) -> bytes:
        return archive_of({**self.parts, self.name(name): data})

    def program(self, change: Callable[[Program], Any]) -> bytes:
        program = copy.deepcopy(json.loads(self.parts[self.name("models/model.json")]))
        change(program)
        return self.replaced("models/model.json", json.dumps(program).encode())

    def listed(self, kind: str, change: Callable[[dict[str, Any]], Any], *more: tuple[str, bytes]) -> bytes:
        """With another list of weights or constants."""
        name = self.name(f"data/{kind}/model_{kind}_config.json")
        listed = json.loads(self.parts[name])
        change(listed["config"])
        return archive_of({**self.parts, name: json.dumps(listed).encode()}, *((self.name(n), d) for n, d in more))


def everywhere(value: Any, key: str, new: Any) -> None:
    """Puts ``new`` in the place of what stands under a key, wherever that is."""
    if isinstance(value, dict):
        for name in value:
            if name == key:
                value[name] = copy.deepcopy(new)
            else:
                everywhere(value[name], key, new)
    elif isinstance(value, list):
        for item in value:
            everywhere(item, key, new)


def renamed(program: Program, old: str, new: str) -> None:
    """Another name for a value, in every place."""
    text = json.dumps(program).replace(json.dumps(old), json.dumps(new))
    program.clear()
    program.update(json.loads(text))


def graph_of(program: Program) -> Program:
    return program["graph_module"]["graph"]


def signature_of(program: Program) -> Program:
    return program["graph_module"]["module_call_graph"][0]["signature"]


def called(target: str, *arguments: str) -> Callable[[Program], Any]:
    """A node that calls something else, with texts."""

    def change(program: Program) -> None:
        node = graph_of(program)["nodes"][0]
        node["target"] = target
        node["inputs"] = [{"name": "", "arg": {"as_string": text}, "kind": 1} for text in arguments]

    return change


def container(kind: str, context: Any) -> Callable[[Program], Any]:
    leaf = {"type": None, "context": None, "children_spec": []}
    outer = {"type": kind, "context": context, "children_spec": [leaf, leaf]}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": [outer]}
    keywords = {"type": "builtins.dict", "context": "[]", "children_spec": []}
    spec = {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, keywords]}
    return lambda program: signature_of(program).update(in_spec=json.dumps([1, spec]))


def keywords(*names: str) -> Callable[[Program], Any]:
    leaf = {"type": None, "context": None, "children_spec": []}
    arguments = {"type": "builtins.tuple", "context": "null", "children_spec": []}
    named = {"type": "builtins.dict", "context": json.dumps(names), "children_spec": [leaf for _ in names]}
    spec = {"type": "builtins.tuple", "context": "null", "children_spec": [arguments, named]}
    return lambda program: signature_of(program).update(in_spec=json.dumps([1, spec]))


def input_text(text: str) -> Callable[[Program], Any]:
    """Another text among the inputs: torch compares it with the one given, in code that it writes."""

    def change(program: Program) -> None:
        specs = program["graph_module"]["signature"]["input_specs"]
        everywhere(specs, "as_string", text)
        everywhere(graph_of(program)["inputs"], "as_string", text)

    return change


def pickled_weight(maker: Maker, data: bytes) -> bytes:
    def change(config: dict[str, Any]) -> None:
        config["conv.weight"].update(path_name="weight_99", use_pickle=True)

    return maker.listed("weights", change, ("data/weights/weight_99", data))


def constant(maker: Maker, path_name: str, data: bytes) -> bytes:
    meta = {"path_name": path_name, "is_param": False, "use_pickle": True, "tensor_meta": None}
    return maker.listed("constants", lambda config: config.update(k=meta), (f"data/constants/{path_name}", data))


def old_layout(data: bytes, constants: bytes | None = None) -> bytes:
    """The same program in the layout that torch wrote before 2.8."""
    from torch._export.serde.schema import SCHEMA_VERSION
    from torch._export.serde.serialize import serialize

    program = torch.export.load(io.BytesIO(data))
    artifact = serialize(program)
    return archive_of(
        {
            "serialized_exported_program.json": artifact.exported_program,
            "serialized_state_dict.pt": artifact.state_dict,
            "serialized_constants.pt": constants or artifact.constants,
            "serialized_example_inputs.pt": artifact.example_inputs,
            "version": ".".join(map(str, SCHEMA_VERSION)).encode(),
        }
    )


def hostile_programs(maker: Maker) -> dict[str, bytes]:
    """Programs whose JSON would run code."""
    named = f"p_conv_bias=globals()[str({PAYLOAD})]"  # a default, a keyword argument and an assignment
    changes: dict[str, Callable[[Program], Any]] = {
        "an expression": lambda p: everywhere(p, "expr_str", PAYLOAD),
        "an expression in a symbol": lambda p: everywhere(p, "expr_str", f"Symbol(str({PAYLOAD}))"),
        "an expression by an attribute": lambda p: everywhere(
            p, "expr_str", "Symbol('s0').__class__.__mro__[-1].__subclasses__()"
        ),
        "an expression by SymPy": lambda p: everywhere(p, "expr_str", f"sympify({PAYLOAD!r})"),
        "an expression by lambdify": lambda p: everywhere(p, "expr_str", f"lambdify([], {PAYLOAD!r})()"),
        "an expression with a list": lambda p: everywhere(p, "expr_str", f"[{PAYLOAD} for x in (1,)]"),
        "an expression that takes for ever": lambda p: everywhere(p, "expr_str", "9**9**9**9"),
        "an expression nested deeply": lambda p: everywhere(p, "expr_str", "(" * 5000 + "1" + ")" * 5000),
        "many minus signs": lambda p: everywhere(p, "expr_str", "-" * 40000 + "1"),
        "a guard": lambda p: p.update(guards_code=[f"{PAYLOAD} == 0"]),
        "a guard by a string": lambda p: p.update(guards_code=["""L['x'].size()[0] == "') or x" """]),
        "a guard by an attribute": lambda p: p.update(guards_code=["torch.os.system('x') == 0"]),
        "a guard by a method": lambda p: p.update(guards_code=["L['x'].apply_(1) == 0"]),
        "a function of torch": called("torch.os.system", f"touch {CANARY}"),
        "a library": called("torch.ops.load_library", CANARY),
        "an operator of Python": called("_operator.call", CANARY),
        "an attribute of an operator": called("_operator.attrgetter", "__class__"),
        "a function by a module": called("math.__loader__.load_module", "antigravity"),
        "an operator that writes files": called("torch.ops.aten.save.default", CANARY),
        "an operator that maps files": called("torch.ops.aten.from_file.default", CANARY),
        "an operator's class": called("torch.ops.aten.__class__.__init__", CANARY),
        "an operator of an extension": called("#nothing:of_that_kind"),
        "a triton kernel": called("torch.ops.higher_order.triton_kernel_wrapper_mutation", "x"),
        "a name of a value": lambda p: renamed(p, "p_conv_bias", named),
        "a name of a node": lambda p: graph_of(p)["nodes"][0].update(name=f"y = {PAYLOAD} #"),
        "a name of an argument": lambda p: graph_of(p)["nodes"][0]["inputs"][0].update(name=f"a={PAYLOAD}, b"),
        "a name of a parameter": lambda p: everywhere(p, "parameter_name", f'conv.w", {PAYLOAD}) #'),
        "a name of a module": lambda p: everywhere(p, "fqn", f'conv", {PAYLOAD}) #'),
        "a parameter of forward": lambda p: signature_of(p).update(forward_arg_names=[f"x={PAYLOAD}", "mode"]),
        "a keyword of forward": keywords(f"x={PAYLOAD}", "mode"),
        "a text among the inputs": input_text(f"' or {PAYLOAD} or '"),
        "a factory": container(
            "collections.defaultdict",
            {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": ["a", "b"]},
        ),
        "an enum": container("builtins.dict", json.dumps([{"__enum__": True, "fqn": "antigravity:A", "name": "B"}])),
        "a class of a container": container("antigravity.Fly", "null"),
        "a key of a container": container("builtins.dict", json.dumps([f"'] or {PAYLOAD} or x['", "b"])),
        "a symbol to count up to": lambda p: p["range_constraints"].update(u999999999999={"min_val": 0, "max_val": 9}),
        "an object of its own": lambda p: graph_of(p)["nodes"][0]["inputs"][0].update(
            arg={"as_custom_obj": {"name": "x", "class_fqn": "__torch__.torch.classes.a.B"}}
        ),
        "a text in an unknown place": lambda p: p.update(hook=PAYLOAD),
        "deep nesting": lambda p: p["graph_module"].update(metadata={"custom": "[" * 100000}),
    }
    return {name: maker.program(change) for name, change in changes.items()}


def hostile_pickles(maker: Maker) -> dict[str, bytes]:
    """Programs whose tensors are pickles that would run code."""
    touch = Touch()
    return {
        "example inputs": maker.replaced("data/sample_inputs/model.pt", saved(((touch,), {}))),
        "example inputs of a newer pickle": maker.replaced(
            "data/sample_inputs/model.pt", saved(((touch,), {}), pickle_protocol=4)
        ),
        "example inputs without an archive": maker.replaced("data/sample_inputs/model.pt", pickle.dumps(touch)),
        "example inputs of the old kind": maker.replaced(
            "data/sample_inputs/model.pt", saved(((touch,), {}), _use_new_zipfile_serialization=False)
        ),
        "a module among example inputs": maker.replaced("data/sample_inputs/model.pt", saved(((nn.Linear(1, 1),), {}))),
        "a key of example inputs": maker.replaced(
            "data/sample_inputs/model.pt", saved((({f"'] or {PAYLOAD} or x['": torch.ones(1)},), {}))
        ),
        "a weight": pickled_weight(maker, saved({"w": touch})),
        "all weights": maker.replaced("data/weights/model.pt", saved({"conv.weight": touch})),
        "all constants": maker.replaced("data/constants/model.pt", saved({"k": touch})),
        "a constant": constant(maker, "tensor_99", saved(touch)),
        "an opaque value": constant(maker, "opaque_obj_0", pickle.dumps(touch)),
        "a ScriptObject": constant(maker, "custom_obj_0", b"PK"),
        "constants before 2.8": old_layout(maker.data, saved({"k": touch})),
        "compiled code": archive_of({**maker.parts, maker.name("data/aotinductor/model/m.so"): b"\x7fELF"}),
        "a weight elsewhere": maker.listed(
            "weights", lambda config: config["conv.weight"].update(path_name="../../../../etc/hostname")
        ),
        "a weight without end": maker.listed(
            "weights",
            lambda config: config["conv.weight"]["tensor_meta"].update(
                sizes=[{"as_int": 1 << 40}], strides=[{"as_int": 0}]
            ),
        ),
    }


def hostile_archives(maker: Maker) -> dict[str, bytes]:
    """Archives that would mislead a reader, or fill its memory."""
    data, slip = maker.data, b"x"
    directory = data.rindex(b"PK\x01\x02")
    overlapping = bytearray(data)
    overlapping[directory + 42 : directory + 46] = struct.pack("<I", 0)
    encrypted = bytearray(data)
    encrypted[directory + 8] |= 1
    flipped = bytearray(data)
    place = data.index(maker.parts[maker.name("data/weights/weight_0")][:64])
    flipped[place] ^= 0xFF
    return {
        "a part outside": archive_of(maker.parts, ("../../outside", slip)),
        "a part outside in the folder": archive_of(maker.parts, (maker.name("extra/../../../outside"), slip)),
        "an absolute part": archive_of(maker.parts, ("/tmp/outside", slip)),
        "a part of Windows": archive_of(maker.parts, (maker.name("extra\\..\\outside"), slip)),
        "a drive": archive_of(maker.parts, ("C:/outside", slip)),
        "a link": archive_of(maker.parts, (entry(maker.name("extra/link"), stat.S_IFLNK | 0o777), b"/etc/passwd")),
        "a part twice": archive_of(maker.parts, (maker.name("models/model.json"), slip)),
        "a part twice but for case": archive_of(maker.parts, (maker.name("models/MODEL.json"), slip)),
        "an unknown part": archive_of(maker.parts, (maker.name("data/hooks/run.py"), PAYLOAD.encode())),
        "a bomb": archive_of({**maker.parts, maker.name("extra/zeros"): bytes(200 << 20)}, packed=True),
        "shared bytes": bytes(overlapping),
        "an encrypted part": bytes(encrypted),
        "a damaged part": bytes(flipped),
    }


def other_files(maker: Maker) -> dict[str, bytes]:
    """Files that are no exported program, under the name of one."""
    scripted = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Conv2d(3, 4, 3)), scripted)
    return {
        "nothing": b"",
        "garbage": bytes(range(256)) * 40,
        "text": b"import os; os.system('touch " + CANARY.encode() + b"')\n",
        "the first half": maker.data[: len(maker.data) // 2],
        "all but the end": maker.data[:-20],
        "a zip of something else": archive_of({"readme.txt": b"x"}),
        "an empty zip": archive_of({}),
        "a saved module": saved(nn.Conv2d(3, 4, 3)),
        "a saved module of the old kind": saved(nn.Conv2d(3, 4, 3), _use_new_zipfile_serialization=False),
        "a pickle": pickle.dumps(Touch()),
        "TorchScript": scripted.getvalue(),
        "no JSON": maker.replaced("models/model.json", b"{"),
        "another JSON": maker.replaced("models/model.json", b"[1, 2]"),
        "no weights": archive_of({n: d for n, d in maker.parts.items() if "weights" not in n}),
    }
