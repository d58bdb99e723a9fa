"""
A hand count of a Kineto trace: which kernels convert a layout, by their names and by the generated code alone.

Knows nothing of layoutdoctor and imports nothing of it, so that its counts can be held against layoutdoctor's. It is
meant to be read in one go and believed: a few names, and "a loop that loads, stores elsewhere, and computes nothing".
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIBRARY = re.compile(
    r"(nchwToNhwc|nhwcToNchw|nchwToNhwc3To4|nchwToFoldedNhwc)Kernel"  # cuDNN, any namespace
    r"|^batched_transpose_\d+x\d+_|^transpose_(NCHW2CNHW|CNHW2NCHW)_|^general_4d_reorder_"  # MIOpen
)
"""Kernels that a convolution library runs for nothing but a layout."""

EAGER_COPY = re.compile(r"at::native::elementwise_kernel.*direct_copy_kernel_cuda")
"""A copy between different strides by ATen: ``contiguous``, ``to``, ``clone``, ``copy_``."""

GENERATED = re.compile(r"^(triton|cpp)_(?!tem_)")
ANNOTATED = re.compile(r"^layoutdoctor::.*::(?P<kernel>cpp_\w+)$")
"""On a processor a generated kernel has no event; the range that a live diagnosis puts around it stands for it."""

LOOKS_LIKE_ONE = re.compile(r"nhwc|nchw|transpose|permut|reorder|transform|padding|folded|convertTensor", re.IGNORECASE)


@dataclass
class Count:
    """
    What was counted in one trace.

    Attributes:
        kernel_count: Kernels on the device.
        seconds: Their time.
        library: Library conversions by kernel name, launch by launch.
        eager_copies: Launches of ATen's strided copies.
        generated: Launches of the compiler's kernels by name.
        moving: Those of them whose code only moves elements to other places.
        unread: Generated kernels whose code could not be found, so that nobody knows whether they only move.
        seconds_of: Time of the three kinds, by ``library``, ``eager_copies``, ``moving``.
        look_alikes: Other kernels with a word in their names that could mean a conversion: for the reader's eye.
    """

    kernel_count: int = 0
    seconds: float = 0.0
    library: Counter[str] = field(default_factory=Counter)
    eager_copies: int = 0
    generated: Counter[str] = field(default_factory=Counter)
    moving: Counter[str] = field(default_factory=Counter)
    unread: tuple[str, ...] = ()
    seconds_of: dict[str, float] = field(default_factory=dict)
    look_alikes: tuple[str, ...] = ()

    def groups(self) -> Counter[str]:
        """Launches of everything that only converts or copies, by what to call it."""
        groups = Counter({"aten copy": self.eager_copies, "generated copy": self.moving.total()})
        for name, count in self.library.items():
            groups[short_name(name)] += count
        return +groups


def short_name(kernel: str) -> str:
    """
    A kernel's name without types and namespaces.

    Args:
        kernel: As the trace has it.
    """
    found = LIBRARY.search(kernel)
    if found is not None and found.group(1):
        return found.group(0)
    return re.split(r"[<(]", kernel.removeprefix("void "))[0].rsplit("::", 1)[-1]


def group_of(kernel: str | None) -> str:
    """
    The group that a kernel counts in, as ``Count.groups`` calls them.

    Args:
        kernel: As the trace has it; None where not known.
    """
    if kernel is None:
        return "unknown"
    if LIBRARY.search(kernel):
        return short_name(kernel)
    if GENERATED.search(kernel):
        return "generated copy"
    return "aten copy" if "copy" in kernel else short_name(kernel)


def count_kernels(trace: Path | bytes) -> Count:
    """
    Counts the conversions of a trace.

    Args:
        trace: The file, gzipped or not, or its text.
    """
    events = [event for event in _events(trace) if isinstance(event, dict) and event.get("ph") == "X"]
    files = _source_files(events)
    count = Count(seconds_of=dict.fromkeys(("library", "eager_copies", "moving"), 0.0))
    look_alikes: set[str] = set()
    unread: set[str] = set()
    for event in events:
        name, seconds = str(event.get("name", "")), float(event.get("dur", 0)) * 1e-6
        annotated = ANNOTATED.match(name)
        if annotated is not None:
            count.generated[annotated["kernel"]] += 1
            unread.add(annotated["kernel"])
        if str(event.get("cat", "")).lower() != "kernel":
            continue
        count.kernel_count += 1
        count.seconds += seconds
        if LIBRARY.search(name):
            count.library[name] += 1
            count.seconds_of["library"] += seconds
        elif EAGER_COPY.search(name):
            count.eager_copies += 1
            count.seconds_of["eager_copies"] += seconds
        elif GENERATED.match(name):
            count.generated[name] += 1
            moves = _moves(files.get((name, _launch(event))))
            if moves is None:
                unread.add(name)
            elif moves:
                count.moving[name] += 1
                count.seconds_of["moving"] += seconds
        elif LOOKS_LIKE_ONE.search(name):
            look_alikes.add(name[:160])
    count.unread, count.look_alikes = tuple(sorted(unread)), tuple(sorted(look_alikes))
    return count


def only_moves(source: str) -> bool | None:
    """
    Whether a Triton kernel only loads elements and stores them in other places.

    Args:
        source: The file that Inductor wrote it into.

    Returns:
        None where the file holds no such kernel.
    """
    _, found, body = source.partition("@triton.jit")
    if not found:
        return None
    loads, stores = {}, []
    for line in body.splitlines():
        text = line.split("#")[0].strip()
        load = re.match(r"(tmp\d+) = tl\.load\(\w+ \+ (.*)", text)
        store = re.match(r"tl\.store\(\w+ \+ (.*), (tmp\d+), ", text)
        cast = re.match(r"(tmp\d+) = (tmp\d+)\.to\([\w.]+\)$", text)
        if load is not None:
            loads[load[1]] = _index(load[2])
        elif store is not None:
            stores.append((_index(store[1]), store[2]))
        elif cast is not None and cast[2] in loads:
            loads[cast[1]] = loads[cast[2]]
        elif re.match(r"tmp\d+ = |_tmp\d+ = |tl\.atomic", text):
            return False
    return bool(stores) and all(value in loads for _, value in stores) and any(loads[v] != i for i, v in stores)


def _index(text: str) -> str:
    """The index expression in brackets at the start of a text."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth <= 0:
            return text[: position + 1] if character == ")" else text[:position]
    return text


@functools.cache
def _moves(file: str | None) -> bool | None:
    if file is None:
        return None
    try:
        return only_moves(Path(file).read_text(encoding="utf-8"))
    except OSError:
        return None


def _events(trace: Path | bytes) -> list[Any]:
    data = trace if isinstance(trace, bytes) else trace.read_bytes()
    document = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
    return list(document["traceEvents"] if isinstance(document, dict) else document)


def _launch(event: dict[str, Any]) -> Any:
    """What a kernel and the host's event that launched it have in common."""
    return (event.get("args") or {}).get("External id")


def _source_files(events: list[dict[str, Any]]) -> dict[tuple[str, Any], str]:
    """
    Where Inductor wrote each launched kernel, as the host's event of the launch says.

    A name alone is not enough: each graph numbers its kernels, so forward and backward may both have one of a name.
    """
    files = {}
    for event in events:
        file = (event.get("args") or {}).get("kernel_file")
        if file:
            files[str(event.get("name")), _launch(event)] = str(file)
    return files
