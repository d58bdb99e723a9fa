"""What is printed: no name, message or log of somebody else's steers a terminal or a CI service."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.commands.streams import without_workflow_commands
from layoutdoctor.recording.saved import pack
from layoutdoctor.workers.messages import Ran, channel_pair

ENDS = ("json", "md", "html", "sarif", "txt")
TESTS = Path(__file__).parents[1]
# Colours, the window's title, a bell, writing from right to left, lines, commands of GitHub, C1, no UTF-8.
EVIL = "\x1b[31m\x1b]0;title\x07\u202e\u2066\n::error::boom\r\x9b1m\udce9"


def assert_harmless(text: str) -> None:
    for line in text.splitlines():
        assert line.isprintable(), repr(line)
        assert not line.lstrip().startswith("::"), repr(line)
    assert "\r" not in text


@pytest.mark.parametrize(
    "words",
    [
        ["render", EVIL],
        ["trace", f"{EVIL}.json"],
        ["trace", "x.json", "--output", EVIL],
        ["trace", "x.json", "--accepted", EVIL],
        ["trace", "x.json", "--fail-on", EVIL],
        ["compare", EVIL, EVIL],
        ["explain", EVIL],
        [f"--{EVIL}"],
        [EVIL],
        [f"{EVIL}.py"],
        ["m.py", "--configurations", EVIL],
        ["m.py", "--input", EVIL],
        ["m.py", "--budget", EVIL],
        ["m.py", "--lower-for", EVIL],
        ["m.py", "--save-traces", f"/proc/{EVIL}"],
        ["m.py", "--resume", f"/proc/{EVIL}"],
        ["m.py", "--output", f"/no/{EVIL}/x.json"],
    ],
)
def test_an_error_shows_names_in_one_harmless_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) in (2, 3)

    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert_harmless(printed.err)


MODEL = """
import os, torch
from torch import nn

EVIL = {evil!r}
os.system("echo SHOUTED")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        setattr(self, "layer\\x1b[31m", nn.Conv2d(3, 4, 3))

    def forward(self, x):
        if x.is_contiguous(memory_format=torch.channels_last):
            print("HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789", os.path.expanduser("~/private"), flush=True)
            os.write(2, b"\\xff ::error::x\\n::error::y\\x1b]0;t\\x07\\n")
            os._exit(9)
        return getattr(self, "layer\\x1b[31m")(x)

Model.__qualname__ = Model.__name__ = EVIL[:-1]
get_inputs = lambda: [torch.randn(1, 3, 8, 8)]
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of a model with hostile names, whose second configuration kills its process after printing secrets."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "model.py").write_text(MODEL.format(evil=EVIL))
    outputs = [word for end in ENDS for word in ("--output", f"report.{end}")]
    words = ["model.py", "--configurations", "eager,eager-channels-last", "--budget", "1", *outputs]
    ended = subprocess.run(
        [sys.executable, "-m", "layoutdoctor", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "GITHUB_ACTIONS": "true"},
        timeout=200,
    )
    return folder, ended


def test_a_model_that_prints_secrets_and_control_characters_and_dies_leaves_neither(crashed: tuple[Path, Any]) -> None:
    folder, ended = crashed
    diagnosis = json.loads((folder / "report.json").read_text())

    assert diagnosis["trials"][1]["status"] == "crashed", ended.stderr
    assert "HF_TOKEN=" in diagnosis["trials"][1]["failure"]["log"]  # it was kept, without the secret
    ours = [line for line in ended.stderr.splitlines() if line.startswith("layoutdoctor: ")]
    assert len(ours) > 4
    assert "SHOUTED" in ended.stderr
    assert "SHOUTED" not in ended.stdout  # which is the report's
    assert_harmless("\n".join((*ours, ended.stdout)))
    for path in folder.glob("report.*"):
        text = path.read_text()
        assert "hf_abcdefghij" not in text, path.name
        assert str(Path.home() / "private") not in text, path.name
        if path.suffix != ".json":
            assert not [one for one in text if ord(one) < 32 and one not in "\n\t"], path.name
            assert not {"\u202e", "\u2066", "\x9b", "\x7f"} & set(text), path.name


@pytest.mark.parametrize("report_format", ["text", "markdown", "html", "json", "sarif", "reproducer"])
def test_no_line_of_a_report_is_a_command_of_the_ci_service(
    report_format: str, crashed: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = json.loads((crashed[0] / "report.json").read_text())
    saved["subject"]["name"] = "::add-mask::x ##[error]y"
    (crashed[0] / "other.json").write_text(json.dumps(saved))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")

    assert main(["render", str(crashed[0] / "other.json"), "--format", report_format]) == 0

    printed = capsys.readouterr().out
    assert not [line for line in printed.splitlines() if line.lstrip().startswith("::")]
    assert "##[" not in printed
    if report_format == "json":
        assert json.loads(printed)["subject"]["name"] == saved["subject"]["name"]


def test_without_the_service_a_report_is_as_it_is() -> None:
    assert without_workflow_commands("a ::b\n  c::d\n") == "a ::b\n  c::d\n"
    for written in ('{"a": "##[b]"}', '["##[b]"]'):
        changed = without_workflow_commands(written)
        assert "##[" not in changed
        assert json.loads(changed) == json.loads(written)
    assert without_workflow_commands("\n  ::error::x\n\n::y\n") == "\n  : :error::x\n\n: :y\n"


def test_what_is_no_utf_8_reaches_the_other_process_as_its_escape() -> None:
    assert msgspec.msgpack.decode(pack({"a": ["caf\udce9", 1, None]})) == {"a": ["caf\\udce9", 1, None]}
    assert pack({"a": "b"}) == msgspec.msgpack.encode({"a": "b"})
    ours, other = channel_pair()
    with contextlib.closing(ours), contextlib.closing(other):
        ours.send(Ran(notes=("caf\udce9",)))
        assert other.receive(5.0)[0] == Ran(notes=("caf\\udce9",))
