"""How a script comes by what a command loaded: the lines that are written do load it again."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from loops import for_each

from layoutdoctor.reports.reproducer.recipe import source_of_recipe
from layoutdoctor.subjects.copies import input_tensors
from layoutdoctor.subjects.load import load_target
from layoutdoctor.subjects.subject import describe, subject_from_python

if TYPE_CHECKING:
    import pytest

CLASS = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.body = nn.Conv2d(3, channels, 3)

    def forward(self, x, scale=None):
        return self.body(x)
"""
INPUTS = "\n\ndef get_inputs():\n    return [torch.randn(2, 3, 8, 8)]\n"
FILES = {
    "class": (CLASS + INPUTS, "", ()),
    "class with arguments": (CLASS + INPUTS + "\n\ndef get_init_inputs():\n    return [6]\n", "", ()),
    "class with named arguments": (CLASS + INPUTS + "\n\ndef get_init_inputs():\n    return {'channels': 5}\n", "", ()),
    "part of an instance": (CLASS + "\n\nnet = Model()\nexample_input = torch.randn(1, 3, 8, 8)\n", "net.body", ()),
    "function that builds both": (
        CLASS + "\n\ndef make():\n    return Model(7), {'x': torch.randn(1, 3, 9, 9)}\n",
        "make",
        (),
    ),
    "function that builds": (CLASS + INPUTS + "\n\ndef get_model():\n    return Model(8)\n", "get_model", ()),
    "inputs from the command": (CLASS, "Model", ("bf16[2,3,8,8]:channels_last",)),
    "both with inputs from the command": (
        CLASS + "\n\ndef make():\n    return Model(7), None\n",
        "make",
        ("f32[2,3,8,8]",),
    ),
}


def loaded_again(lines: tuple[str, ...], folder: Path) -> dict[str, Any]:
    names: dict[str, Any] = {
        "__file__": str(folder / "script.py"),
        **{"torch": torch, "importlib": importlib, "inspect": inspect, "sys": sys, "Path": Path},
    }
    exec("\n".join(lines), names)
    return names


@for_each("name", FILES)
def test_a_file_by_every_convention(name: str, tmp_path: Path) -> None:
    code, attribute, inputs = FILES[name]
    (tmp_path / "my net.py").write_text(code, encoding="utf-8")
    loaded = load_target(f"{tmp_path / 'my net.py'}{':' if attribute else ''}{attribute}", inputs=inputs)
    again = loaded_again(source_of_recipe(describe(loaded, "inference")).lines, tmp_path)

    assert str(again["model"]) == str(loaded.model)
    assert not again["model"].training
    tensors = input_tensors(tuple(again["args"]), again["kwargs"])
    assert [(t.shape, t.dtype, t.stride()) for t in tensors] == [
        (t.shape, t.dtype, t.stride()) for t in input_tensors(loaded.args, loaded.kwargs)
    ]


def test_an_exported_program_with_its_own_inputs(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Conv2d(3, 4, 3), (torch.randn(2, 3, 8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = load_target(str(tmp_path / "net.pt2"))
    again = loaded_again(source_of_recipe(describe(loaded, "inference")).lines, tmp_path)

    assert [tensor.shape for tensor in again["args"]] == [(2, 3, 8, 8)]
    assert again["model"](*again["args"]).shape == (2, 4, 6, 6)


def test_a_module_in_another_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_net_of_ones_own.py").write_text(CLASS + INPUTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = load_target("a_net_of_ones_own:Model", dtype="bf16")
    again = loaded_again(source_of_recipe(describe(loaded, "training")).lines, tmp_path)

    assert again["model"].training
    assert [again["args"][0].dtype, again["model"].body.weight.dtype] == [torch.bfloat16, torch.bfloat16]


def test_an_object_has_none() -> None:
    assert describe(subject_from_python(torch.nn.ReLU(), torch.randn(2)), "inference").recipe is None


def test_a_module_of_a_file_with_random_inputs_of_the_recorded_shapes(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(CLASS + INPUTS, encoding="utf-8")
    loaded = load_target(str(tmp_path / "net.py"), module="body")
    source = source_of_recipe(describe(loaded, "inference"))
    again = loaded_again(source.lines, tmp_path)

    assert str(again["model"]) == str(loaded.model)
    assert [tensor.shape for tensor in (*again["args"], *again["kwargs"].values())] == [(2, 3, 8, 8)]
    assert source.what == "The model of net.py: its module body, with random inputs of the recorded shapes"
