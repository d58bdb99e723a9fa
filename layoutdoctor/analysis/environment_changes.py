"""
Which versions, devices and settings two diagnoses do not share.

Faces the comparisons of traces and models; pure functions of records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.comparison_records import EnvironmentDifference

if TYPE_CHECKING:
    from layoutdoctor.records import Diagnosis

_FIELDS = (
    "device_name",
    "torch",
    "cuda",
    "cudnn",
    "triton",
    "onednn",
    "onednn_isa",
    "compiler",
    "python",
    "platform",
    "thread_count",
    "cpu_count",
)


def environment_changes(old: Diagnosis, new: Diagnosis) -> tuple[EnvironmentDifference, ...]:
    """
    What is not the same, the device first, then versions, then settings by name.

    Args:
        old: The earlier diagnosis.
        new: The later one.
    """
    values = [("device", old.subject.device, new.subject.device)]
    values += [(name, getattr(old.environment, name), getattr(new.environment, name)) for name in _FIELDS]
    before, after = old.environment.settings, new.environment.settings
    values += [(f"setting {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    return tuple(
        EnvironmentDifference(name=name, old=None if once is None else str(once), new=None if now is None else str(now))
        for name, once, now in values
        if once != now
    )


def has_another_device(old: Diagnosis, new: Diagnosis) -> bool:
    """
    Whether two diagnoses are known to come from different devices.

    Args:
        old: The earlier diagnosis.
        new: The later one.
    """
    pairs = (
        (old.subject.device, new.subject.device),
        (old.environment.device_name, new.environment.device_name),
    )
    return any(once is not None and now is not None and once != now for once, now in pairs)


def has_another_machine(old: Diagnosis, new: Diagnosis) -> bool:
    """
    Whether two diagnoses are known to come from machines whose times cannot be compared: also by the threads used.

    Args:
        old: The earlier diagnosis.
        new: The later one.
    """
    names = ("onednn_isa", "cpu_count", "thread_count")
    pairs = [(getattr(old.environment, name), getattr(new.environment, name)) for name in names]
    return has_another_device(old, new) or any(
        once is not None and now is not None and once != now for once, now in pairs
    )
