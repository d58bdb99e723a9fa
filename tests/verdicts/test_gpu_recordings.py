"""
Diagnoses that ran on a GPU, against what plain torch counted and measured there.

A set's ``truth.json`` is of the same card. The training step has none: its counts are those of the H100, which has the
same cuDNN and the same architecture, and its times are compared with nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from kept_recordings import decision_of, diagnosed, findings_of, in_graphs, reorders, the_finding, trial_of
from recordings.record import HERE

from layoutdoctor.examination.account import account
from layoutdoctor.files.writing import RECORDING_SUFFIX
from layoutdoctor.reports.sections.account import account_sentence
from layoutdoctor.rules.advice import Times

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding

SEED = "seed_autocast.inference.nvidia-h200"
TRAINING = "chain.training.nvidia-h200"
CHAINS = ("chain.inference.nvidia-h100-80gb-hbm3", "chain.inference.nvidia-h200")
OF_THE_H100 = HERE.parents[1] / "benchmarks" / "results" / "gpu" / "2026-11-27-h100.truth.json"
RECORDINGS = sorted((path.parent.name, path.stem) for path in HERE.glob(f"*.nvidia-*/*{RECORDING_SUFFIX}"))
CONVERSION = re.compile(r"(nchwToNhwc|nhwcToNchw|nchwToNhwc3To4|nchwToFoldedNhwc)Kernel")  # as in benchmarks/gpu.py
CONVERTED = {"nchwToNhwcKernel": 6, "nhwcToNchwKernel": 3}
OFF = "inductor-channels-last-opt-off"
CASTS_TWO = "triton_poi_fused__to_copy_2"


@cache
def truth_of(name: str) -> dict[str, Any]:
    """Rows by configuration, as counted and measured by hand."""
    own = HERE / name / "truth.json"
    rows = json.loads((own if own.exists() else OF_THE_H100).read_text(encoding="utf-8"))
    found: dict[str, Any] = rows if own.exists() else rows[name.rpartition(".")[0]]
    return found


COUNTED = [(name, one) for name, one in RECORDINGS if one in truth_of(name)]


def place_of(finding: Finding) -> tuple[str | None, str | None]:
    """The module and the line that a finding names."""
    line = finding.location
    return finding.module, None if line is None else f"{line.file}:{line.line}"


def test_what_was_not_counted_by_hand_is_one_configuration() -> None:
    assert len(COUNTED) >= 15
    assert set(RECORDINGS) - set(COUNTED) == {(CHAINS[0], "inductor-channels-last-freezing")}


@pytest.mark.parametrize(("name", "configuration"), COUNTED)
def test_conversion_kernels_and_all_kernels_are_as_many_as_counted_by_hand(name: str, configuration: str) -> None:
    row, summary = truth_of(name)[configuration], trial_of(diagnosed(name), configuration).kernels
    assert summary is not None
    found: Counter[str] = Counter()
    for conversion in summary.conversions:
        found.update([match[0] for match in CONVERSION.finditer(conversion.kernel or "")] * conversion.count)

    assert found == row["conversions"]
    assert len(summary.kernels) == summary.count == row["kernels"]
    assert (summary.undecided_count, summary.not_understood_count, summary.lacks) == (0, 0, ())


@pytest.mark.parametrize(("name", "configuration"), COUNTED)
def test_decisions_are_those_that_inductor_made(name: str, configuration: str) -> None:
    """Inductor decides twice about a graph with frozen weights: before it folds them, and when it lowers the rest."""
    times = 2 if "freezing" in configuration else 1
    real = [(one["applied"], one["convolutions"]) for one in truth_of(name)[configuration]["decisions"]]
    found = [
        (graph.decision.applied, graph.decision.convolution_count if graph.direction != "backward" else 0)
        for graph in trial_of(diagnosed(name), configuration).graphs
        if graph.decision is not None  # by hand, only the operator of a forward convolution was counted
    ]

    assert [one for one in found for _ in range(times)] == real


@pytest.mark.parametrize("configuration", truth_of(SEED))
def test_times_and_memory_of_the_conv3d_stack_are_those_measured_by_hand(configuration: str) -> None:
    row, trial = truth_of(SEED)[configuration], trial_of(diagnosed(SEED), configuration)
    assert trial.measurement is not None
    assert trial.kernels is not None

    assert trial.measurement.median_seconds == pytest.approx(row["loop_seconds"], rel=0.05)
    assert trial.measurement.peak_memory_bytes == row["peak_bytes"]
    assert trial.kernels.seconds == pytest.approx(row["kernel_seconds"], rel=0.05)
    assert trial.kernels.conversion_seconds == pytest.approx(row["conversion_seconds"], rel=0.1)


def test_the_conv3d_stack_gets_one_of_the_two_fastest_ways_and_the_ratio_that_it_has() -> None:
    diagnosis, truth = diagnosed(SEED), truth_of(SEED)
    advice, comparison = diagnosis.recommendation, diagnosis.comparison
    assert advice is not None
    assert comparison is not None
    assert advice.speedup is not None
    ratios = {ratio.name: ratio for ratio in comparison.ratios}

    assert sorted(truth, key=lambda name: truth[name]["loop_seconds"])[:2] == ["eager-channels-last", OFF]
    assert advice.configuration in ("eager-channels-last", OFF)
    assert advice.speedup.median == pytest.approx(truth[advice.configuration]["ratio"], rel=0.05)
    assert {name: ratio.verdict for name, ratio in ratios.items()} == {
        "eager": "equal",
        "eager-channels-last": "faster",
        "inductor-channels-last": "inconclusive",  # 0.98x (0.96 to 0.99), by hand 0.97x
        "inductor-layout-opt-off": "inconclusive",
        OFF: "faster",
    }
    for name, ratio in ratios.items():
        assert ratio.median == pytest.approx(truth[name]["ratio"], rel=0.02), name


def test_every_convolution_of_the_stack_has_its_input_weight_and_output_converted() -> None:
    around = [("to_channels_last", "activation"), ("to_channels_last", "weight"), ("to_contiguous", "activation")]
    expected = [(f"network.{n}", *one) for n in range(3) for one in around]
    for configuration, row in truth_of(SEED).items():
        found = [(c.module, c.direction, c.tensor) for c in reorders(diagnosed(SEED), configuration)]
        assert found == (expected if row["conversions"] else []), configuration


def test_channels_last_alone_adds_the_compilers_conversions_to_the_librarys() -> None:
    by_hand = {kernel: seconds for kernel, _, seconds in truth_of(SEED)["inductor-channels-last"]["longest"]}
    found = in_graphs(trial_of(diagnosed(SEED), "inductor-channels-last"))
    (back,) = [c for c in found if c.direction == "to_channels_last"]

    assert [(c.direction, c.tensor, c.module) for c in found if c is not back] == [
        ("to_contiguous", "activation", "network.0"),
        *(("to_contiguous", "weight", f"network.{number}") for number in range(3)),
    ]
    weights = [c for c in found if c.tensor == "weight"]
    assert {(c.dtype, c.target_dtype) for c in weights} == {("float32", "bfloat16")}  # the cast travels with it
    assert all(c.target and c.bytes_moved == c.target.element_count * (4 + 2) for c in weights)
    assert (back.role, back.tensor, back.kernel) == ("exit", "activation", "triton_poi_fused__to_copy_convolution_3")
    assert back.seconds == pytest.approx(by_hand[str(back.kernel)], rel=0.01)
    assert not in_graphs(trial_of(diagnosed(SEED), "inductor"))


def test_the_findings_about_the_stack_are_true_and_there_are_no_others() -> None:
    diagnosis, line = diagnosed(SEED), "benchmarks/gpu_cases.py:43"
    rate = "7.78 ms of 36.7 ms kernel time (21 %), all of it while nothing else ran"

    assert {finding.code for finding in diagnosis.findings} == {"LD101", "LD103", "LD106", "LD111", "LD201", "LD205"}
    assert {place_of(finding)[1] for finding in diagnosis.findings} == {line}
    assert place_of(the_finding(diagnosis, "LD101", "inductor")) == ("network.1", line)
    assert the_finding(diagnosis, "LD101", "inductor").message == (
        "2 round trips: channels_last_3d -> contiguous -> channels_last_3d back to back, on 4x64x64x256x256, "
        f"{rate}, by the library"
    )
    round_trips = {finding.configuration for finding in findings_of(diagnosis, "LD101")}
    assert round_trips == {name for name, row in truth_of(SEED).items() if row["conversions"]}
    (library, by_hand) = the_finding(diagnosis, "LD111"), truth_of(SEED)["inductor"]["conversion_seconds"]
    assert library.message.startswith(
        "9 layout conversions by cuDNN (4 in LD101 and 3 in LD103 too): to channels_last (6) and to "
        "contiguous (3), of activations (6) and weights (3); 10.5 ms of 36.7 ms kernel time (29 %"
    )
    assert library.seconds == pytest.approx(by_hand, rel=0.1)
    assert place_of(the_finding(diagnosis, "LD201")) == ("network.0", line)
    assert the_finding(diagnosis, "LD103").message == (
        "3 weight conversions by the library on every call: 6.21 us of 36.7 ms kernel time (below 0.1 %)"
    )
    assert "6 activations and 3 weights converted on every call" in the_finding(diagnosis, "LD205").message


def test_what_layout_optimization_costs_the_stack_in_channels_last_is_said() -> None:
    """The sentence about the caller's formats is true of these alone: in channels_last_3d the flag decides."""
    diagnosis, truth = diagnosed(SEED), truth_of(SEED)
    finding = the_finding(diagnosis, "LD201")
    ratio = Times(diagnosis).over(OFF, "inductor-channels-last")

    assert (
        "compiled + channels_last: 4 tensors converted back from channels_last_3d (196 us), 1 output copied to it "
        "(1.35 ms); left without layout optimization: none of 5"
    ) in finding.message
    by_hand = truth["inductor-channels-last"]["loop_seconds"] / truth[OFF]["loop_seconds"]
    assert ratio is not None
    assert ratio.median == pytest.approx(by_hand, rel=0.05)
    assert 'compile with options={"layout_optimization": False}: ' in str(finding.suggestion)


def test_the_cost_of_cast_weights_has_the_casts_in_it() -> None:
    """By hand: the kernels that cast the three weights; and cuDNN's conversions of them, which LD103 counts."""
    longest = truth_of(SEED)["inductor"]["longest"]
    casts = sum(seconds for kernel, _, seconds in longest if kernel in ("triton_poi_fused__to_copy_1", CASTS_TWO))
    finding, relaid = (the_finding(diagnosed(SEED), code) for code in ("LD106", "LD103"))

    assert "with a change of layout: 10.7 us of" in finding.message
    assert finding.seconds == pytest.approx(casts + (relaid.seconds or 0.0), rel=0.03)


def test_the_place_of_an_inputs_format_is_the_convolution_that_reads_it() -> None:
    assert the_finding(diagnosed(SEED), "LD205").module == "network.0"
    assert {f.module for name in CHAINS for f in findings_of(diagnosed(name), "LD205")} == {"0"}


def test_the_training_step_converts_around_its_second_convolution_alone() -> None:
    """The first one has 3 channels, and cuDNN runs it as it is: forward, and for its weight's gradient."""
    diagnosis = diagnosed(TRAINING)
    for configuration in ("inductor", "eager"):
        found = reorders(diagnosis, configuration)
        kinds: Counter[str] = Counter(conversion.tensor for conversion in found)
        # Input, weight, output; for the input's gradient three more, and for the weight's: input, gradient, result.
        real = {"activation": 3, "weight": 2, "gradient": 4}

        assert Counter(match[0] for c in found for match in CONVERSION.finditer(str(c.kernel))) == CONVERTED
        assert {conversion.module for conversion in found} == {"3"}
        assert kinds == real
    assert {finding.code for finding in diagnosis.findings} == {"LD111", "LD202"}
    assert "vetoed in the forward by small-channels" in the_finding(diagnosis, "LD202").message
    assert "of gradients (4), activations (3) and weights (2); " in the_finding(diagnosis, "LD111").message


def test_the_backward_of_each_layer_runs_in_its_own_module() -> None:
    summary = trial_of(diagnosed(TRAINING), "eager-channels-last").kernels
    assert summary is not None
    graph = trial_of(diagnosed(TRAINING), "eager-channels-last").graphs[0]
    modules = {node.name: node.module for node in graph.nodes}

    assert [(str(k.op), modules.get(str(k.node))) for k in summary.kernels if k.backward] == [
        ("aten::threshold_backward", "5"),
        ("aten::cudnn_batch_norm_backward", "4"),
        *[("aten::convolution_backward", "3")] * 4,
        ("aten::threshold_backward", "2"),
        ("aten::cudnn_batch_norm_backward", "1"),
        ("aten::convolution_backward", "0"),
    ]


@pytest.mark.parametrize(
    ("name", "faster", "parts"),
    [
        (
            TRAINING,
            "eager-channels-last",
            "slower by 698 us: 620 us from gaps between kernels, 94.6 us from layout conversions (module 3)",
        ),
        (
            CHAINS[0],
            "inductor-channels-last-freezing",
            "slower by 62.2 us: 53.7 us from gaps between kernels, 5.76 us from layout conversions, "
            "3.55 us from a slower kernel for relu and batch_norm (module 5)",
        ),
        (
            SEED,
            "inductor-channels-last-opt-off",
            "slower by 10.1 ms: 10.5 ms from layout conversions (gpu_cases.py:43)",
        ),
    ],
)
def test_the_parts_of_a_difference_are_true(name: str, faster: str, parts: str) -> None:
    diagnosis = diagnosed(name)

    found = account(diagnosis.trial("inductor"), diagnosis.trial(faster))

    assert found is not None
    assert account_sentence(found) == f"the default is {parts}"


def test_convolutions_that_the_compiler_gives_channels_last_are_not_in_another_layout() -> None:
    (found,) = diagnosed(CHAINS[0]).accounts

    assert [row.kind for row in found.rows if row.operations == ("conv2d",)] == ["operation"]


@pytest.mark.parametrize("name", CHAINS)
def test_the_compilers_conversions_are_kernels_that_were_timed_by_hand(name: str) -> None:
    by_hand = {kernel: seconds for kernel, _, seconds in truth_of(name)["inductor"]["longest"]}
    found = in_graphs(trial_of(diagnosed(name), "inductor"))
    own = [conversion for conversion in found if not conversion.fused]

    assert [(c.direction, c.tensor) for c in own] == [
        ("to_channels_last", "activation"),
        ("to_channels_last", "weight"),
        ("to_channels_last", "weight"),
    ]
    assert [(c.role, c.direction, c.module) for c in found if c.fused] == [("exit", "to_contiguous", "5")]
    for conversion in own:
        assert conversion.seconds == pytest.approx(by_hand[str(conversion.kernel)], rel=0.1)
    assert [decision_of(g).channels_last_convolution_count for g in trial_of(diagnosed(name), "inductor").graphs] == [2]
    assert {finding.code for finding in diagnosed(name).findings} <= {"LD103", "LD105", "LD205"}
