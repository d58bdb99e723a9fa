"""The base of all records, and the quantities that their fields hold."""

from __future__ import annotations

from typing import Annotated

import msgspec

# msgspec checks these bounds when it reads a saved file; they keep sums of the values finite.
NonNegativeSeconds = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
PositiveSeconds = Annotated[float, msgspec.Meta(ge=1e-12, le=1e15)]
Moment = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""Seconds, which may be negative: a difference of two times, or a time after the start of the profiled iteration."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Integer = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1.001)]
"""A share from 0 to 1; it may be a little above 1, because sums in another order are rounded differently."""
Factor = Annotated[float, msgspec.Meta(ge=1e-15, le=1e15)]
Magnitude = Annotated[float, msgspec.Meta(ge=0)]
REPR_LENGTH = 200


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all records: frozen, built by keyword, shown on one line."""

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={value!r:.60}" for name, value in fields if isinstance(value, str | int | float) and value)
        return f"{type(self).__name__}({', '.join(shown)})"[:REPR_LENGTH]
