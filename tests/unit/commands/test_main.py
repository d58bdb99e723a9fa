"""The command line around the subcommands: help, version, ``-q`` and ``-v``, and that only one of them is imported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from recorded_builders import a_recording

from layoutdoctor import __version__
from layoutdoctor.__main__ import build_parser, main, with_command
from layoutdoctor.commands import COMMAND_ALIASES, COMMANDS
from layoutdoctor.commands.streams import logger
from layoutdoctor.diagnosis.accepted import AcceptedFile, save_accepted
from layoutdoctor.recording.saved import save_recording

if TYPE_CHECKING:
    from collections.abc import Callable

TESTS = Path(__file__).parents[2]
TRACE = str(TESTS / "traces" / "h100_vit_patch_embed.json.gz")


def test_without_a_word_the_help_is_printed_and_the_usage_was_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("usage: layoutdoctor [-h] [-q | -v] [--version] COMMAND ...\n")


def test_every_command_has_its_line_and_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-q", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for name, summary in COMMANDS.items():
        others = ", ".join(alias for alias, meant in COMMAND_ALIASES.items() if meant == name)
        assert f" {name} {f'({others}) ' if others else ''}{summary}" in shown
        assert main([name, "--help"]) == 0
        assert capsys.readouterr().out.startswith(f"usage: layoutdoctor {name} [-h] ")
    for words in (["--version"], ["model.py", "--version"], *([name, "--version"] for name in COMMANDS)):
        assert main(words) == 0
        assert capsys.readouterr().out == f"layoutdoctor {__version__}\n"


def test_quiet_and_verbose_go_before_every_command_and_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["-q", "render", "d"], ["render", "d", "-q"], ["--quiet", "m.py"], ["render", "--quiet", "d"]):
        given = with_command(words)
        assert given[0] == ("render" if "render" in words else "diagnose")
        arguments = build_parser(given[0]).parse_args(given)
        assert (arguments.quiet, arguments.verbose) == (True, False)


@pytest.fixture
def words_of(saved: Path, tmp_path: Path) -> Callable[[str], list[str]]:
    """What a subcommand can be asked here, so that it has a note to say where it ever has one."""
    save_recording(a_recording(), tmp_path / "eager.recording")
    written = ["--write-accepted", str(tmp_path / "written.json"), "--force"]
    asked = {
        "trace": [TRACE, *written],
        "examine": [str(tmp_path / "eager.recording"), *written],
        "render": [str(saved), *written],
        "compare": [str(saved), str(saved), "--output", str(tmp_path / "written.md"), "--force"],
        "explain": ["LD101"],
        "schema": ["--output", str(tmp_path / "schema.json"), "--force"],
    }
    return lambda name: asked[name]


def test_a_note_is_said_unless_quiet_and_more_if_verbose(
    words_of: Callable[[str], list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    before = (logger.handlers, logger.level, logger.propagate)
    for name in ("trace", "examine", "render", "compare", "explain", "schema"):
        said = {}
        for option in ("", "-q", "-v"):
            assert main([*([option] if option else []), name, *words_of(name)]) == 0, name
            said[option] = capsys.readouterr().err
        accepts = "it accepts" in said[""]
        assert accepts == (name in ("trace", "examine", "render"))
        assert len(said[""].splitlines()) == int(name != "explain"), name
        assert said["-q"] == ""
        assert said["-v"].startswith(f"layoutdoctor: version {__version__}, Python 3.")
        assert said["-v"].endswith("layoutdoctor: exit status 0\n")
        assert said[""] in said["-v"]
        assert said["-v"].count("layoutdoctor: wrote ") == int(name != "explain")
    assert (logger.handlers, logger.level, logger.propagate) == before


def test_quiet_keeps_errors_warnings_and_what_failed(
    words_of: Callable[[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = words_of("render")[0]
    save_accepted(tmp_path / "accepted.json", AcceptedFile(accepted=()))

    for name, rest in (("trace", ["gone"]), ("examine", ["gone"]), ("render", ["gone"]), ("compare", ["gone", saved])):
        assert main([name, *rest, "-q"]) == 3
        assert capsys.readouterr().err.startswith("layoutdoctor: error: cannot ")
    assert main(["explain", "LD999", "-q"]) == 2
    assert "layoutdoctor: error: cannot explain rule 'LD999'" in capsys.readouterr().err

    assert main(["render", saved, "-q", "--fail-on", "warning", "--accepted", str(tmp_path / "accepted.json")]) == 1
    assert capsys.readouterr().err == (
        "layoutdoctor: warning: --fail-on warning says nothing about eager: no graph was recorded\n"
        "layoutdoctor: warning: --fail-on warning says nothing about inductor: no graph was recorded\n"
        "layoutdoctor: failed: 1 finding (--fail-on warning)\n"
        "  LD205 warning input-format-mismatch [inductor]: the input is contiguous\n"
    )


def test_a_saved_diagnosis_is_printed_in_another_format_and_with_the_rules_of_today(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render", str(saved), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("## model.py")
    for words, is_there in (([], True), (["--recheck"], False)):
        assert main(["render", str(saved), "--format", "json", *words]) == 0
        assert ("LD205" in [one["code"] for one in json.loads(capsys.readouterr().out)["findings"]]) is is_there


def test_an_interruption_while_the_command_is_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("layoutdoctor.__main__.build_parser", lambda *commands: os.kill(os.getpid(), signal.SIGTERM))

    assert main(["explain"]) == 143

    assert capsys.readouterr().err == "layoutdoctor: interrupted\n"


def test_only_what_is_asked_for_is_imported() -> None:
    """In one process, from what needs least to what needs most."""
    saved = str(TESTS / "golden" / "gain_with_findings.json")
    heavy = "{'jinja2', 'networkx', 'numpy', 'rich', 'tabulate', 'torch', 'layoutdoctor.privacy.redaction'}"
    code = f"""
import sys
from layoutdoctor.__main__ import main
def loaded(prefix):
    return sorted(name for name in sys.modules if name.startswith(prefix))
def run(*words):
    assert main(words) == 0
    commands = [name.rpartition(".")[2] for name in loaded("layoutdoctor.commands.")]
    assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)
    return [name for name in commands if name in {set(COMMANDS)!r}]
assert run("--help") == []
assert not {{"msgspec", "layoutdoctor.reports", "layoutdoctor.diagnosis.diagnosis"}} & set(sys.modules)
assert run("show", "--help") == ["show"]
assert run("render", {saved!r}) == ["show"]
assert not {{"layoutdoctor.rules", "layoutdoctor.run", "layoutdoctor.run.recorded"}} & set(sys.modules)
for other in ("html", "markdown", "ci", "reproducer", "comparison"):
    assert loaded(f"layoutdoctor.reports.{{other}}") == []
assert run("explain", "LD101") == ["explain", "show"]
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stderr
