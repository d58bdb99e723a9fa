"""What keeps a trial from having been examined: each lack by itself, and the notes that trials really leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_diagnosis, a_failed_trial, a_graph, a_lack, a_node, a_subject, a_trial, kernels

from layoutdoctor.diagnosis.trial import Trial
from layoutdoctor.examination.gaps import Examination, examination_of
from layoutdoctor.recording.reading import RECORDED

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.graph import Graph


def a_recorded_graph(**changes: Any) -> Graph:
    return a_graph(**{"nodes": (a_node("relu"),), **changes})


def an_examined_trial(**changes: Any) -> Trial:
    return a_trial("inductor", **{"graphs": (a_recorded_graph(),), **changes})


@pytest.mark.parametrize(
    ("trial", "blocker"),
    [
        (a_failed_trial("inductor", "g++ is missing"), "it failed (compile): g++ is missing"),
        (Trial(configuration=a_trial().configuration, status="timed_out"), "it timed out"),
        (an_examined_trial(status="skipped"), "it was skipped"),
        (an_examined_trial(is_static=True), "nothing ran, so library conversions are unknown"),
        (an_examined_trial(kernels=None), "its kernel list was not recorded"),
        (an_examined_trial(kernels=kernels(count=0)), "no kernel was recorded"),
        (an_examined_trial(graphs=()), "no graph was recorded"),
        (an_examined_trial(graphs=(a_recorded_graph(nodes=()),)), "graph 0 was recorded without its operations"),
        (an_examined_trial(graphs=(a_recorded_graph(hook_failure="KeyError"),)), "graph 0 was not recorded: KeyError"),
        (an_examined_trial(lacks=(a_lack("not recorded: a graph"),)), "not recorded: a graph"),
    ],
)
def test_what_was_not_recorded_blocks(trial: Trial, blocker: str) -> None:
    examination = examination_of(a_diagnosis(trial), "inductor")

    assert any(blocker in found for found in examination.blockers), examination.blockers
    assert examination.gaps == ()


def test_trials_are_examined_where_they_or_the_same_ones_were_recorded() -> None:
    assert examination_of(a_diagnosis(an_examined_trial()), "inductor") == Examination()

    trial = Trial(configuration=RECORDED, status="ok", kernels=kernels())
    subject = a_subject(mode="trace")

    assert examination_of(a_diagnosis(trial, subject=subject), "recorded") == Examination()
    empty = Trial(configuration=RECORDED, status="ok", kernels=kernels(count=0))
    assert examination_of(a_diagnosis(empty, subject=subject), "recorded").blockers == ("no kernel was recorded",)

    (blocker,) = examination_of(a_diagnosis(a_trial("eager")), "inductor").blockers

    assert blocker == "it was not tried; the diagnosis has eager"

    same = a_trial("inductor-layout-opt-on", status="same_as", same_as="inductor", kernels=None)

    assert examination_of(a_diagnosis(an_examined_trial(), same), same.name) == Examination()
    failed = examination_of(a_diagnosis(a_failed_trial("inductor"), same), same.name)
    assert failed.blockers == ("it has the same options or code as inductor, which has no result",)
    assert examination_of(a_diagnosis(same), same.name).blockers
