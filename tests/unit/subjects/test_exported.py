"""Exported programs (``.pt2``): they compute what they did before they were saved, and other files are refused."""

from __future__ import annotations

import collections
import io
import json
import logging
import os
import unittest.mock
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from layoutdoctor.diagnosis.configurations import BY_NAME, by_aot_inductor
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.examination.advice.applying import how_to_apply
from layoutdoctor.subjects.copies import copy_model
from layoutdoctor.subjects.load import load_target
from layoutdoctor.subjects.subject import call_of, describe_subject, set_mode

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.subject import Mode

# torch warns of its own use of LeafSpec while it lowers a program.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

MODES: tuple[Mode, ...] = ("inference", "training")
NOTE = "the model was an exported program: its module was diagnosed, in the mode of its export"


class Block(nn.Module):
    """A convolution with a norm, a buffer, a constant and a lifted tensor, under names that are no identifiers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"conv-1": nn.Conv2d(3, 4, 3, padding=1), "norm 2": nn.BatchNorm2d(4)})
        self.register_buffer("scale", torch.ones(4, 1, 1))
        self.offsets = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + self.offsets[:, None, None].to(x) * torch.tensor([1.0, 2.0, 3.0])[:, None, None].to(x)
        y = self.layers["norm 2"](self.layers["conv-1"](shifted)) * self.scale
        return torch.nn.functional.interpolate(y, scale_factor=2.0, mode="bilinear").relu()


class Keywords(nn.Module):
    def forward(self, *, x: torch.Tensor, parts: dict[str, Any], mode: str) -> torch.Tensor:
        return x + parts["left side"] + parts["rest"][0]["q"]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.norm(x) * self.count


IMAGE = torch.randn(2, 3, 8, 8)
SHAPES = {"x": {0: Dim("batch", min=2, max=64), 2: Dim("height", min=4), 3: Dim.AUTO}}
PARTS = {"left side": IMAGE, "rest": [collections.OrderedDict(q=IMAGE)]}
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = {
    "dynamic": (Block().eval(), (IMAGE,), {}, SHAPES),
    "channels_last": (Block().eval().to(memory_format=torch.channels_last), (IMAGE,), {}, None),
    "keywords": (Keywords(), (), {"x": IMAGE, "parts": PARTS, "mode": "plain"}, None),
    "training": (Counting(), (IMAGE,), {}, None),
}


@pytest.fixture(scope="module")
def parts() -> dict[str, bytes]:
    """What stands in the archive of a small export, by name."""
    stream = io.BytesIO()
    torch.export.save(torch.export.export(nn.Conv2d(3, 4, 3).eval(), (IMAGE,)), stream)
    with zipfile.ZipFile(stream) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive_of(parts: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return stream.getvalue()


def with_part(parts: dict[str, bytes], end: str, data: bytes) -> bytes:
    """The archive with another part in the place of the one whose name ends so."""
    (name,) = (name for name in parts if name.endswith(end))
    return archive_of({**parts, name: data})


@pytest.mark.parametrize("name", CASES)
def test_an_exported_program_brings_its_inputs_and_computes_the_same(name: str, tmp_path: Path) -> None:
    model, args, kwargs, shapes = CASES[name]
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "net.pt2")
    expected = program.module()(*args, **kwargs)

    subject = load_target(str(tmp_path / "net.pt2"))

    assert (subject.name, subject.notes, subject.source) == ("net.pt2", (NOTE,), None)
    symbolic = [tensor.symbolic for tensor in describe_subject(subject, "inference").inputs]
    assert symbolic == [(0, 2, 3) if shapes else ()] * len(symbolic)
    torch.testing.assert_close(subject.model(*subject.args, **subject.kwargs), expected)


def test_the_lines_to_paste_do_not_ask_it_for_a_mode_and_run(tmp_path: Path) -> None:
    program = torch.export.export(nn.Conv2d(3, 4, 3).eval(), (IMAGE,))
    torch.export.save(program, tmp_path / "net.pt2")
    call = call_of(load_target(str(tmp_path / "net.pt2")))
    frozen = BY_NAME["inductor-channels-last-freezing"]
    lines = how_to_apply(frozen, frozenset({4}), call)

    assert "eval" not in lines
    assert "eval" not in how_to_apply(by_aot_inductor([frozen], {})[-1], frozenset({4}), call)
    assert "model.eval()" in how_to_apply(frozen, frozenset({4}), call._replace(has_modes=True))
    scope: dict[str, Any] = {"torch": torch, "model": program.module(), "x": IMAGE}
    with unittest.mock.patch.object(torch, "compile", lambda model: model):
        exec(lines, scope)
    torch.testing.assert_close(scope["y"], program.module()(IMAGE))


def test_a_copy_of_it_computes_in_the_mode_it_was_exported_in(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5)).eval()
    torch.export.save(torch.export.export(model, (IMAGE,)), tmp_path / "net.pt2")
    copied = copy_model(load_target(str(tmp_path / "net.pt2")).model)
    for mode in MODES:
        set_mode(copied, mode)  # type: ignore[arg-type]
        torch.testing.assert_close(copied(IMAGE), model(IMAGE))


def test_a_module_of_it_is_refused_in_one_sentence(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(nn.Sequential(nn.Conv2d(3, 4, 3)), (IMAGE,)), tmp_path / "net.pt2")

    with pytest.raises(SubjectError, match="cannot run the model to record the inputs of '0': NotImplementedError: "):
        load_target(str(tmp_path / "net.pt2"), module="0")


def test_a_file_that_is_none_or_no_export_is_refused_in_one_sentence(
    parts: dict[str, bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = archive_of(parts)
    newer = json.loads(next(part for name, part in parts.items() if name.endswith("models/model.json")))
    newer["schema_version"]["major"] = 99
    files = {
        "empty": (b"", "it is no zip archive"),
        "half": (data[: len(data) // 2], "it is no zip archive"),
        "zip": (archive_of({"readme.txt": b"x"}), ""),
        "schema": (with_part(parts, "models/model.json", json.dumps(newer).encode()), "SchemaVersion(major=99"),
    }
    for name, (content, said) in files.items():
        (tmp_path / f"{name}.pt2").write_bytes(content)
        with pytest.raises(SubjectError) as caught:
            load_target(str(tmp_path / f"{name}.pt2"))
        message = str(caught.value)
        assert message.startswith(f"cannot load {name}.pt2: "), message
        assert message.endswith("; expected what torch.export.save wrote"), message
        assert said in message
        assert "\n" not in message
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_place_without_a_file_is_refused_before_torch_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt2")
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop.pt2").symlink_to("loop.pt2")
    expected = {
        "pipe.pt2": "it is no file, expected what torch.export.save wrote",
        "folder.pt2": "it is no file, expected what torch.export.save wrote",
        "missing.pt2": "there is no such file",
        "file/net.pt2": "there is no such file",
        "loop.pt2": "there is no such file",
        f"{'n' * 300}.pt2": "File name too long; give a readable file",
    }
    for name, said in expected.items():
        with pytest.raises(UsageError) as caught:
            load_target(str(tmp_path / name))
        assert str(caught.value) == f"cannot load {str(tmp_path / name)!r}: {said}"
