"""Checks that the text of a traced model contains only calls of torch on values and constants."""

from __future__ import annotations

import ast
import re

_PLACES = (
    "nn.functional _C._nn _C._fft _C._linalg _C._special functional special fft linalg Tensor amp.autocast_mode".split()
)
_NAME = r"(?!(load|save|from_file)\b)\w+"
_FUNCTION = re.compile(
    rf"slice|torch\.(({'|'.join(map(re.escape, _PLACES))}|ops\.(aten|prims)(\.{_NAME})?)\.)?{_NAME}"
    r"|torch\._C\._set_grad_enabled"
)
_METHOD = re.compile(r"(?!(numpy|tofile|dump)\b)[a-zA-Z]\w*")
_CONSTANT = re.compile(
    r"torch\.(b?float\d+\w*|complex\d+|u?int\d+|bool|strided|channels_last(_3d)?|(contiguous|preserve)_format)"
)
_WORDS = re.compile(r"[\w ,.:>-]{0,80}", re.ASCII)
"""Matches names of modes, dtypes and devices, and equations of einsum. A path does not match: it has a slash."""

_PARTS = (
    *(ast.Assign, ast.AugAssign, ast.Return, ast.Expr, ast.keyword, ast.Subscript, ast.Tuple, ast.List, ast.Slice),
    *(ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)


def needs_torch_alone(text: str) -> bool:
    """
    Whether a text is one function that calls only torch's functions, ``slice``, and methods of its own variables.

    A saved record may come from anybody, and its text is written into a script: the text must not call anything else.
    """
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        return False
    try:
        tree = ast.parse(text)
        match tree.body:
            case [ast.FunctionDef(name="forward", decorator_list=[], returns=None) as function]:
                given = ast.unparse(function.args)
                names = {
                    part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
                }
                known = {*given.split(", ")[1:], *names} - {"torch", "slice"}
                return _ARGUMENTS.fullmatch(given) is not None and all(_is_plain(part, known) for part in function.body)
            case _:
                return False
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


_ARGUMENTS = re.compile(r"self(, [wx]\d+)*")


def _is_plain(part: ast.AST, known: set[str]) -> bool:
    match part:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if name in known:
            return _METHOD.fullmatch(method) is not None and _are_plain([*part.args, *part.keywords], known)
        case ast.Call(func=function):
            is_torchs = _FUNCTION.fullmatch(ast.unparse(function)) is not None
            return is_torchs and _are_plain([*part.args, *part.keywords], known)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in known:
            return not attribute.startswith("_")
        case ast.Attribute():
            return _CONSTANT.fullmatch(ast.unparse(part)) is not None
        case ast.Name(id=name):
            return name in known or name in ("inf", "nan", "Ellipsis")
        case ast.Constant(value=str() as text):
            return _WORDS.fullmatch(text) is not None
        case _:
            return isinstance(part, _PARTS) and _are_plain(list(ast.iter_child_nodes(part)), known)


def _are_plain(parts: list[ast.AST], known: set[str]) -> bool:
    return all(_is_plain(part, known) for part in parts)
