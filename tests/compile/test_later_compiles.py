"""A diagnosis changes none of the caller's later compiles: compared with a process that never diagnosed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("later_compiles.py")

pytestmark = pytest.mark.compile


def run(diagnosis: str) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(PROGRAM), diagnosis], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return run("none")


def test_the_program_shows_what_it_is_to_show(undisturbed: dict[str, Any]) -> None:
    compiles = {compiled["name"]: compiled for compiled in undisturbed["compiles"]}

    assert len(compiles["before"]["code"]) == 1
    assert compiles["the same again"]["code"] == []
    assert len(compiles["another shape"]["code"]) == 1
    assert compiles["a third shape"]["code"] == []  # the second one made it dynamic
    assert len(compiles["another model, cut"]["code"]) == 2
    assert compiles["another shape"]["code"] != compiles["before"]["code"]


@pytest.mark.parametrize("diagnosis", ["target", "inference"])
def test_later_compiles_are_what_they_would_have_been(undisturbed: dict[str, Any], diagnosis: str) -> None:
    check(undisturbed, run(diagnosis))


def test_later_compiles_are_what_they_would_have_been_after_training(undisturbed: dict[str, Any]) -> None:
    check(undisturbed, run("training"))


def check(undisturbed: dict[str, Any], found: dict[str, Any]) -> None:
    for expected, compiled in zip(undisturbed["compiles"], found["compiles"], strict=True):
        assert compiled["name"] == expected["name"]
        assert compiled["code"] == expected["code"], compiled["name"]
        assert compiled["counters"] == expected["counters"], compiled["name"]
    assert found["globals"] == undisturbed["globals"]
