"""What ``diagnose()`` refuses before anything runs, and where it runs all the same; no configuration compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import for_each
from torch import nn

import layoutdoctor
from layoutdoctor.errors import SubjectError, UsageError

pytestmark = pytest.mark.thorough

IMAGE = torch.randn(1, 4, 6, 6)


@for_each(
    ("options", "said"),
    [
        ({"mode": None}, "cannot diagnose in mode None: expected inference or training"),
        ({"budget_seconds": "long"}, "cannot measure within 'long' seconds"),
        ({"budget_seconds": float("inf")}, "cannot measure within inf seconds"),
        ({"budget_seconds": float("nan")}, "cannot measure within nan seconds"),
        ({"progress": 3}, "cannot use 3 as progress: expected a function, or None"),
        ({"timer": 3}, "cannot use 3 as timer: expected a function, or None"),
        ({"configurations": None}, "cannot use None as a configuration: expected a name such as 'inductor'"),
        ({"configurations": ["eager", 3]}, "cannot use 3 as a configuration"),
        ({"rules": 3}, "cannot use 3 as a rule: expected Rule values, such as those in ALL_RULES"),
        ({"rules": ["LD101"]}, "cannot use 'LD101' as a rule"),
    ],
)
def test_a_wrong_argument_is_refused_before_the_model_runs(options: dict[str, Any], said: str) -> None:
    calls = []

    with pytest.raises(UsageError) as caught:
        layoutdoctor.diagnose(lambda x: calls.append(x), IMAGE, **options)

    assert str(caught.value).startswith(said)
    assert not calls


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_callers_inference_mode_does_not_matter_and_stays(mode: Any) -> None:
    with torch.inference_mode():
        diagnosis = layoutdoctor.diagnose(
            nn.Conv2d(4, 4, 3),
            torch.randn(1, 4, 6, 6),
            mode=mode,
            configurations="eager",
            budget_seconds=0.05,
            isolate=False,
        )
        still = torch.is_inference_mode_enabled()

    assert diagnosis.trials[0].status == "ok"
    assert still


def test_a_device_that_cannot_be_timed_is_refused_before_the_model_runs() -> None:
    with pytest.raises(SubjectError, match="its parameter 'weight' is on the meta device, which holds no data"):
        layoutdoctor.diagnose(nn.Conv2d(4, 4, 3, device="meta"), IMAGE, isolate=False)
    with pytest.raises(SubjectError, match="an example input is on the meta device, which holds no data"):
        layoutdoctor.diagnose(torch.relu, IMAGE.to("meta"), isolate=False)
