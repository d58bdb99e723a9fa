"""Convolutions ranked by what they lose, from committed recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kept_recordings import diagnosed

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.examination.account import account, account_of_convolutions

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ranked") / "fire.json"
    assert main(["-q", "show", str(RECORDINGS / "fire_module.training"), "--output", str(path)]) == 0
    return str(path)


def test_each_convolution_has_its_kernels_and_conversions_and_the_worst_comes_first(saved: str) -> None:
    diagnosis = load(saved)
    slower, faster = diagnosis.trial("inductor"), diagnosis.trial("eager")
    ranked = account_of_convolutions(slower, faster)

    assert ranked is not None
    places = [(row.module, row.locations[0].line, row.backward) for row in ranked.rows]
    assert places[:3] == [("stem", 32, True), ("expand_3", 35, True), ("expand_3", 35, False)]
    assert len(set(places)) == len(ranked.rows) == 8  # four convolutions, forward and backward
    assert [row.seconds for row in ranked.rows] == sorted((row.seconds for row in ranked.rows), reverse=True)
    assert all(row.seconds == pytest.approx(row.slower_seconds - row.faster_seconds) for row in ranked.rows)
    stem = next(row for row in ranked.rows if row.module == "stem" and not row.backward)
    assert stem.detail == "3 conversions against 2"
    whole = account(slower, faster)
    assert whole is not None
    converted = sum(row.slower_seconds for row in whole.rows if row.kind == "conversion")
    own = sum(kernel.seconds for kernel in slower.kernels.kernels if kernel.name.startswith("convolution"))
    assert 0.95 * own <= sum(row.slower_seconds for row in ranked.rows) <= 1.001 * (own + converted)


def test_the_command_prints_a_table(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", saved]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "convolution"
    assert len(rows) >= 8

    assert main(["rank", saved, "--format", "json", "--of", "eager", "--against", "inductor"]) == 0
    ranked = json.loads(capsys.readouterr().out)
    assert (ranked["slower"], ranked["faster"], len(ranked["rows"])) == ("eager", "inductor", 8)
    assert main(["rank", saved, "--format", "markdown", "--against", "inductor-channels-last"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert (
        head == "| convolution | where | difference | in compiled (the default) | in compiled + channels_last | why |"
    )
    assert len(rows) == 8
    assert any(row.startswith("| stem, 4x64x111x111, backward | fire_module.py:32 | ") for row in rows)


def test_what_cannot_be_ranked_is_refused(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(RECORDINGS.parent / "traces" / "h100_vit_patch_embed.json.gz")
    assert main(["-q", "show", trace, "--output", str(tmp_path / "trace.json")]) == 0
    for words, said in (
        ([saved, "--of", "other"], "cannot find trial 'other' in the diagnosis: expected one of eager, "),
        ([saved, "--against", "inductor"], "of 'inductor' against 'inductor': expected two configurations that were"),
        ([str(tmp_path / "trace.json")], "of 'recorded' against 'recorded': expected two configurations that were"),
    ):
        capsys.readouterr()
        assert main(["rank", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_kernel_that_converts_the_input_of_a_convolution_has_no_row_beside_it() -> None:
    diagnosis = diagnosed("03_upsample_between_convs.inference")  # Inductor's kernel has the convolution as its origin
    ranked = account_of_convolutions(diagnosis.trial("inductor"), diagnosis.trial("inductor-layout-opt-off"))

    assert ranked is not None
    assert sorted(row.module for row in ranked.rows) == ["dec", "enc"]
    enc = next(row for row in ranked.rows if row.module == "enc")
    assert "cpp_fused_convolution_0" in enc.slower_kernels


def test_a_cast_is_no_convolution() -> None:
    diagnosis = diagnosed("seed_autocast.inference.nvidia-h200")  # three convolutions under autocast
    ranked = account_of_convolutions(diagnosis.trial("inductor"), diagnosis.trial("eager-channels-last"))

    assert ranked is not None
    assert sum(row.count for row in ranked.rows) == 3
