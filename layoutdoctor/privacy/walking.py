"""
A walk over every string of a record, whatever its fields are called: one added later is covered.

Fields that can hold nothing but numbers or words of a fixed list are left alone.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import msgspec
import msgspec.inspect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    Rewrite = Callable[[str, str], str]
    """From a string and its place (``"Finding.message"``; a dict's keys end in ``" key"``) to what takes its place."""

    AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)

_INTEGERS = frozenset((int,))
_WITHOUT_TEXT = (
    msgspec.inspect.NoneType,
    msgspec.inspect.BoolType,
    msgspec.inspect.IntType,
    msgspec.inspect.FloatType,
    msgspec.inspect.LiteralType,
)


def rewrite_record(record: AnyRecord, rewrite: Rewrite) -> AnyRecord:
    """
    The record with every string rewritten; what holds no changed string stays the same object.

    Args:
        record: Any record.
        rewrite: What to make of a string at its place.
    """
    changed = {}
    for name, place in text_fields(type(record)):
        value = getattr(record, name)
        new = _rewritten(value, place, rewrite)
        if new is not value:
            changed[name] = new
    return msgspec.structs.replace(record, **changed) if changed else record


def _rewritten(value: object, place: str, rewrite: Rewrite) -> object:
    if isinstance(value, str):
        new = rewrite(value, place)
        return value if new == value else new
    if value is None:
        return value
    if isinstance(value, (tuple, list)):
        if _INTEGERS.issuperset(map(type, value)):
            return value  # most are: the sizes of a layout
        items = [_rewritten(item, place, rewrite) for item in value]
        return type(value)(items) if any(map(_is_not, items, value)) else value
    if isinstance(value, msgspec.Struct):
        return rewrite_record(value, rewrite)
    if isinstance(value, dict):
        return _rewritten_dict(value, place, rewrite)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _rewritten_dataclass(value, place, rewrite)
    return value


def _rewritten_dataclass(value: Any, place: str, rewrite: Rewrite) -> Any:
    """Of a recording: events, and lines of a log."""
    changed = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        new = _rewritten(old, f"{place}.{field.name}", rewrite)
        if new is not old:
            changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value


def _is_not(new: object, old: object) -> bool:
    return new is not old


def _rewritten_dict(value: dict[object, object], place: str, rewrite: Rewrite) -> dict[object, object]:
    new: dict[object, object] = {}
    for key, item in value.items():
        new_key = _rewritten(key, f"{place} key", rewrite)
        if new_key in new:  # two names that differed in what was removed; neither entry may be lost
            new_key = f"{new_key} ({len(new)})"
        new[new_key] = _rewritten(item, place, rewrite)
    same = all(a is b and new[b] is value[a] for a, b in zip(value, new, strict=True))
    return value if same else new


def records_in(value: object) -> Iterator[msgspec.Struct]:
    """
    The record and every record in it, in the order of their fields.

    Args:
        value: A record, or what a field of one holds.
    """
    if isinstance(value, msgspec.Struct):
        yield value
        for name, _ in text_fields(type(value)):
            yield from records_in(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for item in value:
            if not isinstance(item, str):
                yield from records_in(item)
    elif isinstance(value, dict):
        yield from records_in(tuple(value.values()))


@functools.cache
def text_fields(record_type: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """
    The fields of a record that can hold free text, themselves or within: each with its place.

    Args:
        record_type: The record's class.
    """
    kind = msgspec.inspect.type_info(record_type)
    assert isinstance(kind, msgspec.inspect.StructType)
    return tuple(
        (field.name, f"{record_type.__name__}.{field.name}") for field in kind.fields if _may_hold_text(field.type)
    )


def _may_hold_text(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_may_hold_text, kind.types))
    if isinstance(kind, (msgspec.inspect.VarTupleType, msgspec.inspect.ListType)):
        return _may_hold_text(kind.item_type)
    if isinstance(kind, msgspec.inspect.Metadata):
        return _may_hold_text(kind.type)
    return not isinstance(kind, _WITHOUT_TEXT)
