"""Whatever the model is: it gets an answer, or an error that names what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from odd_models import IMAGE, INPUTS, ODD, REFUSED

from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.run.diagnose import record_only

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Mode

SMOKE = ("weight_norm of old", "closure")


def troubles(name: str, mode: Mode) -> list[str]:
    """Everything that went otherwise than the table says."""
    refused, said = REFUSED.get(name), []
    try:
        diagnosis = record_only(ODD[name](), INPUTS.get(name, IMAGE), mode=mode, configurations=["eager-channels-last"])
    except LayoutDoctorError as error:
        if refused is None or refused not in str(error):
            said.append(f"{error}; expected {refused}")
    else:
        said += [f"expected {refused}"] if refused is not None else []
        for trial in diagnosis.trials:
            is_other = trial.equivalence is not None and trial.equivalence.status == "different"
            if trial.status not in ("ok", "skipped") or is_other:
                said.append(f"{trial.status} {trial.failure} {trial.equivalence}")
            said += [note for note in trial.notes if "not recorded" in note]
    return [f"{name}: {line}" for line in said]


def test_some_odd_models_get_an_answer_in_training() -> None:
    assert [line for name in SMOKE for line in troubles(name, "training")] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_every_odd_model_gets_an_answer_or_an_error_that_names_why(mode: Mode) -> None:
    assert [line for name in ODD for line in troubles(name, mode)] == []
