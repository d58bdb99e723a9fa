"""The device and the versions that a recorded trace names, as far as it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from layoutdoctor.records import Environment

if TYPE_CHECKING:
    from layoutdoctor.traces.recorded import RecordedTrace

_SETTINGS = ("record_shapes", "with_stack", "profile_memory", "with_flops", "with_modules", "schemaVersion")
_TEXT_LENGTH = 200


def device_of(trace: RecordedTrace) -> str | None:
    """
    The device type in torch's words; None where no device ran anything.

    Args:
        trace: Any recorded trace.
    """
    if not len(trace.kernels):
        return "cpu" if len(trace.operations) else None
    return "xpu" if "xpu" in " ".join(_device_names(trace)).lower() else "cuda"


def describe_environment(trace: RecordedTrace) -> Environment:
    """
    What a trace says of the machine it was recorded on.

    Args:
        trace: Any recorded trace.
    """
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
    used: list[object] = np.unique(trace.kernels.device).tolist()  # a list: an id may be anything
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
