"""A part goes on where it stopped, whatever stopped it, and never does an item twice that has a result."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
from parts import GOES_ON, Part, parse_arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATER = 1000.0


def a_part(output: Path, **changes: Any) -> Part:
    deadline = time.monotonic() + changes.pop("seconds", LATER)
    return Part(
        **{"name": "part", "output": output, "device": "cpu", "is_small": True, "deadline": deadline, **changes}
    )


def noting(done: list[str]) -> Callable[[str], dict[str, Any]]:
    def do(name: str) -> dict[str, Any]:
        done.append(name)
        return {"length": len(name)}

    return do


def failing(name: str) -> dict[str, Any]:
    raise ValueError(f"{name} fails\nand says why at length")


def written(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "part.json").read_text(encoding="utf-8")))


def test_all_items_are_done_in_their_order(tmp_path: Path) -> None:
    done: list[str] = []

    assert a_part(tmp_path).run(["b", "a", "c"], noting(done)) == 0

    assert done == ["b", "a", "c"]
    record = written(tmp_path)
    assert list(record["items"]) == ["b", "a", "c"] == record["names"]
    assert record["items"]["a"]["length"] == 1
    assert record["begun"] == {}
    assert record["environment"]["device"] == "cpu"


def test_no_item_is_begun_after_the_deadline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done: list[str] = []

    assert a_part(tmp_path, seconds=-1).run(["a", "b"], noting(done)) == GOES_ON

    assert done == []
    assert "2 of 2 items left" in capsys.readouterr().out


def test_the_next_call_does_what_was_left(tmp_path: Path) -> None:
    first: list[str] = []
    part = a_part(tmp_path)

    def late(name: str) -> dict[str, Any]:
        part.deadline = 0.0
        return noting(first)(name)

    assert part.run(["a", "b", "c"], late) == GOES_ON
    second: list[str] = []
    assert a_part(tmp_path).run(["a", "b", "c"], noting(second)) == 0

    assert (first, second) == (["a"], ["b", "c"])


def test_an_item_that_would_take_too_long_waits_and_a_shorter_one_is_done(tmp_path: Path) -> None:
    done: list[str] = []
    part = a_part(tmp_path, seconds=50)

    status = part.run(["long", "short"], noting(done), expected_seconds=lambda name: 90.0 if name == "long" else 9.0)

    assert (status, done) == (GOES_ON, ["short"])


def test_a_failure_is_a_result_and_is_tried_again_only_when_asked(tmp_path: Path) -> None:
    assert a_part(tmp_path).run(["a"], failing) == 0
    assert written(tmp_path)["items"]["a"]["error"] == "ValueError: a fails"

    done: list[str] = []
    assert a_part(tmp_path).run(["a"], noting(done)) == 0
    assert done == []

    assert a_part(tmp_path, again=True).run(["a"], noting(done)) == 0
    assert done == ["a"]
    assert "error" not in written(tmp_path)["items"]["a"]


def test_a_failure_that_is_to_be_tried_again_is_left_where_time_is_up(tmp_path: Path) -> None:
    a_part(tmp_path).run(["a"], failing)

    assert a_part(tmp_path, again=True, seconds=-1).run(["a"], failing) == GOES_ON
    assert a_part(tmp_path, again=True).run(["a"], failing) == 0  # tried in this call, and done with


def test_only_the_named_items_are_done(tmp_path: Path) -> None:
    done: list[str] = []

    assert a_part(tmp_path, only=("conv", "net")).run(["conv/a", "b", "resnet"], noting(done)) == 0

    assert done == ["conv/a", "resnet"]
    assert written(tmp_path)["names"] == ["conv/a", "b", "resnet"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"items": 1}', '{"items": {}, "small": true}'])
def test_a_file_that_cannot_be_read_is_put_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "part.json").write_text(text, encoding="utf-8")
    done: list[str] = []

    assert a_part(tmp_path).run(["a"], noting(done)) == 0

    assert done == ["a"]
    assert (tmp_path / "part.unreadable").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("change", [{"is_small": False}, {"device": "cuda"}])
def test_results_of_another_kind_are_not_mixed(tmp_path: Path, change: dict[str, Any]) -> None:
    a_part(tmp_path).run(["a"], noting([]))

    with pytest.raises(SystemExit, match="small shapes on cpu"):
        a_part(tmp_path, **change).run(["b"], noting([]))

    assert list(written(tmp_path)["items"]) == ["a"]


def test_an_item_that_ends_the_process_twice_is_not_begun_a_third_time(tmp_path: Path) -> None:
    def ends(name: str) -> dict[str, Any]:
        if name == "a":
            raise SystemExit(1)
        return {}

    for _ in range(2):
        with pytest.raises(SystemExit):
            a_part(tmp_path).run(["a", "b"], ends)
    done: list[str] = []

    assert a_part(tmp_path).run(["a", "b"], noting(done)) == 0

    assert done == ["b"]
    assert "ended 2 times" in written(tmp_path)["items"]["a"]["error"]


def test_arguments_become_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["part.py", str(tmp_path), "--seconds", "10", "--device", "cpu", "--small", "--only", "a,b", "--again"]
    monkeypatch.setattr("sys.argv", command)

    part, _ = parse_arguments("part", None)

    assert (part.output, part.device, part.is_small, part.only, part.again) == (tmp_path, "cpu", True, ("a", "b"), True)
    assert 0 < part.deadline - time.monotonic() <= 10
