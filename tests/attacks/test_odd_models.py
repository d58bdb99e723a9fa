"""Whatever the model is: it comes out of a diagnosis as it went in, by a checksum that is none of the product's."""

from __future__ import annotations

import functools
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import pytest
from odd_models import ODD, checksum

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.errors import SubjectError
from layoutdoctor.subjects.prepare import prepare
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.subjects.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable

    from odd_models import Odd

    from layoutdoctor.diagnosis.records import Mode


TRAVELLING = ("weight_norm", "forward of its own", "a circle of objects and functions", "object", "closure over a list")


def at_once(step: Callable[[], None], calls: int) -> tuple[float, ...]:
    step()
    return (1e-3,) * calls


def touched(name: str, run: Callable[[Odd], list[str]]) -> list[str]:
    """What is another, or has not gone as the table says."""
    odd = ODD[name]()
    before = checksum(odd.holds)
    try:
        said = run(odd) if odd.refused is None else [*run(odd), f"expected {odd.refused}"]
    except SubjectError as error:
        said = [] if odd.refused is not None and odd.refused in str(error) else [f"{error}; expected {odd.refused}"]
    pairs = zip_longest(before, checksum(odd.holds))
    said += [f"{one} -> {other}" for one, other in pairs if one != other]
    return [f"{name}: {line}" for line in said]


def steps(odd: Odd) -> list[str]:
    """Copied, converted and trained, twice."""
    subject = subject_from_python(odd.model, odd.example_input())
    (configuration,) = choose_configurations("eager-channels-last", "training")
    with untouched(subject):
        step = prepare(subject, configuration, "training").step("training", fresh_inputs=False)
        step()
        step()
    return []


def diagnosed(odd: Odd, mode: Mode, **options: Any) -> list[str]:
    diagnosis = layoutdoctor.diagnose(
        odd.model, odd.example_input(), mode=mode, configurations="eager-channels-last", **options
    )
    trial = diagnosis.trials[0]
    notes = [note for note in diagnosis.subject.notes if "not isolated" in note]
    return notes if trial.status == "ok" else [*notes, f"{trial.status} {trial.failure}"]


def test_no_odd_model_is_touched_by_working_on_its_copy() -> None:
    assert len(ODD) >= 46
    assert [line for name in ODD for line in touched(name, steps)] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["training", "inference"])
def test_no_odd_model_is_touched_by_a_diagnosis_in_this_process(mode: Mode) -> None:
    run = functools.partial(diagnosed, mode=mode, timer=at_once)

    assert [line for name in ODD for line in touched(name, run)] == []


@pytest.mark.slow
def test_odd_models_travel() -> None:
    run = functools.partial(diagnosed, mode="training", isolate=True, budget_seconds=0.05)

    assert [line for name in TRAVELLING for line in touched(name, run)] == []
