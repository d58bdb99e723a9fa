"""What a diagnosis found, its recordings give again: field by field, in another process, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import layoutdoctor
from layoutdoctor.__main__ import main
from layoutdoctor.privacy import scrub
from layoutdoctor.recording.saved import load_recording

pytestmark = pytest.mark.compile

CASEBOOK = Path(__file__).parent.parent / "casebook"
MOST_BYTES = 40_000
EXAMINE = """
import sys
from layoutdoctor.__main__ import main
status = main(["examine", sys.argv[1], "--output", sys.argv[2]])
assert not {"torch", "triton"} & set(sys.modules)
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("case", "options"),
    [
        ("04_mps_training_convnet", "--configurations inductor --mode training"),
        ("32_user_contiguous_calls", "--configurations eager,eager-channels-last"),
        ("01_conv_chain_layout_opt", "--lower-for cuda:90 --configurations eager,inductor,inductor-channels-last"),
    ],
)
def test_recordings_give_the_diagnosis_again(case: str, options: str, tmp_path: Path) -> None:
    first, again, kept = tmp_path / "first.json", tmp_path / "again.json", tmp_path / "recordings"
    words = [str(CASEBOOK / f"{case}.py"), *options.split(), "--budget", "0.1", "-q"]

    assert main([*words, "--output", str(first), "--save-recordings", str(kept)]) == 0
    subprocess.run([sys.executable, "-c", EXAMINE, str(kept), str(again)], check=True, capture_output=True)

    diagnosis, examined = layoutdoctor.load(first), layoutdoctor.load(again)
    assert examined == scrub(diagnosis)
    assert diagnosis.trials[-1].status in ("ok", "same_as")
    assert all(trial.graphs for trial in diagnosis.trials if trial.status == "ok")
    files = sorted(kept.iterdir())
    assert len(files) == len(diagnosis.trials)
    assert max(file.stat().st_size for file in files) < MOST_BYTES
    for file in files:
        recording = load_recording(file)
        assert not any(graph.conversions or graph.breakers for graph in recording.trial.graphs)
        assert bool(recording.iterations) == (recording.trial.status == "ok" and "--lower-for" not in options)
