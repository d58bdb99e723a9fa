"""Diagnoses in which every free text begins with something planted, or some value is another one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
from golden.stories import STORIES

from layoutdoctor.diagnosis.diagnosis import Diagnosis

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence

WORDS = frozenset(
    "mode backend layout_optimization model_format input_format status direction tensor owner verdict severity class "
    "role memory_formats seconds_source confidence sources part purpose".split()
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
    if key == "cause":
        return "message" in record  # of a conversion it is free text
    return key in WORDS or (key == "evidence" and isinstance(record[key], str))


def mutate(record: object, chance: random.Random, values: Sequence[object]) -> None:
    """Changes, drops, doubles or moves one value somewhere in a JSON document, or adds a key."""
    containers = [container for container in _containers_of(record) if container]
    container = chance.choice(containers)
    key = _key_of(container, chance)
    kind = chance.random()
    if kind < 0.15:
        del container[key]
    elif kind < 0.3 and isinstance(container, list):
        container.append(container[key])
    elif kind < 0.3:
        container["unheard of"] = 1
    elif kind < 0.45:
        source = chance.choice(containers)
        container[key] = json.loads(json.dumps(source[_key_of(source, chance)]))
    else:
        container[key] = chance.choice(values)


def _key_of(container: Any, chance: random.Random) -> Any:
    return chance.choice(list(container)) if isinstance(container, dict) else chance.randrange(len(container))


def _containers_of(value: object) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _containers_of(part)
