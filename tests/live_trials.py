"""Diagnoses of small models in this process, for tests that look at one trial of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.isolation.messages import Request
from layoutdoctor.run.diagnose import record_subject
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    import torch

    from layoutdoctor.diagnosis.records import Diagnosis, Mode, Trial
    from layoutdoctor.measure.timing import Timer
    from layoutdoctor.subjects.subject import LoadedSubject


def diagnosed_here(subject: LoadedSubject, request: Request, *, timer: Timer | None = None) -> Diagnosis:
    return diagnose_recordings(record_subject(subject, request, timer=timer))


def diagnosed(
    model: torch.nn.Module, x: torch.Tensor, configurations: str = "inductor", mode: Mode = "inference"
) -> Diagnosis:
    chosen = choose_configurations(configurations)
    return diagnosed_here(subject_from_python(model, x), Request(mode=mode, configurations=chosen, budget_seconds=0.1))


def trial_of(diagnosis: Diagnosis, name: str = "inductor") -> Trial:
    trial = diagnosis.trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    return trial
