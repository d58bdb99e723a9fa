"""The JSON Schemas of what is saved: the committed copies, what they say, and that they mean what the reader means."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import msgspec
import pytest
from golden.stories import STORIES
from hostile_records import mutate

from layoutdoctor import compare
from layoutdoctor.__main__ import main
from layoutdoctor.commands.schema import SCHEMA_KINDS, schema_of_kind, to_text
from layoutdoctor.diagnosis.accepted import accept_all
from layoutdoctor.diagnosis.diagnosis import Diagnosis
from layoutdoctor.diagnosis.saved import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[1]
COPIES = TESTS.parent / "docs" / "schema"
CONTRACT: dict[str, Any] = json.loads((TESTS / "diagnosis.schema.json").read_text(encoding="utf-8"))
SAVED = sorted((TESTS / "golden").glob("*.json"))
OURS: dict[str, Any] = schema_of_kind("diagnosis")
MUTATIONS = 200
VALUES: tuple[object, ...] = (None, True, -1, 0, 3, 1.5, -0.5, 2**63, "x", "", [], {}, ["x"], [1], {"a": 1})


def validator(kind: str = "diagnosis") -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of_kind(kind))


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_the_committed_copy_is_up_to_date_and_a_schema_of_the_dialect_it_names(kind: str, update_golden: bool) -> None:
    schema = schema_of_kind(kind)
    path = COPIES / f"{kind}-{str(schema['$id']).rsplit(':', 1)[1]}.json"
    if update_golden:
        path.write_text(to_text(schema), encoding="utf-8")

    assert path.read_text(encoding="utf-8") == to_text(schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    assert schema["$id"] == f"urn:layoutdoctor:schema:{kind}:1"


@pytest.mark.thorough
@pytest.mark.parametrize("path", SAVED)
def test_every_saved_example_is_valid_by_our_schema_and_by_the_contract(path: Path) -> None:
    saved = json.loads(path.read_text(encoding="utf-8"))

    validator().validate(saved)
    jsonschema.Draft202012Validator(CONTRACT).validate(saved)


def test_comparisons_and_accepted_findings_are_valid_by_their_schemas() -> None:
    model = compare(STORIES["gain_with_findings"](), STORIES["failures_and_same"]())
    trace = compare(STORIES["trace_with_round_trips"](), STORIES["trace_of_owners"]())

    for comparison in (model, trace):
        validator("comparison").validate(json.loads(to_json(comparison)))
    accepted = msgspec.json.encode(accept_all(STORIES["gain_with_findings"]()))
    validator("accepted").validate(json.loads(accepted))


def test_every_field_of_the_contract_is_one_of_ours() -> None:
    reserved = {"$.plan"}  # always null there, and no field of ours
    assert set(fields_of(CONTRACT, CONTRACT, "$")) - reserved <= set(fields_of(OURS, OURS, "$"))


def fields_of(schema: dict[str, Any], root: dict[str, Any], place: str) -> Iterator[str]:
    """The place of every property that a schema names: ``$.trials[].status``."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    for part in (*schema.get("allOf", ()), *schema.get("anyOf", ())):
        yield from fields_of(part, root, place)
    for name, value in schema.get("properties", {}).items():
        yield f"{place}.{name}"
        yield from fields_of(value, root, f"{place}.{name}")
    if isinstance(schema.get("items"), dict):
        yield from fields_of(schema["items"], root, f"{place}[]")


@pytest.mark.thorough
def test_a_mutated_diagnosis_is_valid_exactly_where_it_can_be_decoded() -> None:
    """The schema promises a reader what msgspec checks: neither more nor less, beyond what agrees between fields."""
    chance = random.Random(5)
    checks = validator()
    saved = [to_json(STORIES[name]()) for name in ("tie", "round_trip_by_hand", "trace_of_onednn")]
    seen: set[bool] = set()
    for _ in range(MUTATIONS):
        record = json.loads(chance.choice(saved))
        mutate(record, chance, VALUES)
        record["schema_version"] = 1  # which the reader looks at by itself
        data = json.dumps(record).encode()
        assert checks.is_valid(record) == is_decodable(data), data
        seen.add(is_decodable(data))
    assert seen == {True, False}


def is_decodable(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=Diagnosis)
    except msgspec.ValidationError as error:
        return "expected as many of each" in str(error)  # strides and sizes, of which a schema cannot speak
    return True


def test_the_command_prints_it_or_writes_a_file_and_replaces_none_without_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "schema"
    assert main(["schema", "comparison"]) == 0
    assert capsys.readouterr().out == to_text(schema_of_kind("comparison"))
    assert main(["schema", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert path.read_text(encoding="utf-8") == to_text(schema_of_kind("diagnosis"))

    path.write_text("mine", encoding="utf-8")
    assert main(["schema", "comparison", "--output", str(path)]) == 2
    assert "it exists already; pass --force to replace it" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert main(["schema", "comparison", "--output", str(path), "--force"]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["$id"] == "urn:layoutdoctor:schema:comparison:1"


@pytest.mark.thorough
def test_another_validator_agrees() -> None:
    """As ``docs/schema/README.md`` says it."""
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(COPIES / "diagnosis-1.json")]

    good = subprocess.run([*command, str(SAVED[0])], capture_output=True, text=True, check=False)
    bad = subprocess.run([*command, str(TESTS / "diagnosis.schema.json")], capture_output=True, text=True, check=False)

    assert good.returncode == 0, good.stdout
    assert bad.returncode == 1
