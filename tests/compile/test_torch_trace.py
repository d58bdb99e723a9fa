"""A log of TORCH_TRACE against the capture of the same compile: the same conversions, and the same decision."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from layoutdoctor.diagnosis.graph import Graph
from layoutdoctor.examination.graphs.conversions import with_graph_conversions
from layoutdoctor.recording.files import TraceFile
from layoutdoctor.recording.torch_trace import read_torch_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

IS_SWEEP = "SWEEP" in os.environ
TESTS = Path(__file__).parent.parent
# Nothing to train, or a backward that needs the indices of a pooling that did not run.
UNTRAINED = ("20_interpolate_output_strides", "21_as_strided_channels_last", "30_unet_in_out_channels")
FEW = (("06_backward_without_conv_nodes", "training"), ("34_dilated_conv", "inference"))
CASES = [
    (path.stem, mode)
    for path in sorted((TESTS / "casebook").glob("[0-9]*.py"))
    for mode in ("inference", "training")
    if (path.stem, mode) in FEW or (IS_SWEEP and not (mode == "training" and path.stem in UNTRAINED))
]

pytestmark = pytest.mark.compile


def facts(graphs: Sequence[Graph]) -> list[Any]:
    return [
        (
            graph.direction,
            graph.not_understood,
            sorted(
                (
                    c.direction,
                    c.tensor,
                    c.location.line if c.location else 0,
                    str(c.target),
                    c.owner,
                    str(c.role),
                    c.fused,
                )
                for c in graph.conversions
            ),
            None
            if graph.decision is None
            else (graph.decision.applied, graph.decision.rule, graph.decision.convolutions),
        )
        for graph in with_graph_conversions(graphs, 0)
    ]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_log_says_what_the_capture_of_the_same_compile_saw(name: str, mode: str, tmp_path: Path) -> None:
    command = [sys.executable, str(TESTS / "traced_capture.py"), str(TESTS / "casebook" / f"{name}.py"), mode]
    environment = {**os.environ, "TORCH_TRACE": str(tmp_path), "PYTHONPATH": str(TESTS.parent)}
    subprocess.run([*command, str(tmp_path / "live.json")], check=True, env=environment)
    live = msgspec.json.decode((tmp_path / "live.json").read_bytes(), type=tuple[Graph, ...])
    (log,) = tmp_path.glob("*.log")

    found = read_torch_trace(TraceFile(log))

    assert facts(found.graphs) == facts(live)
