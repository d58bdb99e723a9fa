"""
The graph of an exported program as JSON, checked string by string before torch turns it into Python code.

torch writes code from it and executes that: names become variables, targets are looked up by their path from ``torch``
on, expressions and guards are evaluated, classes of containers are imported. So every string is held against what may
stand in its place. Faces ``exported``; imports nothing of torch.

Source:
    torch/_export/serde/schema.py and serialize.py, torch/fx/graph.py, torch/utils/_pytree.py, torch 2.13.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from layoutdoctor.archives import DamagedFileError, ForbiddenPartError
from layoutdoctor.subjects.exported_expressions import check_expression, check_guard
from layoutdoctor.subjects.exported_pickles import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

_NAMESPACES = "aten|prims|quantized_decomposed|torchvision"
_OPERATOR = re.compile(rf"torch\.ops\.({_NAMESPACES})\.(\w+)(?:\.(\w+))?")
_UNSAFE_OPERATORS = frozenset({"save", "from_file"})
"""Operators of ATen that read and write files by name."""

_SPELLED_OPERATORS = frozenset(
    f"__{inplace}{name}__" for inplace in ("", "i") for name in ("and", "or", "xor", "lshift", "rshift")
)
_HIGHER_ORDER = re.compile(
    r"torch\.ops\.higher_order\.(_export_tracepoint|associative_scan|auto_functionalized(_v2)?|cond|flex_attention"
    r"(_backward)?|foreach_map|hints_wrapper|invoke_subgraph|map_impl|out_dtype|scan|strict_mode"
    r"|tag_activation_checkpoint|while_loop(_stack_output)?|with_effects|wrap(_activation_checkpoint"
    r"|_with_autocast|_with_set_grad_enabled)?)"
)
_PYTHON_OPERATOR = re.compile(
    r"_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|lshift|rshift|getitem)"
    r"|math\.trunc|torch\.sym_(not|int|float|ite|max|min|sqrt|sum|fresh_size)"
    r"|torch\._sym_(sqrt|cos|cosh|sin|sinh|tan|tanh|asin|acos|atan|log2)"
    r"|torch\._functorch\.predispatch\._(add_batch_dim|remove_batch_dim|vmap_increment_nesting|vmap_decrement_nesting"
    r"|make_dual|unpack_dual|jvp_increment_nesting|jvp_decrement_nesting|unwrap_for_grad|enter_dual_level"
    r"|exit_dual_level)"
)
_LOOKED_UP = re.compile(r"(torch|_operator|math|#)")
_PATH = re.compile(r"[\w.<>]*")

_WORD = re.compile(r"[\w.+\-]*")
_NUMBER_WORD = re.compile(r"-?(Infinity|NaN|inf|nan)|-?\d{1,30}(\.\d{0,30})?([eE][-+]?\d{1,4})?|-?int_oo")
_RANGE_KEY = re.compile(r"[\w+\-*/%(), .]{1,2000}")
_UNBACKED = re.compile(r"(?:u|zuf)(\d+)")
_MOST_UNBACKED = 100_000
"""torch counts up to the highest number of such a symbol, one by one."""

_CONTAINERS = re.compile(
    r"builtins\.(tuple|list|dict)|collections\.(OrderedDict|deque|namedtuple|defaultdict)|torch\.Size"
    r"|torch\.fx\.immutable_collections\.immutable_(list|dict)|torch\.return_types\.\w+"
)
_FACTORIES = frozenset({"int", "float", "bool", "str", "list", "dict", "set", "tuple"})
_CUSTOM_OBJECTS = frozenset({"as_custom_obj", "custom_obj", "class_fqn", "custom_obj_name"})


def parse_json(data: bytes, part: str) -> Any:
    """
    A JSON document.

    Args:
        data: Its text in UTF-8.
        part: Where it stands, for messages.

    Raises:
        DamagedFileError: It is none, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: no JSON, no UTF-8, a number with too many digits
        raise DamagedFileError(f"its part {part!r} is no JSON") from error


def check_program(data: bytes) -> None:
    """
    Checks that nothing in a serialized program would be executed but operators of torch.

    Args:
        data: Its JSON.

    Raises:
        DamagedFileError: It is no program.
        ForbiddenPartError: A name, target, expression, guard or container could run code.
    """
    program = parse_json(data, "program")
    if not isinstance(program, dict) or not isinstance(program.get("graph_module"), dict):
        raise DamagedFileError("its program has no graph")
    try:
        _walk(program, "", is_free_text=False)
    except RecursionError:
        raise DamagedFileError("its program is nested too deeply") from None


def check_tensor_list(data: bytes, part: str) -> dict[str, dict[str, Any]]:
    """
    Checks the list that says where the weights or constants of a program stand.

    Args:
        data: Its JSON.
        part: Where it stands, for messages.

    Returns:
        For each tensor what the list says of it: the ``path_name``, and whether it was pickled (``use_pickle``).

    Raises:
        DamagedFileError: It is no such list.
        ForbiddenPartError: A name in it could run code.
    """
    found = parse_json(data, part)
    tensors = found.get("config") if isinstance(found, dict) else None
    if not isinstance(tensors, dict) or not all(isinstance(tensor, dict) for tensor in tensors.values()):
        raise DamagedFileError(f"its part {part!r} lists no tensors")
    for name, tensor in tensors.items():
        _check_attribute(name)
        if not isinstance(tensor.get("path_name"), str):
            raise DamagedFileError(f"its part {part!r} does not say where {name[:200]!r} is")
        _walk(tensor, "", is_free_text=False)
    return tensors


def check_container(text: str) -> None:
    """
    Checks what inputs or outputs are packed in, as ``torch.utils._pytree.treespec_dumps`` wrote it.

    Args:
        text: JSON in a string; empty where nothing was written.

    Raises:
        DamagedFileError: It is no JSON.
        ForbiddenPartError: Reading it would import a class.
    """
    if not text:
        return
    found = parse_json(text.encode("utf-8", "surrogatepass"), "in_spec")
    if not isinstance(found, list) or len(found) != 2:
        raise DamagedFileError("its inputs or outputs are packed in a way that is not known")
    _check_node(found[1])
    _check_keyword_names(found[1])


def _check_node(node: Any) -> None:
    if not isinstance(node, dict) or not isinstance(node.get("children_spec"), list):
        raise DamagedFileError("its inputs or outputs are packed in a way that is not known")
    kind, context = node.get("type"), node.get("context")
    if kind is not None and not (isinstance(kind, str) and _CONTAINERS.fullmatch(kind)):
        raise ForbiddenPartError(f"an input or output in a container of the class {str(kind)[:200]!r}")
    if kind == "collections.defaultdict":
        _check_defaultdict(context)
    elif kind == "collections.namedtuple":
        _check_plain(context, "the name of a named tuple")
    elif isinstance(context, str):
        _check_keys(parse_json(context.encode("utf-8", "surrogatepass"), "in_spec"))
    else:
        _check_keys(context)
    for child in node["children_spec"]:
        _check_node(child)


def _check_defaultdict(context: Any) -> None:
    if not isinstance(context, dict) or context.get("default_factory_module") != "builtins":
        raise ForbiddenPartError("a defaultdict that imports a module")
    if context.get("default_factory_name") not in _FACTORIES:
        raise ForbiddenPartError("a defaultdict that calls a function")
    _check_keys(context.get("dict_context"))


def _check_keys(keys: Any) -> None:
    """Keys of a container: numbers and plain texts, or lists of such; no object, which can stand for an enum."""
    if isinstance(keys, list):
        for key in keys:
            _check_keys(key)
    elif isinstance(keys, dict):
        raise ForbiddenPartError("a container whose keys are of a class of its own")
    elif isinstance(keys, str):
        _check_plain(keys, "the key of a container")


def _check_keyword_names(node: dict[str, Any]) -> None:
    """The names of keyword arguments become names of parameters in generated code."""
    children = node["children_spec"]
    if node.get("type") != "builtins.tuple" or len(children) != 2 or children[1].get("type") != "builtins.dict":
        return
    context = children[1].get("context")
    names = json.loads(context) if isinstance(context, str) else context
    for name in names or ():
        _check_name(name)


def check_operator(target: str) -> None:
    """
    Checks what a node calls.

    Args:
        target: Its path, such as ``torch.ops.aten.conv2d.default``.

    Raises:
        ForbiddenPartError: It is none of torch's own operators on tensors and sizes.
    """
    found = _OPERATOR.fullmatch(target)
    if found is not None:
        _, name, overload = found.groups()
        is_spelled = name.startswith("__") and name.rstrip("_") not in {spelled[:-2] for spelled in _SPELLED_OPERATORS}
        if name not in _UNSAFE_OPERATORS and not is_spelled and not (overload or "").startswith("__"):
            return
    elif _HIGHER_ORDER.fullmatch(target) or _PYTHON_OPERATOR.fullmatch(target):
        return
    raise ForbiddenPartError(f"a call of {target[:200]!r}, which is none of torch's own operators on tensors")


def _walk(value: Any, key: str, *, is_free_text: bool) -> None:
    """Checks a value by the key it stands under; in a list, by the key of the list."""
    if isinstance(value, dict):
        _walk_object(value, key, is_free_text=is_free_text)
    elif isinstance(value, list):
        for item in value:
            _walk(item, key, is_free_text=is_free_text)
    elif isinstance(value, str) and not (is_free_text and key in _FREE_TEXT):
        _CHECKS.get(key, _check_word)(value)


def _walk_object(value: dict[str, Any], key: str, *, is_free_text: bool) -> None:
    if key == "metadata":
        _check_metadata(value)
        return
    check_key = _KEY_CHECKS.get(key, _check_word)
    for name, inner in value.items():
        check_key(name)
        if name in _CUSTOM_OBJECTS or (name == "custom_obj_values" and inner):
            raise ForbiddenPartError("an object of a class of its own (a ScriptObject or opaque value)")
        if key == "as_string_to_argument" or key in _NAMED_VALUES:
            _walk(inner, "", is_free_text=is_free_text)
        else:
            _walk(inner, name, is_free_text=name == "nodes" or (is_free_text and name != "graph"))


def _check_metadata(metadata: dict[str, Any]) -> None:
    """Texts that torch keeps and shows; only the functions a node came from are looked up, by their path."""
    for key, text in metadata.items():
        _check_word(key)
        if not isinstance(text, str):
            raise DamagedFileError("its nodes carry metadata of an unknown kind")
        if key == "source_fn_stack":
            for entry in text.split(";"):
                _, _, target = entry.partition(",")
                if _LOOKED_UP.match(target) and not _PATH.fullmatch(target):
                    raise ForbiddenPartError(f"a node from {target[:200]!r}, which is no path to a function")
        elif key in ("custom", "from_node"):
            parse_json(text.encode("utf-8", "surrogatepass"), key)


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or (name and not name.isidentifier()):
        raise ForbiddenPartError(f"the name {str(name)[:200]!r}, which is no name in Python")


def _check_attribute(path: str) -> None:
    if not is_plain(path) or any(part.startswith("__") and part.endswith("__") for part in path.split(".")):
        raise ForbiddenPartError(f"the attribute {path[:200]!r}, which is no name of a parameter or module")


def _check_plain(text: Any, what: str = "a text") -> None:
    if not isinstance(text, str) or not is_plain(text):
        raise ForbiddenPartError(f"quotes or control characters in {what}: {str(text)[:200]!r}")


def _check_word(text: str) -> None:
    if not _WORD.fullmatch(text):
        raise ForbiddenPartError(f"a text where none is known to stand: {text[:200]!r}")


def _check_number(text: str) -> None:
    if not _NUMBER_WORD.fullmatch(text):
        raise ForbiddenPartError(f"a number that is none: {text[:200]!r}")


def _check_range(key: str) -> None:
    if not _RANGE_KEY.fullmatch(key):
        raise ForbiddenPartError(f"the size {key[:200]!r}, which is no expression")
    if any(int(number[:20]) > _MOST_UNBACKED for number in _UNBACKED.findall(key)):
        raise ForbiddenPartError(f"a size {key[:200]!r}, with a number that torch would count up to")


_FREE_TEXT = frozenset({"as_string", "as_strings"})
"""Arguments of operators; those of the program itself end up in generated code, and are plain."""

_NAMED_VALUES = frozenset(
    {"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "range_constraints"}
    | {"treespec_namedtuple_fields", "opset_version"}
)
_KEY_CHECKS: dict[str, Callable[[str], None]] = {
    **dict.fromkeys(("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"), _check_name),
    "range_constraints": _check_range,
    "treespec_namedtuple_fields": _check_plain,
    "as_string_to_argument": _check_plain,
}
_CHECKS: dict[str, Callable[[str], None]] = {
    **dict.fromkeys(("name", "as_name", "forward_arg_names", "field_names", "user_input_name"), _check_name),
    **dict.fromkeys(("parameter_name", "buffer_name", "tensor_constant_name", "fqn"), _check_attribute),
    **dict.fromkeys(("target", "as_operator"), check_operator),
    **dict.fromkeys(("in_spec", "out_spec"), check_container),
    **dict.fromkeys(("as_string", "as_strings", "torch_version"), _check_plain),
    **dict.fromkeys(("as_float", "as_floats", "as_float_lists", "real", "imag", "min_val", "max_val"), _check_number),
    "expr_str": check_expression,
    "guards_code": check_guard,
}
