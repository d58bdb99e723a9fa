"""What ``diagnose()`` refuses before anything runs, and where it runs all the same; no configuration compiles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from live_trials import diagnosed
from torch import nn

import layoutdoctor
from layoutdoctor.errors import UsageError

pytestmark = pytest.mark.thorough

IMAGE = torch.randn(1, 4, 6, 6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": None}, "cannot diagnose in mode None: expected inference or training"),
        ({"budget_seconds": "long"}, "cannot measure within 'long' seconds"),
        ({"budget_seconds": float("inf")}, "cannot measure within inf seconds"),
        ({"budget_seconds": float("nan")}, "cannot measure within nan seconds"),
        ({"progress": 3}, "cannot use 3 as progress: expected a function, or None"),
        ({"timeout_seconds": 0}, "cannot limit a configuration to 0 seconds: expected a number above 0, such as 600"),
        ({"target": "cuda:91"}, "cannot lower for 'cuda:91': expected one of cuda:75"),
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


@pytest.mark.slow
def test_the_callers_inference_mode_does_not_matter_for_training_and_stays() -> None:
    with torch.inference_mode():
        diagnosis = diagnosed(nn.Conv2d(4, 4, 3), torch.randn(1, 4, 6, 6), "eager", "training")
        still = torch.is_inference_mode_enabled()

    assert diagnosis.trials[0].status == "ok"
    assert still
