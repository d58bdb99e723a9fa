"""Diagnoses of small models in this process, for tests that look at one trial of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.isolation.messages import Request
from layoutdoctor.run.diagnose import diagnose_subject
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    import torch

    from layoutdoctor.diagnosis.records import Diagnosis, Mode, Trial


def diagnosed(
    model: torch.nn.Module, x: torch.Tensor, configurations: str = "inductor", mode: Mode = "inference"
) -> Diagnosis:
    chosen = choose_configurations(configurations)
    return diagnose_subject(
        subject_from_python(model, x), Request(mode=mode, configurations=chosen, budget_seconds=0.1)
    )


def trial_of(diagnosis: Diagnosis, name: str = "inductor") -> Trial:
    trial = diagnosis.trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    return trial
