"""``--redact`` in every command with a report, and what no report may hold with or without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import a_conversion, a_diagnosis, a_location, a_pair, a_subject, a_trial, an_environment, kernels

from layoutdoctor.__main__ import main
from layoutdoctor.commands import diagnose
from layoutdoctor.commands.diagnose import RecordSoFar
from layoutdoctor.commands.output import prepare_outputs
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.privacy import redact, scrub
from layoutdoctor.run.recorded import compare

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.records import Diagnosis

TRACES = Path(__file__).parents[2] / "traces"
ALEXNET = TRACES / "a100_alexnet.json.gz"
PATCH_EMBED = TRACES / "h100_vit_patch_embed.json.gz"
SECRET_PATH = "/home/wilhelmina/hospital/tumor_net.py"


def a_secret_diagnosis(name: str = "tumor_net.py") -> Diagnosis:
    place = a_location(9, SECRET_PATH, "h = self.tumor_conv(x)")
    conversions = tuple(a_conversion(f"reorder {i}", location=place, module="tumor_conv") for i in range(2))
    pair = a_pair(location=place, module="tumor_conv")
    trial = a_trial("inductor", kernels=kernels(*conversions), redundant_pairs=(pair,))
    return a_diagnosis(trial, subject=a_subject(name=name, model="TumorNet"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """As an earlier version saved it: raw."""
    path = tmp_path / "raw.json"
    path.write_bytes(to_json(a_secret_diagnosis()))
    return path


def test_render_scrubs_and_redacts_standard_output_and_files(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, absent in ((["--format", "markdown"], "wilhelmina"), (["--redact"], "tumor")):
        output = tmp_path / f"{absent}.json"
        assert main(["render", str(saved), *words, "--output", str(output)]) == 0

        printed = capsys.readouterr().out.lower()
        assert absent not in printed
        assert absent not in output.read_text(encoding="utf-8").lower()
        assert "wilhelmina" not in printed

    assert load(tmp_path / "wilhelmina.json") == scrub(a_secret_diagnosis())
    assert load(tmp_path / "tumor.json") == redact(a_secret_diagnosis())


def test_render_rechecks_before_it_redacts(saved: Path, tmp_path: Path) -> None:
    for words in ([], ["--redact"]):
        assert main(["render", str(saved), "--recheck", *words, "--output", str(tmp_path / f"{len(words)}.json")]) == 0

    plain, redacted = load(tmp_path / "0.json"), load(tmp_path / "1.json")
    assert [finding.code for finding in redacted.findings] == [finding.code for finding in plain.findings]
    assert plain.findings


def test_trace_redacts_one_and_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(PATCH_EMBED), "--redact", "--output", str(tmp_path / "d.json")]) == 0
    assert "patch_embed" not in capsys.readouterr().out
    assert load(tmp_path / "d.json").subject.name == "file_1.json.gz"

    main(["trace", str(PATCH_EMBED), str(ALEXNET), "--redact", "--format", "json"])
    records = json.loads(capsys.readouterr().out)
    assert [record["subject"]["name"] for record in records] == ["file_1.json.gz"] * 2

    main(["trace", str(PATCH_EMBED), str(ALEXNET), "--redact"])
    out = capsys.readouterr().out
    assert out.count("file_1.json.gz") >= 2
    assert "alexnet" not in out


@pytest.mark.parametrize("words", [[], ["--format", "json"], ["--format", "markdown"]])
def test_compare_scrubs_and_redacts(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        diagnosis = a_secret_diagnosis(SECRET_PATH if number else "tumor_net.py")
        (tmp_path / f"{number}.json").write_bytes(to_json(diagnosis))
    pair = [str(tmp_path / "0.json"), str(tmp_path / "1.json")]

    main(["compare", *pair, *words])
    assert "wilhelmina" not in capsys.readouterr().out
    main(["compare", *pair, *words, "--redact"])
    assert "tumor" not in capsys.readouterr().out.lower()


def test_a_diagnosis_does_not_differ_from_itself_saved(tmp_path: Path) -> None:
    environment = an_environment(settings={"KMP_AFFINITY": "orchard"})
    diagnosis = msgspec.structs.replace(a_secret_diagnosis(), environment=environment)
    diagnosis.save(tmp_path / "d.json")

    comparison = compare(diagnosis, tmp_path / "d.json")
    assert comparison.environment == ()
    assert "orchard" not in str(comparison)


def test_an_annotated_trace_is_refused_with_redact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "annotated.json.gz"
    status = main(["trace", str(PATCH_EMBED), "--redact", "--output", str(output)])

    err = capsys.readouterr().err
    assert status == 2
    assert "with --redact: this annotated trace holds every name as it was recorded" in err
    assert not output.exists()


def test_the_profilers_traces_are_refused_with_redact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["model.py", "--redact", "--save-traces", str(tmp_path / "traces")])

    assert status == 2
    assert "with --redact: the profiler writes paths and the names of modules" in capsys.readouterr().err
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize("is_redacted", [False, True])
def test_the_record_so_far_is_clean(tmp_path: Path, *, is_redacted: bool) -> None:
    outputs = prepare_outputs([str(tmp_path / "d.json")], force=False, redact=is_redacted)
    record = RecordSoFar(outputs)
    record(a_secret_diagnosis())

    text = (tmp_path / "d.json").read_text(encoding="utf-8")
    assert "wilhelmina" not in text
    assert ("tumor" in text) is not is_redacted
    partial = diagnose._save_partial(record, outputs, f"interrupted in {SECRET_PATH}")
    assert partial is not None
    text = (tmp_path / "d.json").read_text(encoding="utf-8")
    assert "wilhelmina" not in text
    assert ("tumor" in text) is not is_redacted


def test_a_terminal_shows_the_scrubbed_report(
    saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    main(["render", str(saved)])
    assert "wilhelmina" not in capsys.readouterr().out
    main(["render", str(saved), "--redact"])
    assert "tumor" not in capsys.readouterr().out.lower()


def test_an_output_is_redacted_only_where_asked(tmp_path: Path) -> None:
    (output,) = prepare_outputs([str(tmp_path / "d.json")], force=False)

    assert not output.is_redacted
