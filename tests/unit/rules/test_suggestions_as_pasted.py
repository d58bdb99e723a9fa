"""What suggestions say in code does run: every such line of every reviewed finding, on a model and its input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from layoutdoctor.rules.ld503_flat_conv3d import FOLDED

REVIEWED = Path(__file__).parents[2] / "golden" / "findings"
LINES = tuple(
    re.compile(pattern)
    for pattern in (
        r"model = model\.to\([\w.=]+\)",
        r"model\.to\(memory_format=[\w.]+\)",
        r"x = x\.to\([\w.=]+\)",
        r"\.contiguous\((?:memory_format=torch[\w.]+)?\)",
        r"x\.flatten\(2\)\.transpose\(1, 2\)",
        r"x\.permute\([\d, ]+\)",
        r"options=\{[^}]+\}",
        r"torch\.backends\.cudnn\.benchmark = True",
    )
)


def suggestions() -> str:
    texts = [path.read_text(encoding="utf-8") for path in sorted(REVIEWED.glob("*.txt"))]
    return "\n".join(line for text in texts for line in text.splitlines() if line.lstrip().startswith("->"))


@pytest.mark.parametrize("pattern", LINES, ids=lambda pattern: pattern.pattern)
def test_the_code_of_a_suggestion_runs(pattern: re.Pattern[str]) -> None:
    found = sorted(set(pattern.findall(suggestions())))
    assert found, f"no suggestion has it any more: {pattern.pattern}"
    for line in found:
        is_flat = "channels_last_3d" not in line
        model: nn.Module = nn.Conv2d(3, 4, 3) if is_flat else nn.Conv3d(3, 4, 3)
        code = {".": f"y = x{line}", "o": f"y = torch.compile(model, {line})"}.get(line[0], line)
        names = {"torch": torch, "model": model, "x": torch.randn((2, 3, 8, 8) if is_flat else (2, 3, 4, 8, 8))}
        before = (torch.backends.cudnn.benchmark, torch._inductor.config.freezing)  # type: ignore[attr-defined]
        try:
            exec(code, names)
        finally:
            torch.backends.cudnn.benchmark, torch._inductor.config.freezing = before  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 1, 1)),
        nn.Conv3d(4, 6, (1, 3, 5), stride=(2, 2, 1), bias=False),
        nn.Conv3d(4, 8, (1, 3, 3), padding=(0, 2, 2), dilation=(1, 2, 2), groups=2),
    ],
    ids=["padded", "with a stride and no bias", "dilated in groups"],
)
def test_a_folded_conv3d_is_the_same_with_bias_stride_padding_and_groups(conv: nn.Conv3d) -> None:
    names = {"torch": torch, "conv": conv, "x": torch.randn(2, 4, 3, 9, 9)}
    exec(FOLDED, names)

    torch.testing.assert_close(names["y"], conv(names["x"]))
