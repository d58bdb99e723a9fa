"""``examine_trace`` from the file to the findings, on recorded files and small ones written here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from layoutdoctor.rules import ALL_RULES, run_rules
from layoutdoctor.run.recorded import examine_trace

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

TRACES = Path(__file__).parents[1] / "traces"
PATCH_EMBED = TRACES / "h100_vit_patch_embed.json.gz"


@pytest.fixture(scope="module")
def patch_embed() -> Diagnosis:
    return examine_trace(PATCH_EMBED)


def test_the_patch_embedding_is_wrapped_in_three_conversions(patch_embed: Diagnosis) -> None:
    (trial,) = patch_embed.trials
    assert trial.kernels is not None
    assert (trial.kernels.count, trial.kernels.conversion_count) == (154, 3)
    assert round((trial.kernels.conversion_seconds or 0) * 1e9) == 23_072
    assert [(c.direction, c.tensor, c.module, c.confidence) for c in trial.kernels.conversions] == [
        ("to_channels_last", "activation", "Conv2d_0", "shapes"),
        ("to_channels_last", "weight", "Conv2d_0", "shapes"),
        ("to_contiguous", "activation", "Conv2d_0", "shapes"),
    ]
    sizes = [c.source.shape for c in trial.kernels.conversions if c.source is not None]
    assert sizes == [(4, 3, 224, 224), (768, 3, 16, 16), (4, 768, 14, 14)]
    assert trial.redundant_pairs == ()


def test_rules_are_run_all_or_some(patch_embed: Diagnosis) -> None:
    chosen = [rule for rule in ALL_RULES if rule.code == "LD101"]
    assert examine_trace(PATCH_EMBED, rules=chosen).findings == ()
    assert "LD103" in {finding.code for finding in patch_embed.findings}
    assert patch_embed.findings == run_rules(patch_embed)
