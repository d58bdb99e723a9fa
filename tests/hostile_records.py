"""Diagnoses in which every free text begins with something planted, made from the stories."""

from __future__ import annotations

from typing import Any

import msgspec
from golden.stories import STORIES

from layoutdoctor.diagnosis.records import Diagnosis

WORDS = frozenset(
    "mode backend layout_optimization model_format input_format status direction tensor owner verdict severity class "
    "role memory_formats seconds_source confidence".split()
)


def hostile_diagnosis(story: str, name: str) -> Diagnosis:
    """A story with a name put before every string that is no word of the contract; what named something still does."""
    return msgspec.convert(_poisoned(msgspec.to_builtins(STORIES[story]()), name), Diagnosis)


def _poisoned(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return name + value
    if isinstance(value, list | tuple):
        return [_poisoned(item, name) for item in value]
    if isinstance(value, dict):
        return {key: item if _is_a_word(key, value) else _poisoned(item, name) for key, item in value.items()}
    return value


def _is_a_word(key: str, record: dict[str, Any]) -> bool:
    """Whether a field holds one of the few words that the contract allows."""
    if key == "kind":
        return "message" not in record  # of a failure it is free text
    return key in WORDS or (key == "evidence" and isinstance(record[key], str))
