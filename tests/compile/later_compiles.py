"""
A program of a caller who compiles: with or without a diagnosis in the midst of it, it must print the same.

Run as ``python later_compiles.py none|inference|training|target``; it prints one JSON object: for each compile of the
caller's its generated code, whether it was dynamic, and dynamo's counters.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from unittest import mock

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering

import layoutdoctor


class Net(nn.Module):
    """Two convolutions around what a generated kernel does; cut in two by a graph break where wanted."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 8, 3), nn.Conv2d(8, 4, 1)
        self.cut = cut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        if self.cut:
            torch._dynamo.graph_break()
        return torch.tanh(self.second(y))


def counts() -> dict[str, Any]:
    """Dynamo's counters that say what was compiled; without times, and without hits of caches on the disk."""
    kept = ("stats", "frames", "graph_break", "recompiles", "unimplemented")
    return {name: dict(counters[name]) for name in kept if counters[name]}


def described(codes: list[str]) -> list[str]:
    """Generated code without the paths and hashes of files."""
    return [re.sub(r"/[^\s'\"]*|\b[a-z0-9]{40,}\b", "PATH", code) for code in codes]


def main(diagnosis: str) -> None:
    """Compiles, diagnoses, compiles again: the same model, the same one with another shape, another one."""
    found: list[Any] = []

    def compile_and_note(name: str, compiled: Any, x: torch.Tensor) -> None:
        codes: list[str] = []
        with torch.no_grad(), mock.patch.object(GraphLowering, "save_output_code", codes.append):
            compiled(x)
        found.append({"name": name, "code": described(codes), "counters": counts()})

    torch.manual_seed(0)
    model, cut = Net(cut=False).eval(), Net(cut=True).eval()
    x = torch.randn(2, 4, 9, 9)
    torch._inductor.config.fx_graph_cache = False
    own = torch.compile(model)
    compile_and_note("before", own, x)
    if diagnosis != "none":
        for mine in (model, cut):
            layoutdoctor.diagnose(
                mine,
                x,
                mode="training" if diagnosis == "training" else "inference",
                configurations=["inductor", "inductor-channels-last"],
                target="cuda:90" if diagnosis == "target" else None,
                budget_seconds=0.05,
                isolate=False,
            )
    compile_and_note("the same again", own, x)
    compile_and_note("another shape", own, torch.randn(2, 4, 12, 9))
    compile_and_note("a third shape", own, torch.randn(2, 4, 14, 9))
    compiled_cut = torch.compile(cut)
    compile_and_note("another model, cut", compiled_cut, x)
    compile_and_note("another model, cut, another shape", compiled_cut, torch.randn(3, 4, 9, 9))
    json.dump({"compiles": found, "globals": sorted(re.sub(r"_[0-9a-f_]+$", "", n) for n in globals())}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
