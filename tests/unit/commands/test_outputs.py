"""What a command reads is never written over: not with ``--force``, and under no other name."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from builders import a_diagnosis, a_trial

from layoutdoctor.__main__ import main
from layoutdoctor.commands.output import files_of_target, prepare_outputs
from layoutdoctor.diagnosis.saved import to_json

PATCH_EMBED = Path(__file__).parents[2] / "traces" / "h100_vit_patch_embed.json.gz"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current one, with what commands read, and other names for it; no command may come to import an engine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "layoutdoctor.doctor", None)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("model.py", "model.pt2", "package/__init__.py", "package/inner/net.py"):
        (tmp_path / name).write_text("raise SystemExit('this file was run')")
    for name in ("old.json", "new.json"):
        (tmp_path / name).write_bytes(to_json(a_diagnosis(a_trial())))
    (tmp_path / "accepted.json").write_text('{"accepted_version": 1, "findings": []}')
    shutil.copy(PATCH_EMBED, tmp_path / "trace.json.gz")
    (tmp_path / "link.py").symlink_to("model.py")
    os.link("model.py", "hard.py")
    os.link("old.json", "hard.json")
    (tmp_path / "again").symlink_to(".")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "eager.json.gz").symlink_to("../model.py")
    return tmp_path


@pytest.mark.parametrize("force", [[], ["--force"]], ids=["", "force"])
@pytest.mark.parametrize(
    ("words", "output", "read"),
    [
        (["model.py"], "model.py", "model.py"),
        (["model.py"], "./model.py", "model.py"),
        (["model.py"], "link.py", "model.py"),
        (["model.py"], "hard.py", "model.py"),
        (["model.py"], "again/model.py", "model.py"),
        (["link.py:Net"], "model.py", "link.py"),
        (["./package/../model.py:Net"], "model.py", "package/../model.py"),
        (["model.pt2"], "model.pt2", "model.pt2"),
        (["package.inner.net:Net"], "package/inner/net.py", "{folder}/package/inner/net.py"),
        (["package.inner.net:Net"], "package/__init__.py", "{folder}/package/__init__.py"),
        (["model.py", "--accepted", "accepted.json"], "accepted.json", "accepted.json"),
        (["render", "old.json"], "./old.json", "old.json"),
        (["render", "old.json", "--recheck"], "hard.json", "old.json"),
        (["render", "old.json", "--accepted", "accepted.json"], "accepted.json", "accepted.json"),
        (["compare", "old.json", "new.json"], "old.json", "old.json"),
        (["compare", "old.json", "new.json"], "new.json", "new.json"),
        (["trace", "trace.json.gz"], "again/trace.json.gz", "trace.json.gz"),
        (["trace", "trace.json.gz", "--accepted", "accepted.json"], "accepted.json", "accepted.json"),
    ],
)
def test_what_is_read_is_never_an_output(
    words: list[str], output: str, read: str, force: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)

    assert main([*words, "--output", output, *force]) == 2

    assert capsys.readouterr().err == (
        f"layoutdoctor: error: cannot write {output!r}: it is {read.format(folder=folder)!r}, which this command "
        "reads; name another file\n"
    )
    assert contents(folder) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "words",
    [
        ["model.py", "--write-accepted", "hard.py"],
        ["render", "old.json", "--write-accepted", "./old.json"],
        ["trace", "trace.json.gz", "--write-accepted", "trace.json.gz"],
        ["model.py", "--save-traces", "traces"],
    ],
    ids=" ".join,
)
def test_neither_accepted_findings_nor_traces_are_written_over_it(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(folder)

    assert main([*words, "--force"]) == 2

    assert "which this command reads; name another file" in capsys.readouterr().err
    assert contents(folder) == before


def test_the_details_of_a_report_are_put_beside_what_is_read(folder: Path) -> None:
    (folder / "report.details.md").write_text("accepted")

    (output,) = prepare_outputs(["report.md"], force=True, read=["again/report.details.md", None, "gone"])

    assert output.details == Path("report.details-2.md")


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("model.py", ["model.py"]),
        ("model.pt2", ["model.pt2"]),  # and not model.py, which is a module of that name
        ("a\0b:c", ["a\0b:c"]),
        ("package.inner.net:Net.part", ["package.inner.net:Net.part", "package/__init__.py", "package/inner/net.py"]),
        ("package.gone.net:Net", ["package.gone.net:Net", "package/__init__.py"]),
        ("layoutdoctor_gone:Net", ["layoutdoctor_gone:Net"]),
        (":Net", [":Net"]),
    ],
)
def test_the_files_of_a_target_are_found_without_running_any(target: str, names: list[str], folder: Path) -> None:
    found = [str(path).removeprefix(f"{folder}/") for path in files_of_target(target)]

    assert found == names
    assert "package" not in sys.modules
