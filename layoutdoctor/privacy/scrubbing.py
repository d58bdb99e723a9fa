"""
Removes from a record all that identifies its user and machine.

``docs/privacy.md`` lists what is removed and what is kept. Every string of a record is checked, whatever its field.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Hashable, Iterator
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from layoutdoctor.privacy.paths import (
    SECRET_NAME,
    PathShortener,
    Surroundings,
    is_common,
    known_surroundings,
    listed,
)

if TYPE_CHECKING:
    Rewrite = Callable[[str, str], str]
    """A function of a string and its place (``"Finding.message"``) that returns the string to replace it."""

AnyRecord = TypeVar("AnyRecord")
"""A record, or a tuple, list or dict of records and texts."""

TOKEN = "<token>"
_PLACEHOLDER = "(?:path|home|user|host|token|email|ip|mac|set)"
_MOST_PASSES = 5
"""Largest number of passes over a text. Passes repeat because the result of one rule may match another rule."""
_SHORTEST_NAME = 4
"""Least length of a user or host name that is removed; shorter names occur in other words too often."""
_SETTING_PART = re.compile(r"[\s,;:=+|]+")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?[kmg]?(?:ib|b|s|ms|us)?(?:-\d+)*", re.IGNORECASE)


def scrub(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    Removes home directories, names of users and hosts, environment values, secrets, addresses and absolute paths.

    Scrubbing a record a second time changes nothing. Numbers, codes, layouts and words of fixed lists never change.

    Args:
        surroundings: The names and folders to remove; None for the surroundings of this process.
    """
    return rewrite_record(record, _Scrubber(surroundings or known_surroundings()).rewrite)


class _Scrubber:
    def __init__(self, surroundings: Surroundings) -> None:
        self._paths = PathShortener(surroundings)
        names = [*((name, "<host>") for name in surroundings.hosts), (surroundings.user, "<user>")]
        self._rules: list[tuple[re.Pattern[str], str]] = [
            (re.compile(re.escape(secret)), TOKEN) for secret in surroundings.secrets
        ]
        # Names are removed as whole words, the longest first, because a host is often named after its user.
        self._names = [
            (re.compile(rf"(?<![A-Za-z0-9_])(?!(?<=<){_PLACEHOLDER}>){re.escape(name)}(?![A-Za-z0-9_])"), replacement)
            for name, replacement in sorted(names, key=lambda entry: -len(entry[0]))
            if len(name) >= _SHORTEST_NAME and not is_common(name)
        ]
        self._text = functools.cache(self._scrubbed)

    def rewrite(self, text: str, place: str) -> str:
        return _setting(text) if place == "Environment.settings" else self._text(text)

    def _scrubbed(self, text: str) -> str:
        for _ in range(_MOST_PASSES):
            new = text
            for pattern, replacement in self._rules:
                new = pattern.sub(replacement, new)
            if _MAY_HOLD_SECRET.search(new):
                for secret, taker in _secrets():
                    new = secret.sub(taker, new)
            new = self._paths.in_text(new)
            for pattern, replacement in self._names:
                new = pattern.sub(replacement, new)
            if new == text:
                break
            text = new
        return text


def _setting(value: str) -> str:
    parts = [part for part in _SETTING_PART.split(value.strip().lower()) if part]
    known = all(part in listed("setting_words") or _NUMBER.fullmatch(part) for part in parts)
    return value if known and len(value) <= 200 else "<set>"


# ---------------------------------------------------------------------------------------------- all strings of a record
def rewrite_record(record: AnyRecord, rewrite: Rewrite) -> AnyRecord:
    """Returns the record with every string rewritten. A part in which no string changes stays the same object."""
    new: AnyRecord = _rewritten(record, "", rewrite)
    return new


def _rewritten(value: object, place: str, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        new = rewrite(value, place)
        return value if new == value else new
    if isinstance(value, (tuple, list)):
        items = [_rewritten(item, place, rewrite) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    if isinstance(value, dict):
        return _rewritten_dict(value, place, rewrite)
    changed = {}
    for name, inner in text_fields(type(value)):  # type: ignore[arg-type]
        old = getattr(value, name)
        new = _rewritten(old, inner, rewrite)
        if new is not old:
            changed[name] = new
    if not changed:
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changed)
    return dataclasses.replace(value, **changed)  # type: ignore[type-var]


def _rewritten_dict(value: dict[Any, Any], place: str, rewrite: Rewrite) -> dict[Any, Any]:
    new: dict[Any, Any] = {}
    for key, item in value.items():
        new_key = _rewritten(key, f"{place} key", rewrite)
        if new_key in new:  # two keys differed only in removed parts: both items are kept
            new_key = f"{new_key} ({len(new)})"
        new[new_key] = _rewritten(item, place, rewrite)
    return value if all(a is b and new[b] is value[a] for a, b in zip(value, new, strict=True)) else new


def records_in(value: object) -> Iterator[msgspec.Struct]:
    """Yields a record and the records in its fields, at any depth; skips fields that cannot hold text."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name, _ in text_fields(type(value)):
            yield from records_in(getattr(value, name))
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from records_in(item)


@functools.cache
def text_fields(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """Returns the fields that can hold text, with places: ``("rule", "Finding.rule")``; for a dataclass, all fields."""
    assert isinstance(kind, type)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, msgspec.Struct):
        names = [field.name for field in msgspec.structs.fields(kind) if _may_hold_text(field.type)]
    else:
        names = []
    return tuple((name, f"{kind.__name__}.{name}") for name in names)


def _may_hold_text(kind: Any) -> bool:
    if isinstance(kind, type) and (
        kind in (str, object) or issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    ):
        return True
    return kind is Any or (get_origin(kind) is not Literal and any(map(_may_hold_text, get_args(kind))))


# ---------------------------------------------------------------------------------------------- secrets and addresses
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_SHORTHANDS = {
    "{WORD}": r"(?:password|passwd|passphrase|pwd|secret|credentials?"
    r"|(?:api|access|secret|private|auth|account|signing|session|encryption)[_-]?key(?:[_-]?id)?"
    r"|(?:(?:auth|access|api|bearer|refresh|session|security|hf|github|gh|gitlab|wandb|login|id)[_-]?)?token)",
    "{NAME}": SECRET_NAME,
    "{OCTET}": _OCTET,
    "{IP}": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
}
_HARMLESS = re.compile(r"(?i)none|null|true|false|[\d.,]+|self\..*|<.*|\.\.\.|\*+|x+")
_NAME_LIKE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)*")
_CERTAIN = re.compile(rf"(?i)pass|pwd|secret|(?-i:{SECRET_NAME})")
_MAY_HOLD_SECRET = re.compile(
    r"[@=%]|://|::|: |\d[.:]\w+[.:]\w|[\w.-]{13}|(?i:pass|pwd|key|secret|token|bearer|cookie|credential|mysql|wandb)"
)


def _assigned(match: re.Match[str]) -> str:
    value = match[3] or match[4]
    # A tensor may be called token: token=hidden.mean is code, token=hunter2 is a secret.
    is_code = match[2] is None and _NAME_LIKE.fullmatch(value) and _CERTAIN.search(match[1]) is None
    return match.group() if is_code or _HARMLESS.fullmatch(value) else f"{match[1]}{match[2] or ''}{TOKEN}"


@functools.cache
def _secrets() -> tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]:
    """Reads the patterns in ``secrets.txt`` and their replacements, in the order of the file."""
    lines = (resources.files("layoutdoctor.privacy") / "secrets.txt").read_text(encoding="utf-8").splitlines()
    found: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = []
    for replacement, tab, pattern in (line.partition("\t") for line in lines):
        if tab:
            for short, long in _SHORTHANDS.items():
                pattern = pattern.replace(short, long)
            found.append((re.compile(pattern), _assigned if replacement == "assigned" else replacement))
    return tuple(found)
