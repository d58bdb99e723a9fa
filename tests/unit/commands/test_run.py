"""``run``: a script's module diagnosed, the words of the script kept out of the report, and what is wrong said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from layoutdoctor.__main__ import main
from layoutdoctor.commands.run import _command
from layoutdoctor.diagnosis.policy import Policy
from layoutdoctor.diagnosis.saved import load

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """\
import sys
import torch
from helpers import Decoder

pipe = torch.nn.ModuleDict({"decoder": Decoder()})
assert sys.argv[1] == "--token", sys.argv
with torch.no_grad():
    print(pipe["decoder"](torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last)).shape)
"""
HELPERS = """\
from torch import nn

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 3, 3)

    def forward(self, z):
        return self.conv(z)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "helpers.py").write_text(HELPERS, encoding="utf-8")
    path = tmp_path / "generate.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.mark.thorough
def test_a_module_of_a_script_is_diagnosed_with_what_it_gets(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = script.with_name("d.json")
    words = ["--configurations", "eager", "--budget", "1", "--output", str(saved), "--", "--token", "s3cret"]
    assert main(["run", str(script), "--module", "pipe.decoder", *words]) == 0
    out, err = capfd.readouterr()
    assert "generate.py (pipe.decoder)" in out
    assert "running generate.py until it calls pipe.decoder" in err
    assert "s3cret" not in saved.read_text(encoding="utf-8") + out + err
    diagnosis = load(saved)
    assert diagnosis.subject.inputs[0].stride == (256, 1, 32, 4)
    assert diagnosis.subject.model == "Decoder"
    assert "inputs as recorded: call 1" in diagnosis.subject.notes
    assert diagnosis.environment.command is not None
    assert diagnosis.environment.command.endswith("--output d.json -- ...")


@pytest.mark.slow
def test_several_calls_make_a_policy_weighted_by_how_often_each_kind_came(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        "import torch\nfrom helpers import Decoder\ndecoder = Decoder()\n"
        "for size in (8, 6, 8, 8):\n    decoder(torch.randn(1, 4, size, 8))\nraise ValueError('late')\n",
        encoding="utf-8",
    )
    saved = script.with_name("policy.json")
    words = ["--calls", "9", "--configurations", "eager,eager-channels-last", "--budget", "1", "--output", str(saved)]
    assert main(["run", str(script), "--module", "decoder", *words]) == 0
    err = capfd.readouterr().err
    assert "running generate.py until it called decoder 9 times, or to its end" in err
    assert "cannot run generate.py: ValueError: late (generate.py:6); fix this error first" in err
    assert "the calls before that are diagnosed" in err
    policy = msgspec.json.decode(saved.read_bytes(), type=Policy)
    assert [(case.shapes, case.weight) for case in policy.cases] == [(((1, 4, 8, 8),), 3.0), (((1, 4, 6, 8),), 1.0)]
    assert policy.baseline == "eager"


def test_without_a_module_they_are_listed(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(script), "--", "--token", "x"]) == 2
    out, err = capfd.readouterr()
    head, row = out.splitlines()
    assert head.split() == ["module", "convolutions", "calls", "share", "of", "the", "time"]
    assert row.split()[:3] == ["pipe.decoder", "1", "1"]
    assert "name one of these, such as --module pipe.decoder" in err


def test_what_is_wrong_with_the_command_line_is_said_before_the_script_runs(
    script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for words, sentence in [
        (["nowhere.py"], "cannot run 'nowhere.py': there is no such file"),
        ([str(script), "--output", str(script), "--force"], "which this command reads"),
        ([str(script), "--configurations", "eagr"], "configuration 'eagr'"),
        ([str(script), "--module", "m", "--lower-for", "cuda:91"], "cannot lower for 'cuda:91'"),
        ([str(script), "--calls", "0"], "argument --calls: cannot use '0': expected a whole number from 1 on"),
        ([str(script), "--calls", "4"], "cannot use --calls without --module"),
        ([str(script), "--module", "m", "--calls", "4", "--save-traces", "t"], "with several kinds of call"),
    ]:
        assert main(["run", *words]) == 2
        err = capfd.readouterr().err
        assert sentence in err
        assert "running" not in err


def test_the_words_of_the_script_are_not_recorded() -> None:
    words = ["run", "folder/generate.py", "--module", "pipe", "--", "--token", "s3cret"]
    assert _command(words) == "layoutdoctor run generate.py --module pipe -- ..."
    assert _command(words[:4]) == "layoutdoctor run generate.py --module pipe"
