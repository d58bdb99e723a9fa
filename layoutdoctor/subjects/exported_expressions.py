"""
The expressions in an exported program, held against a grammar: torch evaluates them as Python code.

Sizes that are not fixed stand as SymPy expressions (``Mul(Integer(2), Symbol('s0', positive=True))``), which SymPy
evaluates; guards stand as Python (``L['x'].size()[0] <= 64``), which torch executes. Both are parsed here, which runs
nothing, and refused unless every part of them is on a list. Faces ``exported``; imports nothing of torch.

Source:
    ``_print_sympy`` and ``_parse_sym_expr``, torch/_export/serde/serialize.py, and ``_convert_guards_code_to_fn``,
    torch/export/_unlift.py, torch 2.13; before torch 2.8 expressions stand as ``str`` prints them (``2*s0``).
"""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from layoutdoctor.archives import ForbiddenPartError
from layoutdoctor.subjects.exported_pickles import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 50_000
_DEEPEST = 100
_TOO_DEEP = re.compile(r"(?:(?:[-+~(\[{]|\bnot\b)\s*){60}")
_MOST_DIGITS = 25
_HIGHEST_POWER = 64

_FUNCTIONS = frozenset(
    "Add Mul Pow Max Min Abs Mod floor ceiling sqrt Eq Ne Lt Le Gt Ge Equality Unequality GreaterThan LessThan "
    "StrictGreaterThan StrictLessThan And Or Not Xor ITE Piecewise ExprCondPair Tuple Infinity NegativeInfinity "
    "IntInfinity NegativeIntInfinity FloorDiv ModularIndexing Where PythonMod CleanDiv CeilDiv CeilToInt FloorToInt "
    "IntTrueDiv FloatTrueDiv LShift RShift IsNonOverlappingAndDenseIndicator TruncToFloat TruncToInt RoundToInt "
    "RoundDecimal ToFloat FloatPow PowByNatural Identity OpaqueUnaryFn_sqrt OpaqueUnaryFn_cos OpaqueUnaryFn_cosh "
    "OpaqueUnaryFn_sin OpaqueUnaryFn_sinh OpaqueUnaryFn_tan OpaqueUnaryFn_tanh OpaqueUnaryFn_asin OpaqueUnaryFn_acos "
    "OpaqueUnaryFn_atan OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_log2".split()
)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift", "RShift"})
_NUMBERS = frozenset({"Integer", "Rational"})
_ASSUMPTIONS = frozenset({"integer", "positive", "nonnegative", "negative", "nonzero", "real", "finite", "commutative"})
_SYMBOL = re.compile(r"[a-z]{1,8}\d{1,18}(_\d{1,6})?")
_CONSTANTS = frozenset({"true", "false", "oo", "int_oo", "nan", "zoo"})
_FLOAT_TEXT = re.compile(r"[-+]?\d{0,400}(\.\d{0,400})?([eE][-+]?\d{1,4})?")

_GUARD_MODULES = {
    "math": frozenset("floor ceil trunc sqrt pow isnan isinf log2 inf nan".split()),
    "torch": frozenset("sym_max sym_min sym_int sym_float sym_not sym_ite sym_sqrt sym_sum".split()),
}
_GUARD_FUNCTIONS = frozenset(
    "int float bool max min abs round len IsNonOverlappingAndDenseIndicator cast_symbool_to_symint_guardless".split()
)
_GUARD_METHODS = frozenset({"size", "stride", "storage_offset", "item", "dim"})
_OPERATORS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.Load)


def check_expression(text: str) -> None:
    """
    Checks a SymPy expression as ``torch.export.save`` writes it.

    Args:
        text: The expression.

    Raises:
        ForbiddenPartError: It is anything else.
    """
    _check(text, _SymbolicChecker(), "an expression")


def check_guard(text: str) -> None:
    """
    Checks a condition on the inputs as ``torch.export.save`` writes it.

    Args:
        text: The condition.

    Raises:
        ForbiddenPartError: It is anything else.
    """
    _check(text, _GuardChecker(), "a condition on its inputs")


def _check(text: str, checker: _Checker, what: str) -> None:
    shown = text if len(text) <= 120 else f"{text[:117]}..."
    problem = ForbiddenPartError(f"{what} that is more than arithmetic: {shown!r}")
    if len(text) > _LONGEST or not text.isascii() or _TOO_DEEP.search(text):
        raise problem
    try:
        parsed = ast.parse(text.strip(), mode="eval")  # builds a tree; nothing is compiled
        allowed = checker.allows(parsed.body, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        allowed = False
    if not allowed:
        raise problem


def _is_small_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and (
        isinstance(node.value, (bool, float))
        or (type(node.value) is int and -(10**_MOST_DIGITS) < node.value < 10**_MOST_DIGITS)
    )


class _Checker(ABC):
    """Allows arithmetic and comparisons of what a derived class allows."""

    def __init__(self) -> None:
        self._power = 1

    def allows(self, node: ast.expr, depth: int) -> bool:
        """
        Whether a part of the expression may be evaluated.

        Args:
            node: The part.
            depth: How many others it stands in.
        """
        if depth > _DEEPEST:
            return False
        if _is_small_number(node):
            return True
        if isinstance(node, (ast.UnaryOp, ast.BoolOp, ast.BinOp, ast.Compare)):
            return self._allows_operation(node, depth)
        return self.allows_other(node, depth)

    def _allows_operation(self, node: ast.UnaryOp | ast.BoolOp | ast.BinOp | ast.Compare, depth: int) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.MatMult, ast.LShift, ast.RShift)):
            return False
        if isinstance(node, ast.Compare) and not all(
            isinstance(operator, (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for operator in node.ops
        ):
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and not self.allows_power(node.right):
            return False
        parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, _OPERATORS)]
        return all(isinstance(part, ast.expr) and self.allows(part, depth + 1) for part in parts)

    def allows_power(self, exponent: ast.expr) -> bool:
        """
        Whether raising to a power, or shifting, stays within numbers of a bearable length.

        Args:
            exponent: The second operand.
        """
        if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
            exponent = exponent.operand
        if _calls(exponent) in _NUMBERS and isinstance(exponent, ast.Call) and exponent.args:
            exponent = exponent.args[0]
            if isinstance(exponent, ast.UnaryOp):
                exponent = exponent.operand
        if isinstance(exponent, ast.Constant) and isinstance(exponent.value, (int, float)):
            self._power *= max(1, int(min(abs(exponent.value), 2 * _HIGHEST_POWER)))
            return self._power <= _HIGHEST_POWER
        return isinstance(exponent, ast.Name) or _calls(exponent) == "Symbol"

    @abstractmethod
    def allows_other(self, node: ast.expr, depth: int) -> bool:
        """
        Whether a part may be evaluated that is no number, no arithmetic and no comparison.

        Args:
            node: The part.
            depth: How many others it stands in.
        """


def _calls(node: ast.expr) -> str | None:
    """The name of the function that a part calls; None where it does not, or calls something without a name."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None


class _SymbolicChecker(_Checker):
    """Symbols, and the functions that stand for shape arithmetic."""

    def allows_other(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Name):
            return node.id in _CONSTANTS or _SYMBOL.fullmatch(node.id) is not None
        if isinstance(node, ast.Tuple):
            return all(self.allows(part, depth + 1) for part in node.elts)
        name = _calls(node)
        if name is None or not isinstance(node, ast.Call):
            return False
        special: dict[str, Callable[[ast.Call], bool]] = {
            "Symbol": _is_symbol,
            "Float": _is_float,
            "Integer": _is_whole,
            "Rational": _is_whole,
        }
        if name in special:
            return special[name](node)
        if name not in _FUNCTIONS or node.keywords:
            return False
        if name in _POWERS and (len(node.args) != 2 or not self.allows_power(node.args[1])):
            return False
        return all(self.allows(part, depth + 1) for part in node.args)


def _is_symbol(call: ast.Call) -> bool:
    return (
        len(call.args) == 1
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
        and _SYMBOL.fullmatch(call.args[0].value) is not None
        and all(word.arg in _ASSUMPTIONS and _is_flag(word.value) for word in call.keywords)
    )


def _is_flag(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _is_float(call: ast.Call) -> bool:
    texts_only = all(
        isinstance(part, ast.Constant) and isinstance(part.value, str) and _FLOAT_TEXT.fullmatch(part.value)
        for part in call.args
    )
    return (
        len(call.args) == 1
        and texts_only
        and all(
            word.arg in ("precision", "dps")
            and isinstance(word.value, ast.Constant)
            and type(word.value.value) is int
            and 0 < word.value.value < 1000
            for word in call.keywords
        )
    )


def _is_whole(call: ast.Call) -> bool:
    numbers = [part.operand if isinstance(part, ast.UnaryOp) else part for part in call.args]
    return 1 <= len(numbers) <= 2 and not call.keywords and all(_is_small_number(number) for number in numbers)


class _GuardChecker(_Checker):
    """What a guard may read of an input: ``L['x'][0].size()[1]``, and the arithmetic on it."""

    def allows_other(self, node: ast.expr, depth: int) -> bool:
        if isinstance(node, ast.Constant):
            return node.value is None or (isinstance(node.value, str) and is_plain(node.value))
        if isinstance(node, ast.Name):
            return node.id in ("L", "inf", "nan")
        if isinstance(node, ast.Subscript):
            return _is_key(node.slice) and self.allows(node.value, depth + 1)
        if isinstance(node, ast.Attribute):
            return self._allows_attribute(node, depth)
        return isinstance(node, ast.Call) and self._allows_call(node, depth)

    def _allows_attribute(self, node: ast.Attribute, depth: int) -> bool:
        if isinstance(node.value, ast.Name) and node.value.id in _GUARD_MODULES:
            return node.attr in _GUARD_MODULES[node.value.id]
        return not node.attr.startswith("_") and self.allows(node.value, depth + 1)

    def _allows_call(self, node: ast.Call, depth: int) -> bool:
        if node.keywords or not all(self.allows(part, depth + 1) for part in node.args):
            return False
        if isinstance(node.func, ast.Name):
            return node.func.id in _GUARD_FUNCTIONS
        if not isinstance(node.func, ast.Attribute):
            return False
        source = node.func.value
        if isinstance(source, ast.Name) and source.id in _GUARD_MODULES:
            is_power = node.func.attr == "pow" and (len(node.args) != 2 or not self.allows_power(node.args[1]))
            return node.func.attr in _GUARD_MODULES[source.id] and not is_power
        return node.func.attr in _GUARD_METHODS and self.allows(source, depth + 1)


def _is_key(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and (
        type(node.value) is int or (isinstance(node.value, str) and is_plain(node.value))
    )
