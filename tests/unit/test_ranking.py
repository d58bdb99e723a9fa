"""Convolutions ranked by what their layout costs, from a committed recording of a training step."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from kept_recordings import diagnosed

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.saved import load
from layoutdoctor.examination.costs import all_conversions_of
from layoutdoctor.examination.ranking import rank

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("ranked") / "fire.json"
    assert main(["-q", "examine", str(RECORDINGS / "fire_module.training"), "--output", str(path)]) == 0
    return str(path)


def test_each_convolution_has_its_kernels_and_conversions_and_the_worst_comes_first(saved: str) -> None:
    diagnosis = load(saved)
    first, second, rows = rank(diagnosis)

    assert (first, second) == ("inductor", "eager")
    places = [(row.module, str(row.location).rpartition(":")[2], row.backward) for row in rows]
    assert places[:3] == [("stem", "32", True), ("expand_3", "35", True), ("expand_3", "35", False)]
    assert len(set(places)) == len(rows) == 8  # four convolutions, forward and backward
    assert [row.loss for row in rows] == sorted((row.loss for row in rows), reverse=True)
    trial = diagnosis.find_trial("inductor")
    assert trial is not None
    assert trial.kernels is not None
    own = sum(kernel.seconds or 0.0 for kernel in trial.kernels.kernels if kernel.name.startswith("convolution"))
    whole = sum(row.first.seconds or 0.0 for row in rows)  # with the sums of the bias's gradient, 13 us
    assert own <= whole <= 1.001 * own
    stem = next(row for row in rows if row.module == "stem" and not row.backward)
    assert stem.shape == (4, 64, 111, 111)
    converted = [one for one in all_conversions_of(trial) if one.module == "stem" and one.node == "convolution"]
    assert stem.first.conversion_count >= len(converted) > 0


def test_the_command_prints_a_table_and_exports_all(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", saved]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "convolution"
    assert any(row.startswith("stem, fire_module.py:32      backward   64x3x3x3      4.85 ms") for row in rows)

    assert main(["rank", saved, "--against", "inductor", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.count("0 s, same kernels") == 8  # against itself

    assert main(["rank", saved, "--format", "csv", "--against", "inductor-channels-last"]) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [one["module"] for one in table].count("expand_3") == 2
    assert float(table[0]["inductor_seconds"]) > 0
    assert "jit:avx512_core" in table[0]["inductor-channels-last_implementations"]

    assert main(["rank", saved, "--format", "json", "--of", "eager", "--against", "inductor"]) == 0
    assert json.loads(capsys.readouterr().out)["first"] == "eager"
    assert main(["rank", saved, "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| convolution | direction | result |")


def test_what_cannot_be_ranked_is_refused(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(RECORDINGS.parent / "traces" / "h100_vit_patch_embed.json.gz")
    assert main(["-q", "trace", trace, "--output", str(tmp_path / "trace.json")]) == 0
    for words, said in (
        ([saved, "--of", "other"], "cannot find trial 'other' in the diagnosis: expected one of eager, "),
        ([str(tmp_path / "trace.json")], "of 'recorded': no graph of it with a convolution was recorded"),
    ):
        capsys.readouterr()
        assert main(["rank", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_cast_is_no_convolution() -> None:
    _, _, rows = rank(diagnosed("seed_autocast.inference.nvidia-h200"))  # three convolutions under autocast

    assert sum(row.count for row in rows) == 3
