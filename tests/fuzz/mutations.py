"""
Damages a seed input in every way a file can be damaged, from a number: the same number gives the same bytes for ever.

Used by the fuzz tests; the standard library only.
"""

from __future__ import annotations

import gzip
import random
import re
import zlib
from functools import cache
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
LOGS = Path(__file__).parents[1] / "traces" / "torch_trace"
MOST_BYTES = 1 << 16

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_EXTREME = [
    *(
        b"0 -0 -1 1e308 -1e308 1e999 -1e999 1e-400 0.1 -0.5 1e15 9e15 NaN nan Infinity -inf null true 0x10 01 +1 .5 1."
    ).split(),
    *(
        str(sign * (1 << power) + step).encode()
        for power in (31, 53, 62, 63, 64, 70)
        for sign in (1, -1)
        for step in (-1, 0)
    ),
    b"9" * 400,
    b"9" * 5000,
    b'"7"',
    b"[]",
    b"{}",
    b'"' + b"x" * 300 + b'"',
]
_PIECES = [
    *(
        b'{ } [ ] " , : \\ \\" \\u \\ud800 {"ph": "traceEvents": "args": "ts": \n\n --- , , onednn_verbose, exec'
    ).split(),
    *(b"\n", b"\0", b"\xff\xfe", b"\x1f\x8b", b"\xef\xbb\xbf", b"SQLite format 3\0", b"[" * 2000, b'{"a":' * 2000),
]


def seeds() -> list[Path]:
    """The seed inputs, in order."""
    return sorted(path for folder in (CORPUS, LOGS) for path in folder.iterdir() if path.is_file())


@cache
def _seed_bytes() -> list[tuple[str, bytes]]:
    return [(path.name, path.read_bytes()) for path in seeds()]


def mutated(number: int) -> tuple[str, bytes]:
    """
    A damaged input.

    Args:
        number: Which one.

    Returns:
        The name of the file and its bytes.
    """
    generator = random.Random(number)
    name, data = generator.choice(_seed_bytes())
    if data[:2] == b"\x1f\x8b":
        return name, _mutated_packed(data, generator)
    for _ in range(generator.choice((1, 1, 1, 2, 3, 8))):
        data = generator.choice(_MUTATIONS)(data, generator)
    if generator.random() < 0.05:
        return name + ".gz", _mutated_packed(gzip.compress(data, mtime=0), generator)
    return name, data[:MOST_BYTES]


def _mutated_packed(data: bytes, generator: random.Random) -> bytes:
    """Damage to what is packed, to the packed bytes, or both."""
    kind = generator.choice(("inside", "outside", "both"))
    if kind != "outside":
        inside = generator.choice(_MUTATIONS)(zlib.decompressobj(31).decompress(data), generator)
        data = gzip.compress(inside[:MOST_BYTES], mtime=0)
    if kind != "inside":
        data = generator.choice((_flip, _flip, _cut, _delete, _insert, _repeat))(data, generator)
    return data


def _span(data: bytes, generator: random.Random, longest: int = 200) -> tuple[int, int]:
    start = generator.randrange(len(data) + 1)
    return start, min(len(data), start + int(longest ** generator.random()))


def _flip(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.choice((1, 1, 2, 10))):
        if changed:
            changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, generator: random.Random) -> bytes:
    start, end = _span(data, generator)
    return data[:start] + generator.choice((b"\0", b"\xff", b" ", generator.randbytes(1))) * (end - start) + data[end:]


def _delete(data: bytes, generator: random.Random) -> bytes:
    start, end = _span(data, generator, 2000)
    return data[:start] + data[end:]


def _insert(data: bytes, generator: random.Random) -> bytes:
    start, _ = _span(data, generator)
    return data[:start] + generator.choice((generator.choice(_PIECES), generator.randbytes(4))) + data[start:]


def _cut(data: bytes, generator: random.Random) -> bytes:
    place = generator.randrange(len(data) + 1)
    return generator.choice((data[:place], data[:place], data[place:]))


def _repeat(data: bytes, generator: random.Random) -> bytes:
    start, end = _span(data, generator, 4000)
    return data[:end] + data[start:end] * generator.choice((1, 1, 2, 5)) + data[end:]


def _change_number(data: bytes, generator: random.Random) -> bytes:
    numbers = [match.span() for match in _NUMBER.finditer(data)]
    if not numbers:
        return data
    start, end = generator.choice(numbers)
    return data[:start] + generator.choice(_EXTREME) + data[end:]


def _mix(data: bytes, generator: random.Random) -> bytes:
    """The start of one input and the end of another."""
    _, other = generator.choice(_seed_bytes())
    return data[: generator.randrange(len(data) + 1)] + other[generator.randrange(len(other) + 1) :]


_MUTATIONS = (
    *(_flip, _flip, _overwrite, _delete, _insert, _insert, _cut, _repeat),
    *(_change_number, _change_number, _change_number, _mix),
)
