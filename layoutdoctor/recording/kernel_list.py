"""
A list of single kernels in CSV as a recorded run: starts, streams and launch grids, and nothing of the host.

Source:
    ``nsys stats`` 2021 to 2026 (cuda_gpu_trace), ``nvprof --print-gpu-trace``, rocprofv3 and rocprof (kernel traces),
    as they stand in public repositories.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from layoutdoctor.recording.recording import (
    NONE,
    FrameEvents,
    KernelEvents,
    LaunchEvents,
    OperationEvents,
    RecordedTrace,
    TransferEvents,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from layoutdoctor.recording.recording import Column

_Events = TypeVar("_Events", KernelEvents, TransferEvents, OperationEvents, LaunchEvents, FrameEvents)
_TRANSFERS = ("[CUDA mem", "Memcpy ", "Memset ")
_DEVICE = re.compile(r"^(.*?)\s*\(?(\d{1,6})\)?$")


@dataclass(frozen=True)
class EventTitles:
    """
    Columns of a list of kernels, by their titles in lower case.

    Attributes:
        start: When the kernel began.
        end: When it ended, where that is listed in place of how long it took.
        grid: Sizes of the launch; of ROCm in work items, so that ``group``, the sizes of a work group, divide them.
    """

    start: str
    end: str | None = None
    device: str = "device"
    stream: str = "stream"
    correlation: str | None = None
    grid: tuple[str, ...] = ()
    group: tuple[str, ...] = ()


@dataclass
class ListedEvents:
    """Kernels and copies of a list while it is read."""

    names: dict[str, int] = field(default_factory=dict)
    grids: dict[tuple[int, int, int], int] = field(default_factory=dict)
    devices: dict[int, str] = field(default_factory=dict)
    kernels: list[tuple[int, ...]] = field(default_factory=list)
    transfers: list[tuple[int, ...]] = field(default_factory=list)

    def add(
        self, titles: EventTitles, name: str, start: int, duration: int, cell: Callable[[str], str], *, is_kernel: bool
    ) -> None:
        """
        Adds one row.

        Args:
            start: Nanoseconds, of any clock.
            cell: What stands under a title; empty where the list has no such column.
        """
        number = self.names.setdefault(name, len(self.names))
        device, stream = self._device(cell(titles.device)), _number(cell(titles.stream))
        if not is_kernel:
            self.transfers.append((number, start, duration, device, stream))
            return
        correlation = _number(cell(titles.correlation)) if titles.correlation is not None else NONE
        self.kernels.append((number, start, duration, device, stream, correlation, self._grid(titles, cell)))

    def trace(self, source: str) -> RecordedTrace:
        """The run, sorted by start."""
        kernels, transfers = (np.array(rows, np.int64) for rows in (self.kernels, self.transfers))
        kernels, transfers = kernels.reshape(-1, 7), transfers.reshape(-1, 5)
        base = int(min((part[:, 1].min() for part in (kernels, transfers) if len(part)), default=0))
        columns = ("name", "start", "duration", "device", "stream", "correlation", "grid")
        named = {"deviceProperties": [{"id": n, "name": text} for n, text in sorted(self.devices.items()) if text]}
        return RecordedTrace(
            source=source,
            names=list(self.names),
            kernels=_events(KernelEvents, dict(zip(columns, kernels.T, strict=True)), base),
            transfers=_events(TransferEvents, dict(zip(columns, transfers.T, strict=False)), base),
            operations=_events(OperationEvents, {}, base),
            launches=_events(LaunchEvents, {}, base),
            frames=_events(FrameEvents, {}, base),
            annotations=_events(FrameEvents, {}, base),
            processes=["not recorded"],
            grids=list(self.grids),
            metadata=named if named["deviceProperties"] else {},
            event_count=len(kernels) + len(transfers),
            base_nanoseconds=base,
        )

    def _device(self, text: str) -> int:
        """``NVIDIA A100 (0)``, ``Agent 2`` and ``2`` all end in a number; the only one of a list may have none."""
        found = _DEVICE.match(text)
        number, name = (int(found[2]), found[1]) if found is not None else (0 if text else NONE, text)
        self.devices.setdefault(number, "" if name == "Agent" else name)
        return number

    def _grid(self, titles: EventTitles, cell: Callable[[str], str]) -> int:
        sizes = [_number(cell(title)) for title in titles.grid]
        groups = [_number(cell(title)) for title in titles.group] or [1, 1, 1]
        if len(sizes) != 3 or min(*sizes, *groups) < 1:
            return NONE
        x, y, z = (-(-size // group) for size, group in zip(sizes, groups, strict=True))
        return self.grids.setdefault((x, y, z), len(self.grids))


def is_transfer(name: str) -> bool:
    """Whether a row is a copy or fill by the device's own engines."""
    return name.startswith(_TRANSFERS)


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else NONE


def _events(kind: type[_Events], known: Mapping[str, Column], base: int) -> _Events:
    """Columns of a table; what a list does not tell is ``NONE``, and the process the only one."""
    start = known["start"] - base if known else np.zeros(0, np.int64)
    order = np.argsort(start, kind="stable")
    columns: Iterable[tuple[str, Column]] = (
        (name, known.get(name, np.full(len(start), 0 if name == "process" else NONE, np.int64)))
        for name in kind.__slots__
    )
    return kind(**{name: (start if name == "start" else column)[order] for name, column in columns})
