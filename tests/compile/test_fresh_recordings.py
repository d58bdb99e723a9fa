"""
What is kept in tests/recordings is recorded again, and says the same; oneDNN's conversions are counted by plain torch.

A usual run records a few sets in two configurations; a sweep records all sets as they are kept.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kept_recordings import BY_TIME, REORDERS, diagnosed, in_graphs, reorders
from recordings.record import ROOT, SETS, Set, record

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.run.recorded import diagnose_recordings

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.trial import Trial

pytestmark = pytest.mark.compile

IS_SWEEP = "SWEEP" in os.environ
FEW = {
    "06_backward_without_conv_nodes.training": "eager inductor-channels-last",
    "07_conv3d_chain.inference": "inductor inductor-channels-last",
    "38_half_precision_backbone.training.cuda-90": "inductor",
}

COUNTED = """
import ast, runpy, sys, torch
names = runpy.run_path(sys.argv[1])
training, channels_last = sys.argv[2] == "training", sys.argv[4] == "channels_last"
options = ast.literal_eval(sys.argv[3])
model = names["Model"](*names["get_init_inputs"]()).train(training)
inputs = names["get_inputs"]()
formats = {4: torch.channels_last, 5: torch.channels_last_3d}
if channels_last:
    for p in model.parameters():
        if p.dim() in formats:
            p.data = p.data.to(memory_format=formats[p.dim()])
    inputs = [x.to(memory_format=formats[x.dim()]) for x in inputs]
run = model if options is None else torch.compile(model, options=options)
def step():
    if training:
        run(*inputs).sum().backward()
    else:
        with torch.no_grad():
            run(*inputs)
step()
step()
print("BEGIN", flush=True)
step()
print("END", flush=True)
"""


def facts_of(trial: Trial, *, with_library: bool) -> dict[str, Any]:
    """What does not rest on times; what oneDNN converts rests on the instruction set."""
    library = trial.kernels.conversions if trial.kernels is not None and with_library else ()
    conversions = [
        (c.owner, c.direction, c.tensor, c.op, c.module, c.location and (Path(c.location.file).name, c.location.line))
        for c in (*in_graphs(trial), *library)
    ]
    decisions = [
        (g.direction, g.decision and (g.decision.applied, g.decision.rule, g.decision.channels_last_convolution_count))
        for g in trial.graphs
    ]
    pairs = [p for p in trial.redundant_pairs if with_library or p.evidence == "graph"]
    return {
        "status": (trial.status, trial.same_as),
        "decisions": decisions,
        "conversions": sorted(map(repr, conversions)),
        "pairs": sorted(repr((p.evidence, p.kind, p.between, p.module, p.tensor_shape)) for p in pairs),
        "breakers": [(b.op, b.module, b.reason) for g in trial.graphs for b in g.breakers],
    }


def count_reorders(wanted: Set, name: str) -> int:
    """Reorder lines between the marks, in a process that prints oneDNN's log from its start and has no layoutdoctor."""
    (configuration,) = choose_configurations(name)
    is_eager = configuration.backend == "eager"
    options = None if is_eager else {"layout_optimization": configuration.layout_optimization != "off"}
    words = [str(ROOT / wanted.model), wanted.mode, repr(options), str(configuration.input_format)]
    environment = {**os.environ, "ONEDNN_VERBOSE": "1"}
    ended = subprocess.run([sys.executable, "-c", COUNTED, *words], env=environment, stdout=subprocess.PIPE, check=True)
    inside = ended.stdout.decode().split("BEGIN\n")[1].split("END\n")[0]
    return sum(",exec,cpu,reorder," in line for line in inside.splitlines())


def codes_of(diagnosis: Diagnosis) -> set[tuple[str, str | None]]:
    """The findings, without those that are told by times alone: LD307 is an operation that took longer."""
    return {(f.code, f.configuration) for f in diagnosis.findings if f.code not in {*BY_TIME, "LD307"}}


@pytest.mark.parametrize("name", SETS if IS_SWEEP else FEW)
def test_a_fresh_recording_examines_the_same(name: str) -> None:
    wanted, only = SETS[name], None if IS_SWEEP else FEW[name]
    if only is not None:
        wanted = replace(wanted, configurations=only.replace(" ", ","))
    before, fresh = diagnosed(name, only), diagnose_recordings(record(wanted))
    is_same_library = fresh.environment.onednn_isa == before.environment.onednn_isa

    assert [trial.name for trial in fresh.trials] == [trial.name for trial in before.trials]
    for trial, old in zip(fresh.trials, before.trials, strict=True):
        facts, expected = (facts_of(item, with_library=is_same_library) for item in (trial, old))
        assert facts == expected, trial.name
    if is_same_library:
        assert codes_of(fresh) == codes_of(before)
    for recorded, configuration, _ in REORDERS:
        if recorded == name and configuration in [trial.name for trial in fresh.trials]:
            assert len(reorders(fresh, configuration)) == count_reorders(wanted, configuration), configuration
