"""``diagnose(model, x)`` as users call it: from scripts, cells, threads and tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import layoutdoctor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MODEL = """
import os, sys, threading
import torch
from torch import nn
import layoutdoctor

class Block(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 4, 3), act

    def forward(self, x):
        return torch.tanh(self.act(self.conv(x)))
"""
CALL = """
torch.set_num_threads(1)
model = Block(lambda x: x.relu() * 2)
model.conv.register_forward_hook(lambda module, inputs, output: output + 1)
diagnosis = layoutdoctor.diagnose(model, torch.ones(1, 3, 8, 8), configurations="eager", budget_seconds=0.05)
print([trial.status for trial in diagnosis.trials], diagnosis.subject.notes, diagnosis.environment.thread_count)
"""
SAID = "['ok'] () 1"
PLACES = """
locations = [node.location for graph in diagnosis.trials[0].graphs for node in graph.nodes]
print(sorted({f"{os.path.basename(at.file)}:{at.line}" for at in locations if at is not None}))
"""


def run(*arguments: str, folder: Path, text: str = "") -> list[str]:
    temporary = folder / "temporary"
    temporary.mkdir()
    ended = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert ended.returncode == 0, ended.stderr
    assert [path.name for path in temporary.iterdir() if path.name.startswith("layoutdoctor")] == []
    return ended.stdout.splitlines()


def test_a_script_without_a_guard_runs_once_also_if_it_calls_from_a_thread(tmp_path: Path) -> None:
    call = "\n".join(f"    {line}" for line in (CALL + PLACES).splitlines())
    text = f"{MODEL}\nprint('running')\ndef work():\n{call}\nthread = threading.Thread(target=work)\n"
    (tmp_path / "script.py").write_text(f"{text}thread.start()\nthread.join()\n")

    computes = ("torch.tanh(", "x.relu()", "output + 1")
    lines = [at for at, line in enumerate(text.splitlines(), 1) if any(words in line for words in computes)]
    assert len(lines) == len(computes)
    assert run("script.py", folder=tmp_path) == ["running", SAID, str([f"script.py:{line}" for line in lines])]


GUARDED = "from blocks import *\nif __name__ == '__main__':" + CALL.replace("\n", "\n    ")
CELLS = (
    "import code\nconsole = code.InteractiveInterpreter({'__name__': '__main__'})\n"
    f"for cell in ({MODEL!r}, {CALL!r}):\n    console.runsource(cell, '<cell>', 'exec')\n"
)


@pytest.mark.parametrize(
    ("arguments", "script", "text"),
    [
        (["script.py"], GUARDED, ""),
        (["-"], "", MODEL + CALL),
        (["script.py"], CELLS, ""),
        # dynamo looks up what a function's globals are by the name of its module, which is another one there
        (["-c", MODEL + CALL.replace('"eager"', '"inductor"')], "", ""),
    ],
    ids=["a guard and a module of its own", "standard input", "cells of a notebook", "compiled"],
)
def test_python_is_run_in_every_way(arguments: list[str], script: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "blocks.py").write_text(MODEL)
    (tmp_path / "script.py").write_text(script)

    assert run(*arguments, folder=tmp_path, text=text)[-1] == SAID


def test_a_model_that_is_compiled_already_is_compared_with_what_it_was_compiled_with() -> None:
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.Conv2d(16, 16, 3)).eval()
    compiled = torch.compile(model, options={"layout_optimization": False, "epilogue_fusion": False})
    names = ["inductor", "inductor-layout-opt-on"]

    diagnosis = layoutdoctor.diagnose(compiled, torch.ones(1, 16, 8, 8), configurations=names, budget_seconds=0.05)
    asked = layoutdoctor.diagnose(
        compiled, torch.ones(1, 16, 8, 8), configurations=names, compile_kwargs={"dynamic": True}, budget_seconds=0.05
    )

    off, on = (trial.configuration.inductor_options for trial in diagnosis.trials)
    assert (off, on) == ({"layout_optimization": False, "epilogue_fusion": False}, {"epilogue_fusion": False})
    assert [trial.graphs[0].decision.applied for trial in diagnosis.trials] == [False, True]
    assert 'options={"layout_optimization": False, "epilogue_fusion": False}' in " ".join(str(diagnosis).split())
    assert [trial.configuration.compile_arguments for trial in asked.trials] == [{"dynamic": True}] * 2
    assert [trial.configuration.inductor_options for trial in asked.trials] == [{}] * 2


def test_the_best_package_of_aot_inductor_is_kept_and_computes_what_the_model_does(tmp_path: Path) -> None:
    layers = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3)
    model, x, file = nn.Sequential(*layers).eval(), torch.randn(2, 16, 12, 12), tmp_path / "model.pt2"

    diagnosis = layoutdoctor.diagnose(model, x, configurations="inductor", package=file, budget_seconds=0.05)

    by_torch, by_package = diagnosis.trials
    assert [by_torch.name, by_package.name] == ["inductor", "aot-inductor"]
    assert diagnosis.subject.notes == (
        "model.pt2 holds AOTInductor, for inputs in the memory format of that configuration",
    )
    assert torch.allclose(torch._inductor.aoti_load_package(str(file))(x), model(x), atol=1e-5)
    assert "Package AOTInductor's default: the same decision and conversions as torch.compile" in " ".join(
        str(diagnosis).split()
    )
    for trial in diagnosis.trials:
        kernels = trial.kernels.kernels
        assert [one.node for one in kernels if one.name == "convolution"] == ["convolution", "convolution_1"]
        assert [one.library for one in kernels if one.name.startswith("cpp_fused")] == ["inductor"] * len(
            trial.graphs[0].kernel_names
        )
        assert trial.kernels.lacks == ()
