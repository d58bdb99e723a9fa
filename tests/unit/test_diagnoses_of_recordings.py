"""A diagnosis from its recordings: what each proves, what one has for another one, what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import a_configuration, a_diagnosis, a_measurement, a_trial, as_observed, recordings_of
from recorded_builders import a_recording

from layoutdoctor.diagnosis.saved import from_json, to_json
from layoutdoctor.examination import examine as examine_module
from layoutdoctor.examination.examine import by_diagnosis, diagnosis_of, examine

if TYPE_CHECKING:
    from layoutdoctor.recording.recording import Recording


def refuse(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("planted")


def renamed(recording: Recording, name: str, **changes: Any) -> Recording:
    trial = msgspec.structs.replace(recording.trial, configuration=a_configuration(name), **changes)
    return msgspec.structs.replace(recording, trial=trial)


def of_one(*recordings: Recording, **changes: Any) -> list[Recording]:
    names = tuple(recording.name for recording in recordings)
    head = msgspec.structs.replace(recordings[0].head, **{"configurations": names, **changes})
    return [msgspec.structs.replace(recording, head=head) for recording in recordings]


@pytest.mark.parametrize(
    ("name", "lost", "note"),
    [
        ("operation_tree", {"kernels"}, "the kernel list was not recorded: RuntimeError: planted"),
        ("with_breaker_costs", set(), "round trips were not looked for: RuntimeError: planted"),
    ],
)
def test_a_failure_costs_its_own_facts_only(
    name: str, lost: set[str], note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = examine(a_recording())
    monkeypatch.setattr(examine_module, name, refuse)

    (trial,) = diagnosis_of([a_recording()]).trials

    assert trial.notes == ("a note",)
    assert [lack.reason for lack in trial.lacks] == [note]
    assert (trial.kernels is None) == ("kernels" in lost)
    assert as_observed(trial).measurement == a_recording().trial.measurement
    assert trial.kernels in (None, whole.kernels)


def test_conversions_that_cannot_be_looked_for_cost_no_kernel_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine_module, "with_graph_conversions", refuse)

    facts = examine(renamed(a_recording(), "inductor"))

    assert [lack.reason for lack in facts.lacks] == ["conversions were not looked for: RuntimeError: planted"]
    assert facts.kernels is not None


def test_what_did_not_come_as_far_as_its_profile_is_not_searched_for_round_trips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(examine_module, "_proved", refuse)

    assert examine(a_recording(was_profiled=False)).lacks == ()


def test_what_was_seen_of_one_configuration_holds_for_that_which_is_the_same() -> None:
    first = a_recording()
    same = renamed(a_recording(iterations=(), was_profiled=False), "inductor", status="same_as", same_as="eager")
    bare = msgspec.structs.replace(same, trial=msgspec.structs.replace(same.trial, graphs=()))

    eager, own = diagnosis_of(of_one(first, same)).trials
    _, none = diagnosis_of(of_one(first, bare)).trials

    assert own.kernels == none.kernels == eager.kernels
    assert own.graphs[0].nodes != ()
    assert [(graph.nodes, graph.conversions) for graph in none.graphs] == [((), eager.graphs[0].conversions)]


def test_one_recording_of_several_can_be_examined_alone() -> None:
    whole = a_diagnosis(
        a_trial("eager", measurement=a_measurement(*[20e-3] * 9)),
        a_trial("inductor", measurement=a_measurement(*[10e-3] * 9)),
        a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", kernels=None, measurement=None),
    )
    recordings = recordings_of(whole)
    diagnosis = diagnosis_of(recordings)
    assert [as_observed(trial) for trial in diagnosis.trials] == [recording.trial for recording in recordings]
    assert diagnosis.comparison is not None
    assert [(ratio.name, ratio.median) for ratio in diagnosis.comparison.ratios] == [("eager", 0.5)]
    assert diagnosis.recommendation is not None
    assert diagnosis.recommendation.configuration == "inductor"

    alone = diagnosis_of(recordings[2:])

    (trial,) = alone.trials
    assert (trial.status, trial.same_as) == ("skipped", None)
    assert trial.failure is not None
    assert trial.failure.message == "the same as inductor, whose recording is missing"
    assert (alone.comparison, alone.recommendation) == (None, None)
    assert from_json(to_json(alone)) == alone


def test_recordings_are_told_apart_by_their_diagnoses() -> None:
    first = of_one(a_recording(), renamed(a_recording(), "inductor"))
    other = of_one(a_recording(), created_at="2026-11-21T00:00:00Z")

    groups = list(by_diagnosis([first[0], *other, first[1], *other]))

    assert [[(r.name, r.head.created_at[:10]) for r in group] for group in groups] == [
        [("eager", "2026-11-20"), ("inductor", "2026-11-20")],
        [("eager", "2026-11-21")],
    ]
