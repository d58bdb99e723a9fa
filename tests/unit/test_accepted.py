"""Accepted findings: what is known again, what counts again, and files that hold something else."""

from __future__ import annotations

import datetime
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import builders
import msgspec
import pytest
from builders import a_conversion, a_diagnosis, a_failed_trial, a_location, a_pair, a_subject, a_trial, kernels

from layoutdoctor.diagnosis.accepted import (
    AcceptedFile,
    AcceptedFinding,
    accept,
    accept_all,
    finding_fingerprint,
    load_accepted,
    save_accepted,
)
from layoutdoctor.errors import RecordError

if TYPE_CHECKING:
    from pathlib import Path

    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

DAY = datetime.date(2026, 11, 21)


PLACE = a_location(9, "/home/me/project/model.py", "x = self.body(x)")
a_finding = partial(builders.a_finding, location=PLACE, evidence=("reorder 0", "reorder 1"))


def found(*findings: Finding, **changes: Any) -> Diagnosis:
    return a_diagnosis(a_trial("eager"), a_trial("inductor"), findings=findings, **changes)


def moved(finding: Finding, line: int, **changes: Any) -> Finding:
    assert finding.location is not None
    location = msgspec.structs.replace(finding.location, line=line, **changes)
    return msgspec.structs.replace(finding, location=location)


def test_a_finding_is_known_again_where_its_line_moved() -> None:
    accepted = accept_all(found(a_finding()))

    acceptance = accept(found(moved(a_finding(message="other numbers", seconds=1.0), 250)), accepted, DAY)

    assert (acceptance.count, acceptance.gone) == (1, ())

    # Folders and white space do not matter.
    accepted = accept_all(found(a_finding()))
    elsewhere = moved(a_finding(), 9, file="C:\\work\\model.py", code="\tx  = self.body(x) ")
    assert accept(found(elsewhere), accepted, DAY).count == 1

    # Without the text of the line its number counts.
    accepted = accept_all(found(a_finding(location=a_location(9, "model.py"))))
    assert accept(found(a_finding(location=a_location(9, "model.py"))), accepted, DAY).count == 1
    assert accept(found(a_finding(location=a_location(10, "model.py"))), accepted, DAY).count == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"code": "LD102"},
        {"configuration": None},
        {"module": "body.2"},
        {"location": None},
        {"location": a_location(9, "other.py", "x = self.body(x)")},
        {"location": a_location(9, "model.py", "x = self.head(x)")},
    ],
)
def test_another_finding_is_not_accepted(changes: dict[str, Any]) -> None:
    accepted = accept_all(found(a_finding()))

    acceptance = accept(found(a_finding(**changes)), accepted, DAY)

    assert acceptance.count == 0
    assert [entry.module for entry in acceptance.gone] == ["body.1"]


def test_the_fingerprint_is_what_the_documentation_says() -> None:
    # sha256 of "LD101\0inductor\0body.1\0model.py\0x = self.body(x)", made with another tool
    assert finding_fingerprint(a_finding()) == "bab9ef09ad1617e77e444cd59b530fe1"


def test_the_reason_marks_a_finding() -> None:
    accepted = accept_all(found(a_finding()))
    known = msgspec.structs.replace(accepted.accepted[0], reason="waits for torch 2.14")

    marked = accept(found(a_finding()), AcceptedFile(accepted=(known,)), DAY).diagnosis

    assert [finding.accepted for finding in marked.findings] == ["waits for torch 2.14"]
    assert [finding.accepted for finding in accept(marked, AcceptedFile(accepted=()), DAY).diagnosis.findings] == [None]


def test_the_last_day_is_the_last_one_that_counts() -> None:
    for until, count in ((DAY, 1), (DAY - datetime.timedelta(days=1), 0), (None, 1)):
        entry = msgspec.structs.replace(accept_all(found(a_finding())).accepted[0], until=until)
        acceptance = accept(found(a_finding()), AcceptedFile(accepted=(entry,)), DAY)

        assert (acceptance.count, acceptance.expired, acceptance.gone) == (count, () if count else (entry,), ())


def test_a_finding_that_has_grown_counts_again() -> None:
    accepted = accept_all(found(a_finding()))
    more = a_finding(evidence=("reorder 0", "reorder 1", "reorder 2", "reorder 3"))

    acceptance = accept(found(more), accepted, DAY)

    assert (acceptance.count, acceptance.gone, acceptance.outgrown) == (0, (), accepted.accepted)
    assert accept(found(a_finding(evidence=())), accepted, DAY).count == 1

    # Two findings of one place are one entry that covers both.
    small, large = a_finding(evidence=("reorder 0",)), a_finding()
    for order in ((small, large), (large, small)):
        accepted = accept_all(found(*order))
        assert [entry.evidence_count for entry in accepted.accepted] == [2]
        assert accept(found(*order), accepted, DAY).count == 2


def test_the_costliest_of_several_places_may_be_another_one_next_time() -> None:
    pairs = (
        a_pair("reorder 0", "reorder 1", module="body.1", location=a_location(9, "model.py", "x = self.body(x)")),
        a_pair("reorder 2", "reorder 3", module="body.2", location=a_location(11, "model.py", "x = self.head(x)")),
    )
    conversion = a_conversion("reorder 0", module="stem", location=a_location(3, "model.py", "x = self.stem(x)"))
    evidence = ("reorder 0", "reorder 1", "reorder 2", "reorder 3")
    trial = a_trial("inductor", redundant_pairs=pairs, kernels=kernels(conversion))
    first = a_diagnosis(trial, findings=(a_finding(evidence=evidence),))
    places = [(pairs[1].module, pairs[1].location), (conversion.module, conversion.location)]

    accepted = accept_all(first)

    for module, location in places:
        other = a_finding(evidence=evidence, module=module, location=location)
        assert accept(a_diagnosis(trial, findings=(other,)), accepted, DAY).count == 1
    other = a_finding(evidence=evidence, module="body.3", location=places[0][1])
    assert accept(a_diagnosis(trial, findings=(other,)), accepted, DAY).count == 0


def test_only_a_diagnosis_that_could_find_it_says_that_a_finding_is_gone() -> None:
    accepted = accept_all(found(a_finding()))

    assert accept(found(), accepted, DAY).gone == accepted.accepted
    for diagnosis in (
        found(subject=a_subject(name="other.py")),
        found(interrupted="interrupted from the keyboard"),
        a_diagnosis(a_trial("eager")),
        a_diagnosis(a_failed_trial("inductor")),
    ):
        assert accept(diagnosis, accepted, DAY).gone == ()


def test_a_finding_about_no_trial_is_accepted_by_its_place_alone_and_gone_wherever_it_is_not_found_again() -> None:
    for configuration in (None, "a plugin's own"):
        accepted = accept_all(found(a_finding(configuration=configuration)))

        assert [entry.also for entry in accepted.accepted] == [()]
        assert accept(found(a_finding(configuration=configuration)), accepted, DAY).count == 1

    whole = accept_all(found(a_finding(configuration=None)))
    assert accept(a_diagnosis(a_failed_trial("inductor")), whole, DAY).gone == whole.accepted


def test_a_file_brought_up_to_date_keeps_reasons_and_what_it_cannot_judge() -> None:
    old = accept_all(found(a_finding(), a_finding(module="gone")))
    known = tuple(msgspec.structs.replace(entry, reason="known", until=DAY) for entry in old.accepted)
    other = AcceptedFinding(code="LD103", configuration="inductor", subject="other.py", reason="not this model")

    diagnosis, before = found(moved(a_finding(), 77), a_finding(module="new")), AcceptedFile(accepted=(*known, other))

    for today, until in ((DAY, DAY), (DAY + datetime.timedelta(days=1), None)):  # a last day that is over is dropped
        new = accept_all(diagnosis, before, today)

        assert [(entry.code, entry.module, entry.reason, entry.until) for entry in new.accepted] == [
            ("LD101", "body.1", "known", until),
            ("LD101", "new", "", None),
            ("LD103", None, "not this model", None),
        ]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    strange = a_finding(module="b\udc80dy", message="ends\x1b[31m \ud800", location=a_location(9, "mödel.py", "\udcff"))
    accepted = accept_all(found(a_finding(), strange))
    save_accepted(tmp_path / "accepted.json", accepted)

    loaded = load_accepted(tmp_path / "accepted.json")

    assert len(loaded.accepted) == 2
    assert accept(found(a_finding(), strange), loaded, DAY).count == 2
    assert (tmp_path / "accepted.json").read_bytes().endswith(b"}\n")

    # An entry written by hand needs its rule only.
    (tmp_path / "a.json").write_text('{"schema_version": 1, "accepted": [{"code": "LD402", "reason": "busy machine"}]}')
    finding = a_finding(code="LD402", configuration=None, location=None, module=None, evidence=("1", "2"))

    acceptance = accept(found(finding), load_accepted(tmp_path / "a.json"), DAY)

    assert acceptance.diagnosis.findings[0].accepted == "busy machine"


WHOLE = json.dumps({"schema_version": 1, "accepted": [{"code": "LD101", "module": "a"}]})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Input data was truncated; expected accepted findings (--write-accepted)"),
        (
            WHOLE.replace("1", "2", 1),
            "Invalid enum value 2 - at `$.schema_version`; expected accepted findings (--write-accepted)",
        ),
        (WHOLE.replace("module", "modul"), "unknown field `modul` - at `$.accepted[0]`; expected accepted findings"),
        ('{"schema_version": 1, "accepted": ' + "[" * 100_000, "Expected `object`, got `array` - at `$.accepted[0]`"),
    ],
)
def test_what_is_no_file_of_accepted_findings_is_refused_in_a_sentence(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "accepted.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))

    with pytest.raises(RecordError) as caught:
        load_accepted(path)

    assert str(caught.value).startswith(f"cannot read {str(path)!r}: ")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500 + len(str(path))
    assert "\n" not in str(caught.value)
