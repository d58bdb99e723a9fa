"""Findings of the rules' tests, held whole in ``tests/golden/findings``, each under the sentence of its case."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from layoutdoctor.diagnosis.answer import Finding

GOLDEN = Path(__file__).parents[2] / "golden" / "findings"


def text_of(finding: Finding) -> str:
    """Everything of a finding but its rule's name, which goes with the code."""
    facts = (
        f"[{finding.configuration}]",
        finding.module,
        None if finding.location is None else str(finding.location),
        None if finding.seconds is None else f"{finding.seconds:.6g} s",
        None if finding.bytes_moved is None else f"{finding.bytes_moved} bytes",
        f"evidence: {', '.join(finding.evidence)}",
    )
    head = " | ".join(fact for fact in facts if fact is not None)
    told = "" if finding.suggestion is None else f"  -> {finding.suggestion}\n"
    return f"{finding.code} {finding.severity} {head}\n  {finding.message}\n{told}"


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """
    Checks findings against the golden file of the test's module, where they stand under the sentence given first.

    A sentence that comes again is numbered. ``--update-golden`` writes the file anew, so run the whole module with it.
    """
    path = GOLDEN / f"{request.path.stem.removeprefix('test_')}.txt"
    is_update = bool(request.config.getoption("--update-golden"))
    blocks = path.read_text(encoding="utf-8").removeprefix("# ").split("\n# ") if path.exists() else []
    known = dict(block.split("\n", 1) for block in blocks)
    seen: dict[str, str] = {}
    counts: dict[str, int] = {}

    def check(sentence: str, *found: Iterable[Finding]) -> None:
        for findings in found:
            counts[sentence] = counts.get(sentence, 0) + 1
            case = sentence if counts[sentence] == 1 else f"{sentence} ({counts[sentence]})"
            seen[case] = "".join(map(text_of, findings)) or "nothing\n"
            assert is_update or seen[case].rstrip() == known.get(case, "").rstrip(), case

    yield check
    if is_update:
        path.write_text("\n".join(f"# {case}\n{text}" for case, text in seen.items()), encoding="utf-8")
