"""
Counts that must be exact: every oneDNN reorder of the casebook's models, against an independent count of the log.

The independent count runs the model in a process of its own with ``ONEDNN_VERBOSE=1`` and counts lines; it shares no
code with layoutdoctor. The figures themselves are those of a machine with AVX-512, where oneDNN blocks by 16.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.isolation.messages import Request
from layoutdoctor.privacy import scrub
from layoutdoctor.run.diagnose import diagnose_subject
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import Conversion, Diagnosis, Trial

pytestmark = pytest.mark.compile

CASEBOOK = Path(__file__).parent.parent / "casebook"
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


def count_reorders(case: str, mode: str, options: dict[str, bool] | None, input_format: str) -> int:
    """Reorder lines between the marks, in a process that prints oneDNN's log from its start."""
    command = [sys.executable, "-c", COUNTED, str(CASEBOOK / case), mode, repr(options), input_format]
    environment = {**os.environ, "ONEDNN_VERBOSE": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=600)
    inside = result.stdout.split("BEGIN\n")[1].split("END\n")[0]
    return sum(",exec,cpu,reorder," in line for line in inside.splitlines())


@pytest.fixture(scope="module")
def diagnosed() -> Callable[[str, str], Diagnosis]:
    """Diagnoses each case once for all tests of this file."""
    known: dict[tuple[str, str], Diagnosis] = {}

    def diagnose(case: str, mode: str) -> Diagnosis:
        if (case, mode) not in known:
            known[case, mode] = diagnose_subject(
                load_target(str(CASEBOOK / case)),
                Request(mode=mode, configurations=choose_configurations("default"), budget_seconds=0.2),
            )
        return known[case, mode]

    return diagnose


def reorders(diagnosis: Diagnosis, name: str) -> tuple[Conversion, ...]:
    trial = measured(diagnosis, name)
    assert trial.kernels is not None
    return tuple(c for c in trial.kernels.conversions if c.owner == "library")


def measured(diagnosis: Diagnosis, name: str) -> Trial:
    trial = diagnosis.measured_trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    return trial


OFF, ON = {"layout_optimization": False}, {"layout_optimization": True}


@pytest.mark.parametrize(
    ("case", "mode", "name", "options", "input_format", "count"),
    [
        ("01_conv_chain_layout_opt.py", "inference", "inductor-layout-opt-off", OFF, "contiguous", 11),
        ("01_conv_chain_layout_opt.py", "inference", "inductor-layout-opt-on", ON, "contiguous", 4),
        ("01_conv_chain_layout_opt.py", "inference", "eager", None, "contiguous", 11),
        ("03_upsample_between_convs.py", "inference", "inductor-layout-opt-off", OFF, "contiguous", 6),
        ("03_upsample_between_convs.py", "inference", "inductor-layout-opt-on", ON, "contiguous", 2),
        ("06_backward_without_conv_nodes.py", "training", "eager", None, "contiguous", 31),
        ("06_backward_without_conv_nodes.py", "training", "inductor-layout-opt-on", ON, "contiguous", 15),
        ("06_backward_without_conv_nodes.py", "training", "inductor-channels-last", ON, "channels_last", 11),
        ("07_conv3d_chain.py", "inference", "inductor", ON, "contiguous", 11),
        ("07_conv3d_chain.py", "inference", "inductor-channels-last", ON, "channels_last", 4),
    ],
)
def test_every_reorder_is_recorded(
    diagnosed: Callable[[str, str], Diagnosis],
    case: str,
    mode: str,
    name: str,
    options: dict[str, bool] | None,
    input_format: str,
    count: int,
) -> None:
    diagnosis = diagnosed(case, mode)
    found = reorders(diagnosis, name)

    assert len(found) == count_reorders(case, mode, options, input_format)
    if "AVX-512" in (diagnosis.environment.onednn_isa or ""):
        assert len(found) == count
    trial = measured(diagnosis, name)
    assert trial.kernels is not None
    assert trial.kernels.not_understood_count == 0
    assert trial.kernels.lacks == ()
    assert all(c.node is not None and c.location is not None and c.module is not None for c in found)


def test_the_conv_chain_has_seven_activation_and_four_weight_reorders_without_layout_optimization(
    diagnosed: Callable[[str, str], Diagnosis],
) -> None:
    found = reorders(diagnosed("01_conv_chain_layout_opt.py", "inference"), "inductor-layout-opt-off")

    assert [c.tensor for c in found].count("activation") == 7
    assert [c.tensor for c in found].count("weight") == 4


def test_the_conv_chain_has_three_round_trips_without_layout_optimization_and_none_with_it(
    diagnosed: Callable[[str, str], Diagnosis],
) -> None:
    diagnosis = diagnosed("01_conv_chain_layout_opt.py", "inference")

    assert len(measured(diagnosis, "inductor-layout-opt-off").redundant_pairs) == 3
    assert len(measured(diagnosis, "eager").redundant_pairs) == 3
    assert measured(diagnosis, "inductor").redundant_pairs == ()
    assert measured(diagnosis, "inductor-channels-last").redundant_pairs == ()


def test_the_round_trips_of_the_conv_chain_name_both_conversions_the_operations_and_the_place(
    diagnosed: Callable[[str, str], Diagnosis],
) -> None:
    pair = measured(diagnosed("01_conv_chain_layout_opt.py", "inference"), "eager").redundant_pairs[0]

    assert (pair.kind, pair.between) == ("through", ("aten.native_batch_norm.default", "aten.relu.default"))
    assert (pair.module, pair.tensor_shape) == ("body.1.0", (4, 64, 56, 56))
    assert pair.bytes_moved == 4 * (4 * 64 * 56 * 56 * 4)  # two conversions, each read and written once, 4 bytes each


@pytest.mark.smoke
def test_conv3d_is_applied_to_none_of_four_convolutions_and_on_and_off_give_the_same_code(
    diagnosed: Callable[[str, str], Diagnosis],
) -> None:
    diagnosis = diagnosed("07_conv3d_chain.py", "inference")
    decision = measured(diagnosis, "inductor").graphs[0].decision

    assert decision is not None
    assert (decision.applied, decision.convolution_count, decision.channels_last_convolution_count) == (True, 4, 0)
    off = diagnosis.trial("inductor-layout-opt-off")
    assert off is not None
    assert (off.status, off.same_as) == ("same_as", "inductor")
    assert "LD201" in [finding.code for finding in diagnosis.findings]


def test_the_backward_graph_lost_layout_optimization_because_it_has_no_forward_convolution(
    diagnosed: Callable[[str, str], Diagnosis],
) -> None:
    diagnosis = diagnosed("06_backward_without_conv_nodes.py", "training")
    forward, backward = (graph.decision for graph in measured(diagnosis, "inductor").graphs)

    assert forward is not None
    assert backward is not None
    assert (forward.applied, forward.rule) == (True, "cpu-onednn")
    assert (backward.applied, backward.rule) == (False, "only-backward-convolutions")


def test_a_diagnosis_survives_saving_and_loading(diagnosed: Callable[[str, str], Diagnosis], tmp_path: Path) -> None:
    diagnosis = diagnosed("01_conv_chain_layout_opt.py", "inference")

    diagnosis.save(tmp_path / "d.json")

    saved = layoutdoctor.load(tmp_path / "d.json")
    assert saved == scrub(diagnosis)
    assert [trial.measurement for trial in saved.trials] == [trial.measurement for trial in diagnosis.trials]
