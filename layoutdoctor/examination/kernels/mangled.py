"""
Reads mangled C++ names, as the Itanium ABI defines them: a function's namespaces, name and template arguments.

A table may cut a name anywhere, so the part up to the cut is returned. Reading also ends before a function's
parameters, and at template arguments that kernel names seldom contain, such as lambdas, arrays and expressions.
"""

from __future__ import annotations

import contextlib
import re

_MANGLED = re.compile(r"(_Z[NZLS\d][\w$]*)(…|\.\.\.)?")
_NAME = re.compile(r"L?(\d{1,9})")
_EARLIER = re.compile(r"S([0-9A-Z]{0,5})_")
_VALUE = re.compile(r"(n?)(\d{1,20})E")
_ANONYMOUS = re.compile(r"_GLOBAL_[._$]N")

# Limits for a name that nests or repeats itself without end.
_DEEPEST, _LONGEST = 60, 4000

_BUILTIN = {
    **{"v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char", "h": "unsigned char", "s": "short"},
    **{"t": "unsigned short", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long long"},
    **{"y": "unsigned long long", "f": "float", "d": "double", "DF16b": "std::bfloat16_t", "DF16_": "_Float16"},
}
_BUILTINS = re.compile("|".join(_BUILTIN))
_QUALIFIER = re.compile("[PRKV]")
_BEHIND = {"P": "*", "R": "&", "K": " const", "V": " volatile"}


def demangled(name: str) -> str:
    """A mangled name as C++ writes it, without parameters; a final ellipsis is kept. Other names are unchanged."""
    mangled = _MANGLED.match(name)
    if mangled is None:
        return name
    reader = _Reader(mangled[1])
    with contextlib.suppress(_EndOfReading):
        reader.entity()
    return f"{reader.text}{mangled[2] or ''}" if reader.text else name


class _EndOfReading(Exception):  # noqa: N818 - no error: the rest was cut off, or is not read here
    """Ends the reading of a name."""


class _Reader:
    """
    Reads a name from its start.

    Attributes:
        text: The part that was read, as C++ writes it.
        seen: The parts that ``S_``, ``S0_``, ``S1_``... refer to.
    """

    def __init__(self, name: str) -> None:
        self.name, self.place, self.depth = name, len("_Z"), 0
        self.text = ""
        self.seen: list[str] = []

    def take(self, text: str) -> bool:
        """Reads a text if it comes next, and returns whether it did."""
        if len(self.text) > _LONGEST:
            raise _EndOfReading
        is_next = self.name.startswith(text, self.place)
        self.place += len(text) * is_next
        return is_next

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.name, self.place)
        self.place = self.place if found is None else found.end()
        return found

    def entity(self) -> None:
        """Reads a function or a type, with its namespaces and template arguments."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise _EndOfReading
        is_local = self.take("Z")  # it is declared inside a function, whose name comes first
        while self.take("Z"):
            pass
        start, is_nested = len(self.text), self.take("N")
        while not (is_nested and self.take("E")):
            is_namespace = self.take("St")
            if is_namespace:
                self.text += "std"
            elif (earlier := self.match(_EARLIER)) is not None:
                index = int(earlier[1], 36) + 1 if earlier[1] else 0
                self.text += "".join(self.seen[index : index + 1])
            else:
                if self.take("I"):
                    self.arguments()
                else:
                    self.identifier("::" if len(self.text) > start else "")
                self.seen.append(self.text[start:])
            if not (is_nested or is_namespace or self.name.startswith("I", self.place)):
                break
        self.depth -= 1
        if is_local:
            raise _EndOfReading

    def identifier(self, before: str) -> None:
        """Reads a name without namespaces and template arguments; the digits in front of it give its length."""
        length = self.match(_NAME)
        found = self.name[self.place : self.place + int(length[1])] if length is not None else ""
        self.place += len(found)
        self.text += before * bool(found) + ("(anonymous namespace)" if _ANONYMOUS.match(found) else found)
        if length is None or len(found) < int(length[1]):
            raise _EndOfReading

    def arguments(self) -> None:
        """Reads template arguments after ``I``, including packs of arguments between ``J`` and ``E``."""
        self.text += "<"
        depth, before = 1, ""
        while depth:
            if self.take("E"):
                depth -= 1
            elif self.take("J"):
                depth += 1
            else:
                self.text += before
                before = ", "
                self.argument()
        self.text += ">"

    def argument(self) -> None:
        """Reads a template argument, which is a type or a value."""
        start = len(self.text)
        if (builtin := self.match(_BUILTINS)) is not None:
            self.text += _BUILTIN[builtin[0]]
        elif (qualifier := self.match(_QUALIFIER)) is not None:
            self.argument()
            self.text += _BEHIND[qualifier[0]]
            self.seen.append(self.text[start:])
        elif not self.take("L"):
            self.entity()
        elif (kind := self.match(_BUILTINS)) is not None:
            value = self.value()
            self.text += ("false" if value == "0" else "true") if kind[0] == "b" else value
        else:
            self.text += "("
            self.entity()
            self.text += f"){self.value()}"

    def value(self) -> str:
        found = self.match(_VALUE)
        if found is None:
            raise _EndOfReading
        return f"{'-' if found[1] else ''}{found[2]}"
