"""
Readers of recorded runs: profiler traces and library logs become plain values, without torch.

``read_trace`` finds out what a file is and reads it. A new format is one file with a reader, one kind in ``recognize``
and one branch here. Faces ``examination``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.errors import TraceError
from layoutdoctor.limits import DEFAULT_MOST_BYTES
from layoutdoctor.traces.chrome import read_chrome_trace
from layoutdoctor.traces.files import TraceFile
from layoutdoctor.traces.onednn import OnednnLog, read_onednn_log
from layoutdoctor.traces.recognize import recognize
from layoutdoctor.traces.recorded import KernelTotals, RecordedTrace

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DEFAULT_MOST_BYTES", "KernelTotals", "OnednnLog", "RecordedTrace", "read_trace"]


def read_trace(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> RecordedTrace | KernelTotals | OnednnLog:
    """
    Reads a recorded run of any known kind.

    Args:
        path: The file.
        most_bytes: How many bytes to read at the most, after unpacking.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    file = TraceFile(path, most_bytes)
    kind = recognize(file.head(), path.name)
    if kind == "chrome":
        return read_chrome_trace(file)
    if kind == "nsys_sqlite":
        if file.is_packed:
            raise TraceError(f"cannot read {str(path)!r}: it is a packed SQLite database; unpack it first")
        from layoutdoctor.traces.nsys import read_nsys_export  # late: few traces are databases

        return read_nsys_export(path)
    if kind == "kernel_csv":
        from layoutdoctor.traces.kernel_csv import read_kernel_csv

        return read_kernel_csv(path, most_bytes)
    if kind == "onednn_log":
        text = b"".join(file.pieces()).decode("utf-8", "replace")
        return read_onednn_log(text)
    raise TraceError(
        f"cannot examine {path.name!r}: it is a saved diagnosis, not a trace; "
        f"show it with layoutdoctor render {path.name}"
    )
