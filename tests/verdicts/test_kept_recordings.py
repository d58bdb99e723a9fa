"""The recordings themselves: small, of nobody's machine, and examined today as they were when they were kept."""

from __future__ import annotations

import gzip
import re

from kept_recordings import diagnosed, kept
from recordings.record import HERE, OF_GPUS, SETS

from layoutdoctor.examination.examine import examine

FINDINGS = HERE / "findings.txt"
MOST_BYTES = 12_000_000
OF_SOMEBODY = re.compile(rb"(?<![\w.<>-])/(?:home|root|tmp|usr|var|opt|work|Users|mnt)/[ -~]*|host_?name[ -~]*")


def test_every_set_is_kept_and_there_are_no_others() -> None:
    files = [path for path in HERE.rglob("*.recording") if path.is_file()]

    assert {path.name for path in HERE.iterdir() if path.is_dir() and path.name != "__pycache__"} == {*SETS, *OF_GPUS}
    assert sum(path.stat().st_size for path in files) < MOST_BYTES
    for path in files:
        assert OF_SOMEBODY.findall(gzip.decompress(path.read_bytes())) == [], path.name


def test_a_recording_is_examined_the_same_twice() -> None:
    recordings = [recording for name in (*SETS, *OF_GPUS) for recording in kept(name)]

    assert len(recordings) > len(SETS)
    for recording in recordings:
        assert recording.trial.status in ("ok", "same_as"), (recording.head.subject.name, recording.trial.failure)
        facts = examine(recording)
        assert facts.lacks == ()
        assert facts == examine(recording), (recording.head.subject.name, recording.name)


def test_the_findings_are_those_of_before(*, update_golden: bool) -> None:
    """Of severity, code and configuration; those that rest on times too, since the times are recorded."""
    lines: list[str] = []
    for name in (*sorted(SETS), *OF_GPUS):
        found = sorted(f"  {f.severity} {f.code} {f.configuration or ''}".rstrip() for f in diagnosed(name).findings)
        lines += [name, *found]
    if update_golden:
        FINDINGS.write_text("\n".join(lines) + "\n", encoding="utf-8")

    assert FINDINGS.read_text(encoding="utf-8").splitlines() == lines
