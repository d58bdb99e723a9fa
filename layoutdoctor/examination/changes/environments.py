"""Whether two diagnoses were made on the same machine with the same versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.comparison import EnvironmentDifference

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

_MACHINE = ("device", "device_name", "onednn_isa", "cpu_count", "thread_count")
_FIELDS = (
    "device_name",
    "torch",
    "cuda",
    "driver",
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
    """Devices, versions and settings that are not the same; the device first, then versions, then settings by name."""
    values = [("device", old.subject.device, new.subject.device)]
    values += [(name, getattr(old.environment, name), getattr(new.environment, name)) for name in _FIELDS]
    before, after = old.environment.settings, new.environment.settings
    values += [(f"setting {name}", before.get(name), after.get(name)) for name in sorted({*before, *after})]
    return tuple(
        EnvironmentDifference(name=name, old=None if once is None else str(once), new=None if now is None else str(now))
        for name, once, now in values
        if once != now
    )


def has_another_machine(old: Diagnosis, new: Diagnosis) -> bool:
    """Whether two diagnoses are known to come from different devices, processors or thread counts."""
    changes = environment_changes(old, new)
    return any(change.name in _MACHINE and None not in (change.old, change.new) for change in changes)
