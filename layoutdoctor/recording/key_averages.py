"""
Reads the table of torch.profiler: operations and ranges of the host and, from torch 1.8.1 on, work of the device.

Source:
    ``key_averages().table()`` of torch 0.4 to 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from layoutdoctor.recording.recording import KernelTotal, KernelTotals
from layoutdoctor.recording.table_numbers import PLAIN, whole_nanoseconds
from layoutdoctor.recording.table_rows import TRANSFERS, Columns, Entry, TextTable

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import RecordedTrace
    from layoutdoctor.recording.table_numbers import Notation

KEY_AVERAGES = Columns("key_averages", "name", "name", "# of calls")


class KeyAverages(TextTable):
    """
    A table of torch.profiler while it is read. Own time is torch's "Self CPU" or "Self CUDA".

    Attributes:
        rows: Four sums for each ``(name, whether the row has time on the host)``: calls, own time on the host, own time
            on the device, and time including called operations, on the device if there is one. Times are nanoseconds.
        host, on_device: Titles of the columns of own time; before torch 1.6, of time including called operations. Empty
            without such a column.
        device: Name of the device in the titles; empty if there is only the host.
        totals: Total nanoseconds by device, from the lines below the table.
    """

    def __init__(self, titles: list[str], separator: str, offset: int) -> None:
        super().__init__(KEY_AVERAGES, titles, {}, separator, offset)
        self.rows: dict[tuple[str, bool], list[float]] = {}
        self.totals: dict[str, float | None] = {}
        times = [title for title in titles if re.fullmatch(r"self \w+", title)]
        times += [title for title in titles if re.fullmatch(r"\w+ total", title)]
        self.host = next((title for title in times if "cpu" in title), "")
        self.on_device = next((title for title in times if "cpu" not in title), "")
        self.device = self.on_device.removeprefix("self ").removesuffix(" total")
        counted = self.on_device or self.host
        self._whole_title = f"{counted.removeprefix('self ').removesuffix(' total')} total"
        self.is_nested = not counted.startswith("self ")
        share = f"{counted} %"
        self.share_title = share if share in titles and not self.is_nested else None

    def entry(self, row: Mapping[str, str], notation: Notation) -> Entry | None:
        """Reads a row's calls and its own time on the device, else on the host; None if a number cannot be read."""
        count = notation.whole(row["# of calls"])
        host, device = self._host(row, notation), self._device_time(row, notation)
        if not row["name"] or count < 1 or host is None or device is None:
            return None
        return Entry(row, row["name"], count, device if self.on_device else host, 0)

    def _host(self, row: Mapping[str, str], notation: Notation) -> float | None:
        # torch prints a negative own time for an operation whose children overlap
        return notation.nanoseconds(re.sub(r"^-[\d.]+", "0", row[self.host])) if self.host else 0.0

    def _device_time(self, row: Mapping[str, str], notation: Notation) -> float | None:
        return notation.nanoseconds(row[self.on_device]) if self.on_device else 0.0

    def take_entry(self, entry: Entry) -> None:
        """Adds a row to the sums of its name."""
        notation = self._notations[0]
        host, device = self._host(entry.row, notation) or 0.0, self._device_time(entry.row, notation) or 0.0
        whole = notation.nanoseconds(entry.row.get(self._whole_title, ""))
        known = self.rows.setdefault((entry.name, host > 0), [0, 0, 0, 0])
        for place, value in enumerate((entry.count, host, device, whole or 0.0)):
            known[place] += value
        self.spent.append(self._spent(entry, notation))

    @property
    def has_kernels(self) -> bool:
        """Whether the table lists a kernel."""
        return bool(self.kernels())

    def total(self, device: str) -> float | None:
        """Returns the total time on a device: from the line below the table, else from the percentages, else None."""
        if (known := self.totals.get(device)) is not None:
            return known
        return whole_nanoseconds(self.spent) if device == (self.device or "cpu") else None

    def kernels(self) -> list[KernelTotal]:
        """Returns the rows of kernels and copies, which have no time on the host. Ranges of the host are left out."""
        found = [
            KernelTotal(name, round(count), round(device))
            for (name, on_host), (count, _, device, _) in self.rows.items()
            if device and not on_host and (name, True) not in self.rows and not _IS_OF_THE_HOST.match(name)
        ]
        total = self.total(self.device)  # the rows add up to more if they include ranges of the host
        most = (total or 0.0) * (_ROUNDED if self.totals.get(self.device) is not None else _ROUNDED_PERCENTAGES)
        listed, ranges = sum(row.nanoseconds for row in found), set[str]()
        for row in sorted(found, key=lambda row: -row.nanoseconds):
            if total is not None and listed > most and _MAY_BE_A_RANGE.match(row.name):
                ranges.add(row.name)
                listed -= row.nanoseconds
        return [row for row in found if row.name not in ranges]

    def result(self) -> KernelTotals | RecordedTrace:
        """Returns the kernels without the copies; if there are no kernels, the operations with their own time."""
        ran = self.kernels()
        kernels = [row for row in ran if not row.name.startswith(TRANSFERS)]
        place = 2 if self.on_device and any(times[2] or times[3] for times in self.rows.values()) else 1
        device = "cpu" if place == 1 else _DEVICE_TYPES.get(self.device, self.device)
        total = self.total(self.device if place == 2 else "cpu")
        if kernels:
            listed = sum(row.nanoseconds for row in kernels)
            transferred = sum(row.nanoseconds for row in ran) - listed
            whole = None if total is None else max(0, round(total - transferred))
            if whole is not None and self.device not in self.totals and whole <= 1.01 * listed:
                whole = None  # percentages have too few digits to show that a row is missing
            count, _, time, _ = self.rows.get(("aten::copy_", True), (0, 0, 0, 0))
            copies = KernelTotal("aten::copy_", round(count), round(time)) if time else None
            return KernelTotals("key_averages", kernels, [], device, whole, copies=copies)
        is_old = not any("::" in name for name, _ in self.rows)  # before torch 1.7 operations had no namespace
        sums: dict[str, list[float]] = {}
        for (name, _), times in self.rows.items():
            called = f"aten::{name}" if is_old and name.isidentifier() else name
            if (times[place] or times[3]) and _OPERATION.match(called):
                known = sums.setdefault(called, [0, 0, 0])
                for number, value in enumerate((times[0], times[place], times[3])):
                    known[number] += value
        if place == 1 and any(map(OF_A_GPU.match, sums)):  # the host only launches such operations
            device, sums = "cuda", {}
        operations = [
            KernelTotal(name, round(count), round(time), name, None if self.is_nested else round(whole) or None)
            for name, (count, time, whole) in sums.items()
        ]
        own = [times[place] for times in self.rows.values()]
        misses = total is not None and sum(own) < _NEARLY_ALL * total and not self.is_nested
        whole = None if total is None else round(total)
        return KernelTotals("operation_averages", operations, [], device, whole, self.is_nested, misses)


OF_A_GPU = re.compile(r"aten::_?(?:cudnn|miopen)_(?!is_acceptable)")
"""Operations of native_functions.yaml that run only on a GPU, even if only their time on the host was recorded."""
_NEARLY_ALL = 0.99
_ROUNDED_PERCENTAGES = 1.05  # each percentage has few digits, and there are many rows
_ROUNDED = 1.001  # each row is printed with three decimals
_MAY_BE_A_RANGE = re.compile(r"(?i)(?!.*(?:kernel|gemm|conv|triton|cutlass|cudnn|nccl|sm\d\d_|mem))[\w .#:/*-]+$")
_DEVICE_TYPES = {"device": "cuda", "none": "cuda"}
_IS_OF_THE_HOST = re.compile(
    r"(?:aten|prims?|mkldnn|mkl|quantized|torchvision|autograd)::|nccl:|(?:Optimizer|Torch-Compiled|ProfilerStep)\b|"
    r"## Call Compiled|\[pl\]"
)
_OPERATION = re.compile(r"(?!(?:autograd|torch|profiler|prim|c10d|nccl)\b)[A-Za-z_]\w*::[\w.:]+$")


def totals_below(line: str) -> dict[str, float | None]:
    """Reads the total times of devices from a line below a table; empty for any other line."""
    return {device.lower(): PLAIN.nanoseconds(time) for device, time in _TOTAL.findall(line)}


_TOTAL = re.compile(r"\b(?:Self )?(\w+) time total:\s*([\d.]+ ?\w+)", re.IGNORECASE)
