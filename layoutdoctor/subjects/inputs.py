"""Reads example inputs from text, such as ``f32[8,3,224,224]:channels_last``, and makes their tensors."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from layoutdoctor.errors import SubjectError, UsageError, first_line
from layoutdoctor.subjects.copies import CHANNELS_LAST, in_format
from layoutdoctor.words import DTYPES

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import FormatChoice

EXPECTED_FORM = "[NAME=]DTYPE[SIZE,SIZE,...][:channels_last|:contiguous], such as 'f32[8,3,224,224]:channels_last'"
_SHORT_DTYPES = ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "i64", "bool")
_LONG_DTYPES = tuple(DTYPES[short] for short in _SHORT_DTYPES)
_FORMATS = ("channels_last", "contiguous")
_SPEC = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<dtype>[A-Za-z_]\w*)\[(?P<shape>[^\[\]]*)\](?::(?P<memory_format>[^:]*))?"
)
_INTEGER_LIMIT = 10
_MOST_ELEMENTS = 2**63 - 1  # torch counts elements in 64 bits
_SEED = 0


@dataclass(frozen=True)
class InputSpec:
    """One example input, as its text describes it. Without a ``memory_format``, the input is contiguous."""

    dtype: str
    shape: tuple[int, ...]
    memory_format: FormatChoice | None = None
    name: str | None = None


def parse_input(spec: str) -> InputSpec:
    """Reads one ``--input``, as in ``EXPECTED_FORM``; ignores blanks; raises ``UsageError`` for any other text."""
    match = _SPEC.fullmatch("".join(spec.split()))
    if match is None:
        raise UsageError(f"cannot read input {spec!r}: expected {EXPECTED_FORM}")
    dtype = parse_dtype(match["dtype"], f"input {spec!r}")
    shape = _parse_shape(match["shape"], spec)
    memory_format: Any = match["memory_format"]
    if memory_format is not None and memory_format not in _FORMATS:
        raise UsageError(
            f"cannot read input {spec!r}: got memory format {memory_format!r}, expected {' or '.join(_FORMATS)}"
        )
    if memory_format == "channels_last" and len(shape) not in CHANNELS_LAST:
        raise UsageError(f"cannot make input {spec!r} channels_last: got {len(shape)} dimensions, expected 4 or 5")
    return InputSpec(str(dtype).removeprefix("torch."), shape, memory_format, match["name"])


def parse_dtype(name: str, where: str = "--dtype") -> torch.dtype:
    """
    Finds a dtype by its short or long name.

    Args:
        where: Place of the name, for the error message.

    Raises:
        UsageError: There is no such dtype.
    """
    plain = re.sub(r"^fp(?=\d)", "f", name.removeprefix("torch.").lower())
    if DTYPES.get(plain) not in _LONG_DTYPES or len(plain) < 2:  # only mangled kernel names use names of one letter
        close = difflib.get_close_matches(plain, [*_SHORT_DTYPES, *_LONG_DTYPES], n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"cannot read {where}: got dtype {name!r}, expected one of {', '.join(_SHORT_DTYPES)}{hint}")
    return getattr(torch, DTYPES[plain])


def _parse_shape(text: str, spec: str) -> tuple[int, ...]:
    if not text:
        return ()
    sizes = []
    for part in text.split(","):
        if not part.isdecimal():
            raise UsageError(
                f"cannot read input {spec!r}: got size {part!r}, expected whole numbers separated by commas, "
                "such as 'f32[8,3,224,224]'"
            )
        sizes.append(int(part))
    if math.prod(sizes) > _MOST_ELEMENTS or max(sizes) > _MOST_ELEMENTS:
        raise UsageError(f"cannot read input {spec!r}: got more elements than torch can count; give smaller sizes")
    return tuple(sizes)


def make_inputs(specs: Sequence[InputSpec]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Makes positional and keyword arguments: normal random numbers or small integers, the same in every run.

    Raises:
        UsageError: Two inputs have the same name.
        SubjectError: A tensor does not fit into memory.
    """
    generator = torch.Generator().manual_seed(_SEED)
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    for spec in specs:
        tensor = _make_tensor(spec, generator)
        if spec.name is None:
            args.append(tensor)
        elif spec.name in kwargs:
            raise UsageError(f"cannot give the input {spec.name!r} twice: expected each keyword once")
        else:
            kwargs[spec.name] = tensor
    return tuple(args), kwargs


def _make_tensor(spec: InputSpec, generator: torch.Generator) -> torch.Tensor:
    own: torch.dtype = getattr(torch, spec.dtype)
    try:
        if own.is_floating_point:
            tensor = torch.randn(spec.shape, generator=generator, device="cpu", dtype=torch.float32).to(own)
        else:
            limit = 2 if own == torch.bool else _INTEGER_LIMIT
            tensor = torch.randint(limit, spec.shape, generator=generator, device="cpu", dtype=torch.int64).to(own)
        return in_format(tensor, spec.memory_format)
    except (RuntimeError, MemoryError) as error:
        raise SubjectError(
            f"cannot make an input of {spec.dtype}{list(spec.shape)}: {first_line(error)}; give smaller sizes"
        ) from error
