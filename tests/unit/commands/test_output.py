"""Where reports go: never over what is read, details beside a Markdown report, redacted where asked for."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from builders import (
    a_conversion,
    a_diagnosis,
    a_location,
    a_pair,
    a_subject,
    a_trial,
    kernels,
)
from golden.stories import STORIES

from layoutdoctor.__main__ import main
from layoutdoctor.commands.output import prepare_outputs, render_terminal
from layoutdoctor.diagnosis.saved import load, to_json
from layoutdoctor.errors import UsageError
from layoutdoctor.privacy import redact, scrub
from layoutdoctor.reports.text import render_text

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis

TRACES = Path(__file__).parents[2] / "traces"
ALEXNET = TRACES / "a100_alexnet.json.gz"
PATCH_EMBED = TRACES / "h100_vit_patch_embed.json.gz"
SECRET_PATH = "/home/wilhelmina/hospital/tumor_net.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with what commands read, and other names for it; no command may come to import an engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "layoutdoctor.run.diagnose", None)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("model.py", "model.pt2", "package/__init__.py", "package/inner/net.py"):
        (tmp_path / name).write_text("raise SystemExit('this file was run')")
    for name in ("old.json", "new.json"):
        (tmp_path / name).write_bytes(to_json(a_diagnosis(a_trial())))
    (tmp_path / "accepted.json").write_text('{"accepted_version": 1, "findings": []}')
    (tmp_path / "link.py").symlink_to("model.py")
    os.link("model.py", "hard.py")
    os.link("old.json", "hard.json")
    (tmp_path / "again").symlink_to(".")
    return tmp_path


def test_files_that_are_read_are_never_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(folder)
    for words, output in (
        (["model.py"], "hard.py"),
        (["model.py"], "again/model.py"),
        (["link.py:Net"], "model.py"),
        (["./package/../model.py:Net"], "model.py"),
        (["package.inner.net:Net"], "package/inner/net.py"),
        (["package.inner.net:Net"], "package/__init__.py"),
        (["model.py", "--accepted", "accepted.json"], "accepted.json"),
        (["render", "old.json"], "hard.json"),
        (["compare", "old.json", "new.json"], "new.json"),
    ):
        assert main([*words, "--output", output, "--force"]) == 2, words
        assert "which this command reads; name another file" in capsys.readouterr().err
    for words in (
        ["model.py", "--write-accepted", "hard.py"],
        ["render", "old.json", "--write-accepted", "./old.json"],
    ):
        assert main([*words, "--force"]) == 2, words
        assert "which this command reads; name another file" in capsys.readouterr().err
    assert contents(folder) == before
    assert "package" not in sys.modules


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def diagnosis_of(count: int) -> Diagnosis:
    return a_diagnosis(a_trial(kernels=kernels(*(a_conversion(f"reorder {i}") for i in range(count)), seconds=9.0)))


@pytest.fixture
def huge(tmp_path: Path) -> str:
    """A saved diagnosis whose report does not fit into an issue."""
    path = tmp_path / "d.json"
    diagnosis_of(2_000).save(path)
    return str(path)


def named_in(report: Path) -> str:
    (name,) = re.findall(r"`([^`]+)` has every conversion", report.read_text(encoding="utf-8"))
    return str(name)


def test_what_does_not_fit_stands_beside_the_report(tmp_path: Path, huge: str) -> None:
    assert main(["render", huge, "--output", str(tmp_path / "report.md")]) == 0

    assert named_in(tmp_path / "report.md") == "report.details.md"
    details = (tmp_path / "report.details.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| reorder \d+ +\|", details, re.MULTILINE)) == 2_000


def test_the_details_are_an_output_as_any_other(folder: Path) -> None:
    (folder / "report.details.md").write_text("mine", encoding="utf-8")
    for names, force, message in (
        (["report.md"], False, "cannot write 'report.details.md': it exists already; pass --force to replace it"),
        (
            ["a.md", "a.markdown"],
            True,
            "cannot write 'a.details.md' twice: two outputs need this file (NAME.md also writes NAME.details.md); "
            "name another file",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            prepare_outputs(names, force=force)
        assert str(caught.value) == message
    with pytest.raises(UsageError, match="which this command reads"):
        prepare_outputs(["report.md"], force=True, read=["again/report.details.md", None, "gone"])


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


ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def test_a_terminal_gets_the_text_report_and_nothing_but_colours_on_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for story in STORIES.values():
        for width in (60, 140):
            shown = render_terminal(story(), width)
            assert ESCAPE.sub("", shown) == render_text(story(), width)
            assert ESCAPE.search(shown)

    lines = render_terminal(STORIES["gain_with_findings"](), 100).splitlines()
    assert any(line.startswith("\x1b[1;32m> compiled + channels_last ") for line in lines)
    assert any(line.startswith("\x1b[33mLD205 warning ") for line in lines)

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[33m" not in render_terminal(STORIES["gain_with_findings"](), 100)


def test_markup_and_escapes_in_names_are_text() -> None:
    diagnosis = STORIES["gain_with_findings"]()
    (first, *others) = diagnosis.findings
    hostile = msgspec.structs.replace(first, message="[red]x[/red] :boom: \x1b[2J\x1b]8;;http://x\x07")
    planted = msgspec.structs.replace(diagnosis, findings=(hostile, *others))

    report = ESCAPE.sub("", render_terminal(planted, 120))

    assert "[red]x[/red] :boom:" in report
    assert "\x1b" not in report
