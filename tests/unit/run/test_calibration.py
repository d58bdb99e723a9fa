"""The constants of torch's heuristic, measured: every convolution once, in its class, in both formats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from layoutdoctor.__main__ import main
from layoutdoctor.capture.decision import layout_multipliers
from layoutdoctor.errors import SubjectError
from layoutdoctor.run import calibration
from layoutdoctor.run.calibration import Call, Constant, calibrate, convolutions_of
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from pathlib import Path


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.default = nn.Conv2d(8, 96, 3, padding=1)
        self.grouped = nn.Conv2d(96, 96, 3, padding=1, groups=2)
        self.in_out = nn.Conv2d(96, 16, 3, padding=1)
        self.small = nn.ConvTranspose2d(16, 8, 2, stride=2, bias=False)
        self.flat = nn.Conv1d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.small(self.in_out(self.grouped(self.default(x))))
        x = nn.functional.conv2d(x, self.default.weight, self.default.bias, stride=2, padding=1)
        return x.mean() + self.flat(torch.ones(1, 8, 8)).mean()


def test_every_convolution_is_seen_with_its_class_and_how_often_it_is_called() -> None:
    calls = convolutions_of(subject_from_python(Net(), torch.randn(2, 8, 4, 4)))
    kinds = {call.kind: count for call, count in calls.items() if call.stride == (1, 1)}
    assert kinds == {"default": 1, "grouped": 1, "in_out": 1}
    (small,) = (call for call in calls if call.is_transposed)
    assert (small.kind, small.has_bias, small.shape, small.weight_shape) == (
        "small",
        False,
        (2, 16, 4, 4),
        (16, 8, 2, 2),
    )
    assert sum(calls.values()) == 5
    with pytest.raises(SubjectError, match="cannot run Net in eager mode: RuntimeError"):
        convolutions_of(subject_from_python(Net(), torch.randn(2, 3, 4, 4)))


def test_both_directions_run_in_both_formats_whatever_the_convolution() -> None:
    volume = nn.Sequential(nn.Conv3d(2, 4, 3, groups=2), nn.ConvTranspose3d(4, 4, 2, groups=2, bias=False))
    calls = convolutions_of(subject_from_python(Net(), torch.randn(2, 8, 4, 4)))
    calls |= convolutions_of(subject_from_python(volume, torch.randn(1, 2, 4, 4, 4)))
    done: list[tuple[int, int]] = []
    constants = calibrate(calls, 0.001, lambda *counts: done.append(counts))
    assert [(one.class_, one.direction) for one in constants[:4]] == [
        (class_, "forward") for class_ in ("grouped", "small", "in_out", "default")
    ]
    assert sum(one.count for one in constants) == 2 * len(calls)
    assert sum(one.failed for one in constants) == 0
    assert done[-1] == (2 * len(calls), 2 * len(calls))
    assert {one.class_: one.torch for one in constants if one.direction == "forward"} == layout_multipliers()
    assert {one.torch for one in constants if one.direction == "backward"} == {None}


def test_the_constants_of_this_torch_are_read() -> None:
    assert layout_multipliers() == {"grouped": 1.358, "default": 0.823, "in_out": 0.725, "small": 0.783}


def test_what_is_made_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(width: int) -> Call:
        place = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1, torch.float32, torch.device("cpu"))
        return Call((1, 3, width, width), (8, 3, 3, 3), True, *place)

    times: dict[Call, Any] = {call(8): (1.0, 0.5), call(16): (2.0, 4.0), call(32): None}
    monkeypatch.setattr(calibration, "_time", lambda one, direction, budget: times[one])
    small = next(one for one in calibrate({call(8): 6, call(16): 1, call(32): 9}, 1.0) if one.class_ == "small")
    assert small == Constant(
        class_="small",
        direction="forward",
        torch=0.783,
        of_time=(6 * 0.5 + 4.0) / (6 * 1.0 + 2.0),
        mean=1.0,
        lowest=0.5,
        highest=2.0,
        count=3,
        failed=1,
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.py"
    source = (
        "import torch\nmodel = torch.nn.Conv2d(3, 8, 3)\nexample_input = torch.randn(1, 3, 8, 8)\nprint('loaded')\n"
    )
    path.write_text(source, encoding="utf-8")
    words = ["calibrate", str(path), "nowhere.py", "--budget", "0.01"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert [row.split()[:3] for row in out.splitlines()[1:3]] == [
        ["small", "forward", "0.783"],
        ["small", "backward", "-"],
    ]
    assert out.splitlines()[-1].startswith("Of net.py; torch ")
    assert "there is no such file" in err
    assert main([*words, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| class | direction | torch's |")
    assert main([*words, "--format", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["models"], shown["constants"][1]["count"]) == (["net.py"], 1)
    assert main(["calibrate", "nowhere.py"]) == 3
    assert "cannot calibrate: none of 1 targets ran" in capsys.readouterr().err
