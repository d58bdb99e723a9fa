"""Saved diagnoses that are no diagnoses, or were edited: a sentence each, never a traceback, and nothing is written."""

from __future__ import annotations

import gzip
import json
import random
from typing import TYPE_CHECKING, Any

import pytest
from golden.stories import STORIES
from hostile_records import mutate

from layoutdoctor import compare
from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import from_json, load, to_json
from layoutdoctor.errors import LayoutDoctorError, RecordError
from layoutdoctor.reports import FORMATS, render, render_comparison
from layoutdoctor.rules import run_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from layoutdoctor.diagnosis.diagnosis import Diagnosis

GOOD = to_json(STORIES["tie"]())
SAVED_BY = "expected a diagnosis saved by layoutdoctor (--output FILE.json)"
MUTATED = 200


def refusal(data: bytes) -> str:
    with pytest.raises(RecordError) as caught:
        from_json(data, "'d.json'")
    return str(caught.value).removeprefix("cannot read 'd.json': ")


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("inductor_options", "cpp.cxx", "/tmp/program"),
        ("inductor_options", "trace.enabled", True),
        ("inductor_options", "epilogue_fusion", "x; y"),
        ("compile_arguments", "backend", "theirs"),
        ("library_switches", "cudnn.__class__", True),
    ],
)
def test_a_file_sets_no_more_than_how_code_is_generated(part: str, name: str, value: object) -> None:
    saved = json.loads(GOOD)
    saved["trials"][1]["configuration"][part] = {name: value}

    assert refusal(json.dumps(saved).encode()).startswith(f"$.trials[1].configuration.{part} ")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", f"Input data was truncated; {SAVED_BY}"),
        (
            b'{"schema_version": 1}',
            "Object missing required field `layoutdoctor_version`; it is no diagnosis of schema_version 1",
        ),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", f"it is nested too deeply; {SAVED_BY}"),
        (
            b'{"schema_version": 7, "trials": "later"}',
            "it has schema_version 7, expected 1; update layoutdoctor, or read it with the layoutdoctor version that "
            "wrote it",
        ),
        (
            b'{"schema_version": 12345678901234}',
            "it has schema_version 123456789..., expected 1; update layoutdoctor, or read it with the layoutdoctor "
            "version that wrote it",
        ),
        (
            b'{"schema_version": 0}',
            "it has schema_version 0, expected 1; read it with the layoutdoctor version that wrote it",
        ),
        (
            b'{"schema_version": 1, "kind": "model-comparison"}',
            "it is a model-comparison, expected a diagnosis; name one of those that it compares",
        ),
        (
            b'{"schemaVersion": 1, "traceEvents": []}',
            "it is a recorded trace; examine it first (layoutdoctor show FILE --output SAVED.json)",
        ),
    ],
)
def test_what_is_no_diagnosis_is_refused_with_the_reason(data: bytes, message: str) -> None:
    assert refusal(data) == message


def test_a_byte_order_mark_does_no_harm() -> None:
    assert from_json(b"\xef\xbb\xbf" + GOOD) == STORIES["tie"]()


def test_a_gzipped_file_is_read_if_it_is_whole_and_not_too_large(tmp_path: Path) -> None:
    path = tmp_path / "d.json.gz"
    STORIES["tie"]().save(path)
    data = path.read_bytes()
    assert (data[:2], load(path)) == (b"\x1f\x8b", STORIES["tie"]())
    assert json.loads(gzip.decompress(data)) == json.loads(GOOD)

    with pytest.raises(RecordError, match=r"unpacked it has more than [0-9.]+ KiB, which is too much$"):
        load(path, max_bytes=len(GOOD) - 1)
    path.write_bytes(data[:-20])
    with pytest.raises(RecordError, match=r"it is cut off or damaged"):
        load(path)


def test_a_diagnosis_cut_off_anywhere_is_refused_in_one_sentence() -> None:
    for end in range(0, len(GOOD.rstrip()), 7):
        assert "\n" not in refusal(GOOD[:end])


def changed(place: str, value: object, story: str = "gain_with_findings") -> bytes:
    """A story's JSON with one value replaced; ``trials.0.status`` is its place."""
    record = json.loads(to_json(STORIES[story]()))
    container: Any = record
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    for part in path:
        container = container[part]
    container[last] = value
    return json.dumps(record).replace('"1e999"', "1e999").encode()


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("trials.0.measurement.median_seconds", -1.0, "Expected `float` >= 1e-12 - at `$.trials[0].measurement."),
        ("trials.0.measurement.median_seconds", "1e999", "Number out of range - at `$.trials[0].measurement.median"),
        (
            "trials.0.kernels.seconds",
            1e300,
            "Expected `float` <= 1000000000000000.0 - at `$.trials[0].kernels.seconds`",
        ),
        ("trials.0.kernels.share", 7, "Expected `float` <= 1.001 - at `$.trials[0].kernels.share`"),
        ("comparison.ratios.0.high", 0.0, "Expected `float` >= 1e-15 - at `$.comparison.ratios[0].high`"),
        ("trials", [], "Expected `array` of length >= 1 - at `$.trials`"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_field(place: str, value: object, message: str) -> None:
    assert refusal(changed(place, value)).startswith(message)
    assert refusal(changed(place, value)).endswith("; it is no diagnosis of schema_version 1")


ROUND_TRIP = "round_trip_by_hand"
CONTRADICTIONS: list[tuple[str, object, str] | tuple[str, object, str, str]] = [
    ("trials.4.same_as", "nowhere", "$.trials[4].same_as names 'nowhere', which is not in the file"),
    ("trials.4.same_as", "inductor-layout-opt-on", "$.trials[4].same_as names 'inductor-layout-opt-on', which is not"),
    ("trials.0.configuration.name", "inductor", "$.trials.configuration.name is 'inductor' more than once"),
    ("comparison.baseline", "x", "$.comparison names 'x', which is not in the file"),
    ("comparison.ratios.1.name", "y" * 99, f"$.comparison names '{'y' * 57}...', which is not in the file"),
    ("recommendation.configuration", "x", "$.recommendation names 'x', which is not in the file"),
    ("findings.1.configuration", "x", "$.findings.configuration names 'x', which is not in the file"),
    ("trials.3.redundant_pairs.2.second", "z", "$.trials[3].redundant_pairs names 'z', which is not in the file"),
    ("trials.3.kernels.conversions.0.id", "reorder 1", "$.trials[3], conversions: id is 'reorder 1' more than once"),
    ("trials.0.graphs.0.nodes.3.inputs", ["relu"], "$.trials[0].graphs[0].nodes[3].inputs has 'relu'", ROUND_TRIP),
    ("trials.0.graphs.0.nodes.1.name", "x", "$.trials[0].graphs[0].nodes.name is 'x' more than once", ROUND_TRIP),
    ("trials.1.graphs.1.name", "graph 0", "$.trials[1].graphs.name is 'graph 0' more", "unfinished_comparison"),
]
RANKS = [
    ("trials.3.kernels.conversions.0.target.stride", [1], "$.trials[3].kernels.conversions[0].target", None),
    ("subject.inputs.0.stride", [1], "$.subject.inputs[0]", "tie"),
    ("trials.0.graphs.0.nodes.1.layout.stride", [], "$.trials[0].graphs[0].nodes[1].layout", ROUND_TRIP),
]


def test_a_contradiction_is_refused_by_its_field() -> None:
    for place, value, message, *story in CONTRADICTIONS:
        said = refusal(changed(place, value, *story))
        assert said.startswith(message)
        assert said.endswith("; it was changed after it was saved: diagnose again")
    for place, strides, field, story_of_field in RANKS:
        said = refusal(changed(place, strides, story_of_field or "gain_with_findings"))
        assert said.startswith(f"strides in {len(strides)} and sizes in ")
        assert f"dimensions, expected as many of each - at `{field}`" in said


def test_a_file_that_is_too_large_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    with path.open("wb") as stream:
        stream.truncate(200_000_000)  # a sparse file: it takes no room

    with pytest.raises(RecordError) as caught:
        load(path)

    assert str(caught.value) == (
        f"cannot read {str(path)!r}: it has more than 128 MiB, which is the limit of a saved file; if it is a "
        "diagnosis, raise the limit: layoutdoctor.load(path, max_bytes=...)"
    )


@pytest.mark.parametrize("words", [["render"], ["compare", "{good}"]], ids=["render", "compare"])
@pytest.mark.parametrize(
    "data",
    [b"", GOOD[:700], b'{"schema_version": 9}', changed("comparison.baseline", "x"), gzip.compress(GOOD, mtime=0)[:40]],
    ids=["empty", "cut off", "newer", "contradictory", "packed"],
)
def test_the_commands_say_one_line_and_write_nothing(
    words: list[str], data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, output = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "report.md"
    good.write_bytes(GOOD)
    bad.write_bytes(data)

    status = main([*(word.format(good=good) for word in words), str(bad), "--output", str(output)])

    printed = capsys.readouterr()
    assert status == 3
    assert printed.out == ""
    assert printed.err.startswith("layoutdoctor: error: cannot ")
    assert printed.err.count("\n") == 1
    assert not output.exists()
    assert bad.read_bytes() == data


WORDS: tuple[object, ...] = (
    *("", "x", "\x00", "é\u202e", "eager", "inductor", "same_as", "trace", "recorded", "failed", "graph 0", "("),
    *("aten.convolution.default", "aten.relu.default", "placeholder", "output", "channels_last", "cuda:90", "cpu"),
)
NUMBERS: tuple[object, ...] = (-1, 0, 1, 3, 2**63 - 1, 1e-12, 1e15, -1e15, 0.5, 1.0, 1e308, 5e-324)
VALUES: tuple[object, ...] = (None, True, [], {}, ["x"], [1], *WORDS, *NUMBERS)


@pytest.mark.thorough
def test_a_mutated_diagnosis_is_refused_or_rendered_and_nothing_else() -> None:
    """Values, types and keys changed, dropped, doubled or moved, in every story; a failure shows the JSON."""
    chance = random.Random(20261121)
    saved = {name: to_json(story()) for name, story in STORIES.items()}
    rendered = 0
    for _ in range(MUTATED):
        name = chance.choice(sorted(saved))
        record = json.loads(saved[name])
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            mutate(record, chance, VALUES)
        data = json.dumps(record).encode()
        try:
            diagnosis = from_json(data)
        except RecordError:
            continue
        rendered += 1
        for use in uses_of(diagnosis, from_json(saved[name])):
            try:
                use()
            except LayoutDoctorError:
                continue
            except Exception as error:
                raise AssertionError(f"{error!r} on {data.decode()}") from error
    assert rendered > MUTATED // 10


def uses_of(diagnosis: Diagnosis, other: Diagnosis) -> Iterator[Callable[[], object]]:
    for report_format in FORMATS:
        yield lambda report_format=report_format: render(diagnosis, report_format)
    yield lambda: run_rules(diagnosis)
    yield lambda: render_comparison(compare(other, diagnosis), "markdown")
    yield lambda: render_comparison(compare(diagnosis, other), "text")
