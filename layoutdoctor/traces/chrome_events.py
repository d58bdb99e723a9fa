"""
One event of a Chrome trace: which of its fields are read, and how it is decoded, strictly or loosely.

Faces ``chrome``; no torch.
"""

from __future__ import annotations

from typing import Any

import msgspec

EventId = int | str | float | None
NO_TEXT = msgspec.Raw(b"")


class EventArguments(
    msgspec.Struct,
    gc=False,
    frozen=True,
    rename={
        "external": "External id",
        "external_2020": "external id",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "shapes": "Input Dims",
        "shapes_2020": "Input dims",
        "strides": "Input Strides",
        "types": "Input type",
        "values": "Concrete Inputs",
        "kernel_options": "kernel_kwargs",
        "call_stack": "Call stack",
    },
):
    """
    What is read of an event's ``args``; texts that are not always needed stay JSON.

    Names with ``_2020`` are those of torch 1.8 and 1.9.
    """

    external: EventId = None
    external_2020: EventId = None
    correlation: EventId = None
    sequence: EventId = None
    forward_thread: EventId = None
    stream: EventId = None
    device: EventId = None
    grid: msgspec.Raw = NO_TEXT
    shapes: msgspec.Raw = NO_TEXT
    shapes_2020: msgspec.Raw = NO_TEXT
    strides: msgspec.Raw = NO_TEXT
    types: msgspec.Raw = NO_TEXT
    values: msgspec.Raw = NO_TEXT
    kernel_file: msgspec.Raw = NO_TEXT
    kernel_options: msgspec.Raw = NO_TEXT
    call_stack: msgspec.Raw = NO_TEXT


_NO_ARGUMENTS = EventArguments()
_NOT_A_NUMBER = float("nan")


class ChromeEvent(msgspec.Struct, gc=False):
    """An event; times are microseconds on the trace's own clock, and not a number where they are missing."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: EventId = None
    tid: EventId = None
    ts: float | int = _NOT_A_NUMBER  # an event without its time is not understood
    dur: float | int = _NOT_A_NUMBER
    args: EventArguments = _NO_ARGUMENTS


decode_events = msgspec.json.Decoder(list[ChromeEvent]).decode
_decode_one = msgspec.json.Decoder(ChromeEvent).decode
_ANYTHING = msgspec.json.Decoder()


def decode_loosely(text: bytes) -> ChromeEvent | None:
    """An event some of whose fields are of another type than profilers write; None where it is no event."""
    try:
        return _decode_one(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        cleaned = _cleaned(_ANYTHING.decode(text.decode("utf-8", "replace")))
        return _decode_one(msgspec.json.encode(cleaned)) if cleaned is not None else None
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeEncodeError):
        return None


def _cleaned(found: Any) -> dict[str, Any] | None:
    """The fields of an event that have the types that profilers write; None where it is no event."""
    if not isinstance(found, dict):
        return None
    cleaned = {key: value for key, value in found.items() if _fits(key, value)}
    arguments = found.get("args")
    if isinstance(arguments, dict):
        cleaned["args"] = {key: value for key, value in arguments.items() if key not in _IDS or _is_id(value)}
    if cleaned.get("ph") == "X" and not cleaned.keys() >= _TIMES:
        return None  # an event whose time is not known
    return cleaned


_TIMES = {"ts", "dur"}
_IDS = {"External id", "external id", "correlation", "Sequence number", "Fwd thread id", "stream", "device"}


def _fits(key: str, value: object) -> bool:
    if key in ("ph", "cat", "name"):
        return isinstance(value, str)
    if key in _TIMES:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return key in ("pid", "tid") and _is_id(value)


def _is_id(value: object) -> bool:
    return isinstance(value, (int, str, float)) and not isinstance(value, bool)
