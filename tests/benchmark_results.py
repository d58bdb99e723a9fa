"""Small results of the benchmark's parts, with defaults."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {"layoutdoctor": "0.1.0", "torch": "2.11.0", "cudnn": 91002, "device": "a GPU", "date": "2026-01-02"}


def found(**changes: Any) -> dict[str, Any]:
    """What ``diagnoses`` found of one configuration's conversions: two of cuDNN's, one of the compiler's."""
    pair = {"nchwToNhwcKernel": 1, "nhwcToNchwKernel": 1}
    return {
        "kernel_count": 9,
        "live": pair,
        "examined": pair,
        "counted": pair,
        "compiler": 1,
        "compiler_present": 1,
        "absent": [],
        "candidates": [],
        "unread": [],
        "look_alikes": [],
        **changes,
    }


def removed(claimed: int = 0, confirmed: int | None = None, **changes: Any) -> dict[str, Any]:
    """What came of removing a configuration's pairs."""
    measured = {"baseline_seconds": 0.01, "saved_seconds": 0.002, "kernel_seconds_saved": 0.0019}
    return {
        "claimed": claimed,
        "promised_seconds": 0.002 if claimed else 0.0,
        "confirmed": confirmed,
        "cure": "inductor-channels-last" if claimed else None,
        **(measured if confirmed is not None else {}),
        **changes,
    }


def an_item(**changes: Any) -> dict[str, Any]:
    """A network of which everything agrees."""
    timing = {
        "recommended": "inductor-channels-last",
        "fastest_told": "inductor-channels-last",
        "fastest": "inductor-channels-last",
        "regret": 0.0,
        "speedup_promised": 1.25,
        "speedup_measured": 1.26,
        "errors": {},
        "wrong_outputs": [],
        "peak_memory_bytes": {"inductor": [1000, 1010]},
        **changes.pop("timing", {}),
    }
    return {
        "trials": {"inductor": {"status": "ok", "failure": None}},
        "conversions": {"inductor": found()},
        "removal": {"eager": removed(), "inductor": removed(2, 2)},
        "timing": timing,
        "headline": {
            "compiled_over_eager": 1.68,
            "recommended": "inductor-channels-last",
            "blamed": ["LD101 round-trip-conversion: two of them"],
        },
        "traces_left_out": 0,
        "item_seconds": 20.0,
        **changes,
    }


def write(output: Path, part: str, items: dict[str, Any], **changes: Any) -> None:
    """A part's file."""
    record = {"environment": ENVIRONMENT, "small": False, "names": list(items), "items": items, **changes}
    (output / f"{part}.json").write_text(json.dumps(record), encoding="utf-8")
