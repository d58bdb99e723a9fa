"""
Reads mangled C++ names, as the Itanium ABI defines them.

A table may cut a name anywhere, so the part up to the cut is returned. Reading also ends at parts that kernel names
seldom contain, such as arrays, functions and expressions as template arguments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

_MANGLED = re.compile(r"(_Z[NZLS\d][\w$]*)(…|\.\.\.)?")
_NUMBER = re.compile(r"\d{1,9}")
_INDEX = re.compile(r"([0-9A-Z]{0,5})_")
_ANONYMOUS = re.compile(r"_GLOBAL_[._$]N")

# A name can be made to nest, or to repeat itself, without end.
_DEEPEST, _LONGEST = 60, 4000

_BUILTIN = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short"},
    **{"t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "f": "float", "d": "double", "DF16b": "std::bfloat16_t", "DF16_": "_Float16"},
}
_OF_STD = {"Sa": "std::allocator", "Sb": "std::basic_string", "Ss": "std::string"}
_BEHIND = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "r": " restrict"}
_SUFFIXES = {"j": "u", "l": "l", "m": "ul", "x": "ll", "y": "ull"}


def demangled(name: str) -> str:
    """
    A name as C++ writes it; unchanged if it is not mangled, or no part of it can be read.

    An ellipsis at the end is kept.
    """
    mangled = _MANGLED.match(name)
    if mangled is None:
        return name
    try:
        found = _Reader(mangled[1]).function(is_inner=False)
    except _EndOfReading as end:
        found = end.text
    return f"{found}{mangled[2] or ''}" if found else name


class _EndOfReading(Exception):  # noqa: N818 - no error: the rest was cut off, or is not read here
    """
    Ends the reading of a name.

    Attributes:
        text: The part that was read.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self.text = text[:_LONGEST]


class _Reader:
    """
    Reads a name from its start; each method reads one part and returns that part as C++ writes it.

    Attributes:
        seen: The parts that ``S_``, ``S0_``, ``S1_``... refer to.
        arguments: The template arguments that ``T_``, ``T0_``, ``T1_``... refer to: those of the enclosing function.
        last: The template arguments that were read last.
    """

    def __init__(self, name: str) -> None:
        self.name, self.place, self.depth = name, 2, 0
        self.seen: list[str] = []
        self.arguments: list[str] = []
        self.last: list[str] = []

    def next_is(self, *texts: str) -> bool:
        return self.name.startswith(texts, self.place)

    def take(self, *texts: str) -> str:
        """Reads the first of some texts that comes next; empty if none does."""
        found = next((text for text in texts if self.next_is(text)), "")
        self.place += len(found)
        return found

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.name, self.place)
        if found is None:
            self.end()
        self.place = found.end()
        return found[found.lastindex or 0]

    def index(self, letter: str = "") -> int:
        """Reads ``_``, ``0_``, ``1_``... as 0, 1, 2..., after ``letter`` if one is given."""
        self.take(letter)
        digits = self.match(_INDEX)
        return int(digits, 36) + 1 if digits else 0

    def after(self, text: str, read: Callable[[], str]) -> str:
        """A text, and the part that is read after it."""
        self.depth += 1
        if self.depth > _DEEPEST or len(text) > _LONGEST:
            raise _EndOfReading(text)
        try:
            found = text + read()
        except _EndOfReading as end:
            raise _EndOfReading((text + end.text).removesuffix("::")) from None
        self.depth -= 1
        return found

    def several(self, text: str, read: Callable[[], str]) -> list[str]:
        """The parts up to ``E``; ``text`` is the name before the first part."""
        found: list[str] = []
        while not self.take("E") and (self.depth or self.place < len(self.name)):
            before = text + "".join(f"{one}, " for one in found)
            found.append(self.after(before, read)[len(before) :])
        return found

    def remember(self, text: str) -> str:
        self.seen.append(text)
        return text

    def entity(self) -> str:
        """A function or a type, with its namespaces and template arguments."""
        if self.take("N"):
            return self.nested()
        if self.take("Z"):
            return self.local()
        if self.next_is("S") and not self.next_is("St"):
            found = self.substitution()
        else:
            found = self.after("std::" if self.take("St") else "", self.plain_name)
            if self.next_is("I"):
                self.remember(found)
        return self.after(found, self.template) if self.take("I") else found

    def nested(self) -> str:
        found = ""
        while self.take("K", "V", "r", "R", "O"):
            pass
        while not self.take("E"):
            if self.take("St"):
                found = "std"
            elif self.next_is("S"):
                found = self.substitution()
            elif self.next_is("T"):
                found = self.remember(self.parameter())
            elif self.take("I"):
                found = self.remember(self.after(found, self.template))
            else:
                found = self.remember(self.after(f"{found}::" if found else "", self.plain_name))
        if self.seen and self.seen[-1] == found:
            self.seen.pop()  # ``type`` remembers a type; a function is not remembered
        return found

    def local(self) -> str:
        """A function or a type declared inside a function, after ``Z``."""
        function = self.after("", self.function)
        if self.take("s"):
            return function
        found = self.after(f"{function}::", self.entity)
        if self.take("_"):  # one of several of that name
            self.match(_NUMBER)
        return found

    def function(self, *, is_inner: bool = True) -> str:
        """A function with its parameters: up to ``E``, or to the end of the name."""
        outer, found = self.arguments, self.entity()
        if self.place == len(self.name):
            return found
        self.arguments = self.last
        result = f"{self.type()} " if found.endswith(">") else ""
        found = f"{'' if is_inner else result}{found}("
        found += f"{self.types(found)})"
        self.arguments = outer
        return found

    def types(self, before: str) -> str:
        found = ", ".join(self.several(before, self.type))
        return "" if found == "void" else found

    def plain_name(self) -> str:
        """A name without its namespaces and template arguments."""
        self.take("L")
        if self.take("Ul"):
            types = self.types("{lambda(")
            return f"{{lambda({types})#{self.index() + 1}}}"
        if self.take("cl"):
            return "operator()"
        length = int(self.match(_NUMBER))
        found = self.name[self.place : self.place + length]
        self.place += length
        if len(found) < length:
            raise _EndOfReading(found)
        return "(anonymous namespace)" if _ANONYMOUS.match(found) else found

    def template(self) -> str:
        """Template arguments, after ``I``."""
        self.last = self.several("<", self.argument)
        return f"<{', '.join(self.last)}>"

    def argument(self) -> str:
        if self.take("J"):
            return ", ".join(self.several("", self.argument))
        return self.literal() if self.take("L") else self.type()

    def literal(self) -> str:
        """A value, after ``L``."""
        kind = self.take(*_BUILTIN)
        of = _BUILTIN[kind] if kind else self.type()
        sign, digits = "-" if self.take("n") else "", self.match(_NUMBER)
        if not self.take("E"):
            self.end()
        if kind == "b":
            return "false" if digits == "0" else "true"
        return f"{sign}{digits}{_SUFFIXES.get(kind, '')}" if kind else f"({of}){sign}{digits}"

    def type(self) -> str:
        """A type; later parts of the name may refer to it, unless it is a built-in type."""
        own = self.take(*_BUILTIN)
        if own:
            return _BUILTIN[own]
        if self.take("Dp"):
            return self.after("", self.type)
        qualifier = self.take(*_BEHIND)
        if qualifier:
            return self.remember(self.after("", self.type) + _BEHIND[qualifier])
        if self.next_is("S") and not self.next_is("St"):
            found = self.substitution()
        else:
            found = self.remember(self.parameter() if self.next_is("T") else self.entity())
        return self.remember(self.after(found, self.template)) if self.take("I") else found

    def parameter(self) -> str:
        """The template argument that ``T_``, ``T0_``... refers to; ``auto`` for a generic lambda's parameter."""
        index = self.index("T")
        return self.arguments[index] if index < len(self.arguments) else "auto"

    def substitution(self) -> str:
        standard = self.take(*_OF_STD)
        if standard:
            return _OF_STD[standard]
        index = self.index("S")
        return self.seen[index] if index < len(self.seen) else self.end()

    def end(self) -> NoReturn:
        """Ends the reading."""
        raise _EndOfReading
