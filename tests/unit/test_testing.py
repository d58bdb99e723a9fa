"""``assert_no_redundant_conversions`` on ready diagnoses: what fails, what is accepted, and what proves nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from builders import (
    a_conversion,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_lack,
    a_location,
    a_node,
    a_pair,
    a_subject,
    a_trial,
    kernels,
)

from layoutdoctor.diagnosis.accepted import accept_all, save_accepted
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.trial import Trial
from layoutdoctor.errors import InconclusiveError, RecordError, UsageError
from layoutdoctor.recording.reading import RECORDED
from layoutdoctor.rules import run_rules
from layoutdoctor.testing import assert_no_redundant_conversions

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.conversion import RedundantPair
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

CONVERSIONS = tuple(
    a_conversion(f"reorder {number}", node="convolution", port="output 0", location=None) for number in range(4)
)
FIRST = a_pair("reorder 0", "reorder 1", location=a_location(9, "model.py", "x = self.body(x)"))
SECOND = a_pair("reorder 2", "reorder 3", module="body.2", seconds=1e-3, between=())


def an_examined_trial(*pairs: RedundantPair, name: str = "inductor", **changes: Any) -> Trial:
    fields = {"graphs": (a_graph(nodes=(a_node("relu"),)),), "kernels": kernels(*CONVERSIONS, seconds=15e-3)}
    return a_trial(name, redundant_pairs=pairs, **{**fields, **changes})


def with_findings(diagnosis: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(diagnosis, findings=run_rules(diagnosis))


def message_of(diagnosis: Diagnosis, **options: Any) -> str:
    with pytest.raises(AssertionError) as caught:
        assert_no_redundant_conversions(diagnosis, **options)
    return str(caught.value)


def test_the_message_says_how_many_where_what_and_what_to_do() -> None:
    diagnosis = with_findings(a_diagnosis(an_examined_trial(FIRST, SECOND), subject=a_subject(name="Net")))

    assert message_of(diagnosis).splitlines() == [
        "2 redundant conversion pairs in Net (inference, cpu, inductor): 3.00 ms, 24.5 MiB moved (20 % of the kernel "
        "time)",
        "  model.py:9  body.1.0  `x = self.body(x)`: blocked aBcd16b -> contiguous -> contiguous around relu; 2.00 ms, "
        "12.2 MiB moved",
        "  model.py:9  body.2: blocked aBcd16b -> contiguous -> contiguous, back to back; 1.00 ms, 12.2 MiB moved",
        "  what to do: give the model and its input channels_last, so that the layers between keep the layout",
        "The whole report: print(layoutdoctor.diagnose(model, example_input)). To accept pairs: accepted=...",
    ]


def test_one_pair_is_no_pairs_many_are_counted_and_an_unknown_time_is_said() -> None:
    pair = a_pair(first="a", second="b", seconds=None, bytes_moved=None, location=None, module=None)

    lines = message_of(a_diagnosis(an_examined_trial(pair))).splitlines()

    assert lines[0] == "1 redundant conversion pair in model.py (inference, cpu, inductor): time not recorded"
    assert lines[1] == "  place not recorded: a layout and back around relu; time not recorded"

    pairs = [a_pair(f"{number}", f"{number}'") for number in range(30)]

    text = message_of(a_diagnosis(an_examined_trial(*pairs)))

    assert text.startswith("30 redundant conversion pairs")
    assert "\n  and 20 more\n" in text


def test_a_share_of_the_kernel_time_may_be_allowed_and_an_unknown_time_is_more_than_any() -> None:
    diagnosis = a_diagnosis(an_examined_trial(FIRST, SECOND))
    assert "2 redundant conversion pairs" in message_of(diagnosis, max_share=0.19)
    assert_no_redundant_conversions(diagnosis, max_share=0.2)
    unknown = a_pair(seconds=None)

    text = message_of(a_diagnosis(an_examined_trial(FIRST, unknown)), max_share=0.9)

    assert text.splitlines()[0].endswith("; at most 90 % is allowed")
    nothing = an_examined_trial(FIRST, kernels=kernels(*CONVERSIONS, seconds=15e-3, share=None))
    message_of(a_diagnosis(msgspec.structs.replace(nothing, kernels=None)), max_share=0.9)


def test_a_file_of_accepted_findings_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    diagnosis = with_findings(a_diagnosis(an_examined_trial(FIRST)))
    save_accepted(path, accept_all(diagnosis))

    returned = assert_no_redundant_conversions(diagnosis, accepted=path)

    assert [finding.accepted for finding in returned.findings if finding.code == "LD101"] == [""]
    assert_no_redundant_conversions(diagnosis, accepted=str(path))
    more = with_findings(a_diagnosis(an_examined_trial(FIRST, SECOND)))
    assert message_of(more, accepted=path).startswith("1 redundant conversion pair")
    with pytest.raises(RecordError, match=r"none\.json"):
        assert_no_redundant_conversions(diagnosis, accepted="none.json")


@pytest.mark.parametrize(
    ("diagnosis", "reason"),
    [
        (a_diagnosis(a_failed_trial("inductor", "g++ is missing")), "inductor: it failed (compile): g++ is missing"),
        (msgspec.structs.replace(a_diagnosis(), trials=()), "inductor: it was not tried; the diagnosis has nothing"),
        (a_diagnosis(an_examined_trial(kernels=None)), "inductor: its kernel list was not recorded"),
        (a_diagnosis(an_examined_trial(is_static=True)), "nothing ran"),
    ],
)
def test_no_evidence_is_no_pass(diagnosis: Diagnosis, reason: str) -> None:
    for allow_gaps in (False, True):
        with pytest.raises(InconclusiveError) as caught:
            assert_no_redundant_conversions(diagnosis, allow_gaps=allow_gaps)
        assert reason in str(caught.value)
        assert "allow_gaps" not in str(caught.value)


def test_a_gap_is_no_pass_unless_it_is_allowed() -> None:
    lacking = a_diagnosis(an_examined_trial(kernels=kernels(lacks=tuple(a_lack(f"lack {i}") for i in range(8)))))

    with pytest.raises(InconclusiveError, match="lack 4; and 3 more; pass allow_gaps=True to check the rest"):
        assert_no_redundant_conversions(lacking)
    assert_no_redundant_conversions(lacking, allow_gaps=True)


def test_what_was_found_in_what_was_named_fails_also_where_something_was_not_examined() -> None:
    diagnosis = a_diagnosis(an_examined_trial(FIRST, name="eager"), a_failed_trial("inductor"))

    message_of(diagnosis, configurations=("eager", "inductor"))
    for name in ("default", "all", "quick"):
        message_of(diagnosis, configurations=name)
    message_of(diagnosis, configurations="eager, inductor")
    with pytest.raises(InconclusiveError):
        assert_no_redundant_conversions(diagnosis)

    diagnosis = a_diagnosis(an_examined_trial(FIRST, name="eager"), an_examined_trial())

    assert assert_no_redundant_conversions(diagnosis) is diagnosis
    message_of(diagnosis, configurations=[BUILTIN_CONFIGURATIONS[0]])
    with pytest.raises(InconclusiveError, match="no configuration was named"):
        assert_no_redundant_conversions(diagnosis, configurations=())


def test_a_trace_is_checked_as_it_is() -> None:
    subject = a_subject(name="trace.json", mode="trace")

    def a_trace(*pairs: RedundantPair) -> Diagnosis:
        trial = Trial(configuration=RECORDED, status="ok", kernels=kernels(), redundant_pairs=pairs)
        return a_diagnosis(trial, subject=subject)

    assert_no_redundant_conversions(a_trace())
    assert "(trace, cpu, recorded)" in message_of(a_trace(a_pair(confidence="shapes")))
    with pytest.raises(InconclusiveError, match="known by the order of kernels only: 1"):
        assert_no_redundant_conversions(a_trace(a_pair(confidence="order")))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((), {"max_share": 1.5}, "cannot allow a share of 1.5"),
        ((), {"accepted": (3,)}, "cannot accept 3"),
        ((), {"mode": "training"}, "cannot check mode 'training' in a ready Diagnosis of mode 'inference'"),
        ((1,), {}, "cannot use an example input with a ready Diagnosis"),
    ],
)
def test_wrong_arguments_are_told(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        assert_no_redundant_conversions(a_diagnosis(an_examined_trial()), *arguments, **options)
    assert str(caught.value).startswith(message)


def test_a_model_is_diagnosed_and_all_of_its_trials_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = a_diagnosis(an_examined_trial(name="eager"), an_examined_trial(a_pair()))
    asked: list[Any] = []

    def record(model: Any, example_input: Any, *, mode: str, configurations: Any) -> Diagnosis:
        asked.extend([(model, example_input), mode, configurations])
        return diagnosis

    monkeypatch.setattr("layoutdoctor.testing.record_only", record)

    with pytest.raises(AssertionError, match=r"1 redundant conversion pair in model\.py"):
        assert_no_redundant_conversions("a model", "x", mode="training", configurations=("eager", "inductor"))
    assert asked == [("a model", "x"), "training", ("eager", "inductor")]
