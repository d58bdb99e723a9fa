"""The recordings in tests/recordings, examined once for all tests, and what tests ask of a diagnosis."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec
from recordings.record import HERE

from layoutdoctor.files.writing import RECORDING_SUFFIX
from layoutdoctor.recording.saved import load_recording
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.graph import Decision, Graph
    from layoutdoctor.diagnosis.trial import Trial
    from layoutdoctor.recording.recording import Recording

BY_TIME = frozenset({"LD103", "LD205", "LD303"})
"""Whether these are told, and how severe, depends on what was measured in a run."""

REORDERS = (
    ("01_conv_chain_layout_opt.inference", "inductor-layout-opt-off", 11),
    ("01_conv_chain_layout_opt.inference", "inductor-layout-opt-on", 4),
    ("01_conv_chain_layout_opt.inference", "eager", 11),
    ("03_upsample_between_convs.inference", "inductor-layout-opt-off", 6),
    ("03_upsample_between_convs.inference", "inductor-layout-opt-on", 2),
    ("06_backward_without_conv_nodes.training", "eager", 31),
    ("06_backward_without_conv_nodes.training", "inductor-layout-opt-on", 15),
    ("06_backward_without_conv_nodes.training", "inductor-channels-last", 11),
    ("07_conv3d_chain.inference", "inductor", 11),
    ("07_conv3d_chain.inference", "inductor-channels-last", 4),
)
"""Set, configuration and how many reorders oneDNN executes in one iteration of it, on a machine with AVX-512."""


@cache
def kept(name: str) -> tuple[Recording, ...]:
    """The recordings of a set, by the name of its folder."""
    return tuple(load_recording(path) for path in sorted((HERE / name).glob(f"*{RECORDING_SUFFIX}")))


@cache
def diagnosed(name: str, only: str | None = None) -> Diagnosis:
    """
    What today's analysis and rules say of a set.

    Args:
        only: Configurations, separated by spaces, as if no others had been asked for; None for all.
    """
    recordings = kept(name)
    if only is not None:
        names = tuple(only.split())
        head = msgspec.structs.replace(recordings[0].head, configurations=names)
        recordings = tuple(msgspec.structs.replace(r, head=head) for r in recordings if r.name in names)
        assert len(recordings) == len(names)
    return diagnose_recordings(recordings)


def trial_of(diagnosis: Diagnosis, name: str) -> Trial:
    trial = diagnosis.measured_trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    assert all(graph.hook_failure is None for graph in trial.graphs)
    assert any(graph.nodes for graph in trial.graphs)  # there was something to look at
    return trial


def graph_of(trial: Trial, direction: str = "inference") -> Graph:
    (graph,) = [graph for graph in trial.graphs if graph.direction == direction]
    return graph


def decision_of(graph: Graph) -> Decision:
    assert graph.decision is not None
    return graph.decision


def findings_of(diagnosis: Diagnosis, code: str, configuration: str | None = None) -> list[Finding]:
    return [f for f in diagnosis.findings if f.code == code and configuration in (None, f.configuration)]


def the_finding(diagnosis: Diagnosis, code: str, configuration: str | None = None) -> Finding:
    found = findings_of(diagnosis, code, configuration)
    assert len(found) == 1, [(f.code, f.configuration, f.message) for f in diagnosis.findings]
    return found[0]


def above_note(diagnosis: Diagnosis) -> list[Finding]:
    return [f for f in diagnosis.findings if f.severity != "note" and f.code not in BY_TIME]


def in_graphs(trial: Trial, tensor: str | None = None) -> list[Conversion]:
    return [c for graph in trial.graphs for c in graph.conversions if tensor in (None, c.tensor)]


def reorders(diagnosis: Diagnosis, configuration: str) -> list[Conversion]:
    trial = trial_of(diagnosis, configuration)
    assert trial.kernels is not None
    return [c for c in trial.kernels.conversions if c.owner == "library"]
