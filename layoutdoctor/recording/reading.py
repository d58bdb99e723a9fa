"""A recorded run from elsewhere as a recording: a trace, a table of kernels, or a log of oneDNN."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from layoutdoctor._version import __version__
from layoutdoctor.diagnosis.records import Configuration, Environment, Subject, Trial
from layoutdoctor.diagnosis.saved import DEFAULT_MOST_BYTES
from layoutdoctor.errors import TraceError
from layoutdoctor.recording.chrome import read_chrome_trace
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.onednn import OnednnLog, read_onednn_log
from layoutdoctor.recording.recognize import recognize
from layoutdoctor.recording.recording import Head, Iteration, KernelTotals, RecordedTrace, Recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from layoutdoctor.recording.recording import Problem

__all__ = ["DEFAULT_MOST_BYTES", "KernelTotals", "OnednnLog", "RecordedTrace", "read_trace"]


def read_trace(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> RecordedTrace | KernelTotals | OnednnLog:
    """
    Reads a recorded run of any known kind.

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
        from layoutdoctor.recording.nsys import read_nsys_export  # late: few traces are databases

        return read_nsys_export(path)
    if kind == "kernel_csv":
        from layoutdoctor.recording.table import read_kernel_csv

        return read_kernel_csv(path, most_bytes)
    if kind == "onednn_log":
        text = b"".join(file.pieces()).decode("utf-8", "replace")
        return read_onednn_log(text)
    raise TraceError(
        f"cannot examine {path.name!r}: it is a saved diagnosis, not a trace; "
        f"show it with layoutdoctor render {path.name}"
    )


RECORDED = Configuration(
    name="recorded",
    backend="recorded",
    layout_optimization=None,
    model_format=None,
    input_format=None,
)

_SETTINGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules", "schemaVersion")
_TEXT_LENGTH = 200


def read_recorded(path: Path, most_bytes: int = DEFAULT_MOST_BYTES) -> Recording:
    """
    Reads a recorded run of any known kind.

    Raises:
        TraceError: The file cannot be read, or is none of the known kinds.
    """
    found = read_trace(path, most_bytes)
    trial = Trial(configuration=RECORDED, status="ok")
    if isinstance(found, RecordedTrace):
        device = device_of(found)
        head = _head(path.name, describe_environment(found), device, found.problems)
        return Recording(head=head, trial=trial, source="trace", iterations=(Iteration(events=found, device=device),))
    if isinstance(found, KernelTotals):
        head = _head(path.name, Environment(torch=None), "cuda", found.problems)
        return Recording(head=head, trial=trial, source="table", totals=found)
    environment = Environment(torch=None, onednn=found.version, onednn_isa=found.isa)
    return Recording(head=_head(path.name, environment, "cpu", ()), trial=trial, source="log", log=found)


def _head(name: str, environment: Environment, device: str | None, problems: Sequence[Problem]) -> Head:
    notes = tuple(f"{problem.what} ({problem.count})" if problem.count > 1 else problem.what for problem in problems)
    return Head(
        layoutdoctor_version=__version__,
        created_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        environment=environment,
        subject=Subject(name=name, mode="trace", device=device, inputs=(), notes=notes),
        configurations=(RECORDED.name,),
    )


def device_of(trace: RecordedTrace) -> str | None:
    """The device type in torch's words; None where no device ran anything."""
    if not len(trace.kernels):
        return "cpu" if len(trace.operations) else None
    return "xpu" if "xpu" in " ".join(_device_names(trace)).lower() else "cuda"


def describe_environment(trace: RecordedTrace) -> Environment:
    """What a trace says of the machine it was recorded on."""
    metadata = trace.metadata
    names = _device_names(trace)
    inner = metadata.get("metadata")
    versions = [source for source in (metadata, inner) if isinstance(source, dict)]
    return Environment(
        torch=_first(versions, "torch_version", "pytorch_version"),
        cuda=_cuda_version(metadata.get("cuda_runtime_version")),
        device_name=", ".join(dict.fromkeys(names)) or None,
        settings={key: _text(metadata[key]) for key in _SETTINGS if key in metadata},
    )


def _device_names(trace: RecordedTrace) -> list[str]:
    """Names of the devices that ran kernels, else of all that are listed."""
    listed = trace.metadata.get("deviceProperties")
    devices = [device for device in listed if isinstance(device, dict)] if isinstance(listed, list) else []
    used: list[object] = sorted(set(trace.kernels.device.tolist()))  # a list: an id may be anything
    chosen = [device for device in devices if device.get("id") in used] or (devices[:1] if used else devices)
    return [_text(device["name"]) for device in chosen if isinstance(device.get("name"), str)]


def _first(sources: list[dict[str, Any]], *keys: str) -> str | None:
    return next((_text(source[key]) for source in sources for key in keys if isinstance(source.get(key), str)), None)


def _cuda_version(number: object) -> str | None:
    """``12040`` as ``12.4``."""
    if not isinstance(number, int) or isinstance(number, bool) or not 1000 <= number < 1_000_000:
        return None
    return f"{number // 1000}.{number % 1000 // 10}"


def _text(value: object) -> str:
    return str(value)[:_TEXT_LENGTH]
