"""Exported programs of many kinds load through the checks, and compute what they did before they were saved."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from layoutdoctor.subjects.exported import load_exported
from layoutdoctor.subjects.exported_expressions import check_expression, check_guard
from layoutdoctor.subjects.subject import unwrap

if TYPE_CHECKING:
    from pathlib import Path

# torch warns of its own use of LeafSpec while it lowers a program.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

IMAGE = torch.randn(2, 3, 8, 8)
LOWERED = ("conv", "counting", "modes")


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


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        both = torch.cat([x, y])[: 2 * x.shape[0] - 1]
        half = both.reshape(-1)[: 2 * x.shape[0]]
        scaled = half * (x.shape[0] ** 2) / (x.shape[0] + 1)
        return {"half": scaled, "rows": x.shape[0] * 2 + 1, "sums": (both.sum(), [both.mean()])}


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        count = x.max().item()
        torch._check(count >= 2)
        torch._check(count < 100)
        return torch.ones(count, 4) * x.float().mean(), torch.nonzero(x)


class Keywords(nn.Module):
    def forward(self, x: torch.Tensor, *, parts: dict[str, Any], mode: str) -> torch.Tensor:
        return x + parts["left side"] + parts["rest"][0]["q"]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return self.norm(x) * self.count


class Modes(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = y @ y.mT
        return torch.nn.functional.scaled_dot_product_attention(z, z, z)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.register_buffer("wide", torch.ones(1).expand(8))
        self.register_buffer("empty", torch.ones(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x)) + self.wide


BATCH = Dim("batch", min=2, max=64)
CASES: dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]] = {
    "conv": (Block().eval(), (IMAGE,), {}, None),
    "bf16": (Block().eval().bfloat16(), (IMAGE.bfloat16(),), {}, None),
    "channels_last": (Block().eval().to(memory_format=torch.channels_last), (IMAGE,), {}, None),
    "dynamic": (Block().eval(), (IMAGE,), {}, {"x": {0: BATCH, 2: Dim("height", min=4), 3: Dim.AUTO}}),
    "sizes": (Sizes(), (torch.randn(6, 4), torch.randn(6, 4)), {}, {"x": {0: BATCH}, "y": {0: BATCH}}),
    "derived": (Sizes(), (torch.randn(6, 4), torch.randn(12, 4)), {}, {"x": {0: BATCH}, "y": {0: 2 * BATCH}}),
    "branches": (Branches(), (IMAGE,), {}, {"x": {0: Dim.DYNAMIC}}),
    "data": (DataDependent(), (torch.tensor([3, 5]),), {}, {"x": {0: Dim.DYNAMIC}}),
    "keywords": (
        Keywords(),
        (IMAGE,),
        {"parts": {"left side": IMAGE, "rest": [collections.OrderedDict(q=IMAGE)]}, "mode": "plain"},
        None,
    ),
    "counting": (Counting().eval(), (IMAGE,), {}, None),
    "training": (Counting(), (IMAGE,), {}, None),
    "modes": (Modes(), (torch.randn(1, 2, 4, 4),), {}, None),
    "tied": (Tied(), (torch.randn(2, 8),), {}, None),
    "transformer": (nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(), (torch.randn(2, 4, 8),), {}, None),
}


@pytest.mark.parametrize(
    ("name", "is_lowered"), [*((name, False) for name in CASES), *((name, True) for name in LOWERED)]
)
def test_a_genuine_program_loads_and_computes_the_same(name: str, is_lowered: bool, tmp_path: Path) -> None:
    model, args, kwargs, shapes = CASES[name]
    program = torch.export.export(model, args, kwargs, dynamic_shapes=shapes)
    program = program.run_decompositions() if is_lowered else program
    path = tmp_path / f"{name}.pt2"
    torch.export.save(program, path)
    expected = program.module()(*args, **kwargs)

    found = load_exported(path)

    loaded, _ = unwrap(found.program)
    torch.testing.assert_close(loaded(*found.args, **found.kwargs), expected, equal_nan=True)


@pytest.mark.parametrize(
    "expression",
    [
        "Add(Mul(Integer(8), Symbol('s17', positive=True, integer=True)), Integer(-4))",
        "GreaterThan(Symbol('u0', integer=True), Integer(2))",
        "Max(Integer(1), FloorDiv(Symbol('s0', positive=True, integer=True), Integer(2)))",
        "Pow(Symbol('s0', positive=True, integer=True), Integer(2))",
        "Pow(Symbol('s0', positive=True, integer=True), Integer(-1))",
        "Pow(Symbol('s0', positive=True, integer=True), Rational(1, 2))",
        "PowByNatural(Symbol('s0', integer=True), Integer(2))",
        "Float('0.5', precision=53)",
        "And(StrictLessThan(Integer(0), Symbol('s0', integer=True)), Unequality(Symbol('s0'), Integer(1)))",
        "TruncToInt(IntTrueDiv(Symbol('s77', positive=True, integer=True), Float('1.7', precision=53)))",
        "Piecewise(ExprCondPair(Integer(1), Symbol('s0') < 3), ExprCondPair(Integer(2), true))",
        "2*s0 + s77//3 - Mod(s0, 4)",
        "s0**2",
        "Eq(s0, 1)",
        "int_oo",
        "-7",
    ],
)
def test_an_expression_that_torch_writes_is_allowed(expression: str) -> None:
    check_expression(expression)


@pytest.mark.parametrize(
    "guard",
    [
        "L['y'].size()[0] == (2*L['x'].size()[0])",
        "(-1) + 2*L['flat_args'][0].size()[0] <= L['flat_args'][1].size()[0] + L['flat_args'][0].size()[0]",
        "2 <= L['x'].size()[0] and L['x'].size()[0] <= 64",
        "not (L['args'][0]['left side'].stride()[-1] == 1)",
        "L['x'].size()[0] % 2 == 0 or math.floor(L['x'].size()[0] / 2) != 1",
        "L['mode'] == 'plain'",
        "math.isnan(L['scale'])",
        "torch.sym_max(L['x'].size()[0], 3) == 3",
        "L['options'].width == None",
    ],
)
def test_a_guard_that_torch_writes_is_allowed(guard: str) -> None:
    check_guard(guard)
