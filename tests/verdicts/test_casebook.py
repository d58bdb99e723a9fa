"""
The verdicts of the casebook: what a diagnosis of each case says, against what the casebook wants said.

One test for each case and mode, on its recordings. Expected are places and the numbers that are
exact. Which rules speak, of which configurations and how severely, is held whole in ``tests/recordings/findings.txt``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from kept_recordings import (
    decision_of,
    diagnosed,
    findings_of,
    graph_of,
    in_graphs,
    the_finding,
    trial_of,
)
from recordings.record import ROOT, SETS

from layoutdoctor.examination.counts import irrelevance

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.answer import Finding
    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.graph import Graph, LayoutBreaker
    from layoutdoctor.diagnosis.trial import Trial


def line_of(thing: Finding | Conversion | LayoutBreaker) -> int:
    assert thing.location is not None
    return thing.location.line


def in_library(trial: Trial, graph: Graph, *tensors: str) -> list[Conversion]:
    assert trial.kernels is not None
    return [c for c in trial.kernels.conversions if c.graph == graph.name and c.tensor in tensors]


def interior_values(trial: Trial) -> list[Conversion]:
    """What is converted inside the graphs, other than weights."""
    return [c for c in in_graphs(trial) if c.tensor != "weight" and c.role == "interior"]


def strides(conversion: Conversion) -> tuple[Any, Any]:
    assert conversion.source is not None
    assert conversion.target is not None
    return conversion.source.stride, conversion.target.stride


def suggestion_of(finding: Finding) -> str:
    assert finding.suggestion is not None
    return finding.suggestion


def tells(finding: Finding, words: str) -> bool:
    """Whether message and suggestion hold these words, in this order; ``...`` stands for any others."""
    parts = map(re.escape, words.split(" ... "))
    return re.search(".*".join(parts), f"{finding.message} -> {finding.suggestion}", re.DOTALL) is not None


def test_C01_the_compiled_chain_converts_in_out_and_its_weights_and_nothing_with_channels_last_input() -> None:
    diagnosis = diagnosed("01_conv_chain_layout_opt.inference", "inductor")
    trial = trial_of(diagnosis, "inductor")
    decision = decision_of(graph_of(trial))
    entry, exit_ = in_graphs(trial, "activation")
    weights = in_graphs(trial, "weight")
    finding = the_finding(diagnosis, "LD105", "inductor")

    assert finding.message.startswith(
        "channels-last region of 4 convolutions: 1 conversion at the entry, 1 conversion (fused) at the exit"
    )
    assert "4 weight conversions in each call, unless weights are frozen" in finding.message
    assert suggestion_of(finding).startswith("a channels_last input saves the conversion at the entry")
    assert (decision.applied, decision.rule) == (True, "cpu-onednn")
    assert (decision.convolution_count, decision.channels_last_convolution_count) == (4, 4)
    assert (entry.role, entry.direction, entry.fused, entry.module) == ("entry", "to_channels_last", False, "body.0.0")
    assert strides(entry) == ((9408, 3136, 56, 1), (9408, 1, 168, 3))
    assert entry.bytes_moved == 2 * 4 * 3 * 56 * 56 * 4  # read and written, four bytes each
    assert (exit_.role, exit_.direction, exit_.fused, exit_.module) == ("exit", "to_contiguous", True, "body.3.2")
    assert strides(exit_) == ((200704, 1, 3584, 64), (200704, 3136, 56, 1))
    assert [w.module for w in weights] == ["body.0.0", "body.1.0", "body.2.0", "body.3.0"]
    assert [w.kernel == entry.kernel for w in weights] == [True, False, False, False]
    assert {w.source_value for w in weights}.isdisjoint({entry.source_value})
    assert trial.redundant_pairs == ()

    diagnosis = diagnosed("01_conv_chain_layout_opt.inference", "inductor-channels-last")
    trial = trial_of(diagnosis, "inductor-channels-last")

    assert in_graphs(trial) == []
    assert trial.redundant_pairs == ()
    assert in_library(trial, graph_of(trial), "activation", "unknown") == []


def test_C03_the_upsample_hands_channels_last_to_the_next_convolution() -> None:
    diagnosis = diagnosed("03_upsample_between_convs.inference", "inductor")
    trial = trial_of(diagnosis, "inductor")
    graph = graph_of(trial)
    (dec,) = [c for c in decision_of(graph).convolutions if c.module == "dec"]
    layouts = {buffer.name: buffer.layout for buffer in graph.buffers}
    (written,) = [buffer for buffer in graph.buffers if buffer.is_extern and dec.node in buffer.origins]
    read = [layouts[name] for name in written.reads if name in layouts]
    values = [layout for layout in read if layout is not None and layout.shape == (4, 32, 128, 128)]

    assert [layout.memory_formats for layout in values] == [("channels_last",)]
    assert dec.channels_last is True
    assert interior_values(trial) == []
    assert all(c.role == "exit" for c in in_graphs(trial, "activation") if c.module != "enc")
    assert trial.redundant_pairs == ()


@pytest.mark.parametrize("name", ["04_mps_training_convnet.training", "06_backward_without_conv_nodes.training"])
def test_C04_and_C06_the_decision_is_applied_in_the_forward_only(name: str) -> None:
    diagnosis = diagnosed(name, "inductor inductor-channels-last")
    trial = trial_of(diagnosis, "inductor")
    forward, backward = (decision_of(graph_of(trial, direction)) for direction in ("forward", "backward"))
    finding = the_finding(diagnosis, "LD206", "inductor")

    assert (forward.applied, forward.rule) == (True, "cpu-onednn")
    assert (backward.applied, backward.rule) == (False, "only-backward-convolutions")
    assert (forward.convolution_count, backward.convolution_count) == (4, 4)
    assert (forward.channels_last_convolution_count, backward.channels_last_convolution_count) == (4, 0)
    assert all(c.is_backward for c in backward.convolutions)
    assert tells(
        finding,
        "layout optimization on in the forward, off in the backward: 4 convolution_backward are not counted "
        "... 189239 ... layout_optimization",
    )


def test_C04_nothing_is_laid_out_anew_that_channels_last_input_would_not_save() -> None:
    diagnosis = diagnosed("04_mps_training_convnet.training", "inductor inductor-channels-last")
    finding = the_finding(diagnosis, "LD206", "inductor")

    assert finding.evidence == (graph_of(trial_of(diagnosis, "inductor"), "backward").name,)
    assert finding.message.endswith("as far as recorded, this converts no activation or gradient")


def test_C06_what_the_depthwise_convolution_reads_is_in_neither_format() -> None:
    diagnosis = diagnosed("06_backward_without_conv_nodes.training", "inductor inductor-channels-last")
    counted = r"\d+ tensors converted by the compiler and library"
    assert re.search(counted, the_finding(diagnosis, "LD206", "inductor").message)

    # With channels_last input too, where the casebook says "all CL": torch 2.13 writes what the depthwise one reads by
    # ``empty_strided_cpu((4, 128, 48, 48), (294912, 48, 6144, 1))``, one of the casebook's three transposing tiles.
    trial, last = (trial_of(diagnosis, name) for name in ("inductor", "inductor-channels-last"))
    forward, backward = (graph_of(trial, direction) for direction in ("forward", "backward"))
    (found,) = [c for c in backward.conversions if c.module == "dw" and c.tensor == "activation"]
    of_library = in_library(trial, backward, "activation", "gradient")
    values = [c for c in of_library if c.port not in ("output 1", "output 2")]  # no gradient of a parameter
    layouts = ((294912, 1, 6144, 128), (294912, 48, 6144, 1))

    assert strides(found) == layouts
    assert (found.direction, found.owner, found.tensor) == ("other", "compiler", "activation")
    assert found.target is not None
    assert found.target.memory_formats == ()
    assert line_of(found) == 19  # y = self.act(self.bn2(self.dw(y))), the line of the forward
    assert found.required_by != ()
    assert graph_of(last, "forward").conversions == ()
    assert [(c.module, c.tensor, c.direction, strides(c)) for c in graph_of(last, "backward").conversions] == [
        ("dw", "activation", "other", layouts),
        # ATen makes it dense again inside of convolution_backward, and the weight's gradient channels-last.
        ("dw", "unknown", "to_channels_last", layouts[::-1]),
        ("stem", "gradient", "to_channels_last", ((27, 9, 3, 1), (27, 1, 9, 3))),
    ]
    # The library converts four large tensors of it; the figures are those of a processor with AVX-512.
    assert "AVX-512" in str(diagnosis.environment.onednn_isa)
    assert [c.module for c in values] == ["dw"] * 4
    assert [c.direction for c in values].count("to_blocked") == 3
    assert all(c.source is not None and c.source.shape == (4, 128, 48, 48) for c in values)
    # The sum at the end reads two channels-last values and is written contiguous: one output, one conversion out.
    assert len({c.value for c in forward.conversions if c.role == "exit"}) == 1
    assert "1 conversion at the entry, 1 conversion (fused) at the exit" in the_finding(diagnosis, "LD105").message


def test_C07_the_flag_is_applied_to_none_of_four_convolutions() -> None:
    diagnosis = diagnosed("07_conv3d_chain.inference", "inductor inductor-layout-opt-off")
    finding = the_finding(diagnosis, "LD201", "inductor")
    off = diagnosis.trial("inductor-layout-opt-off")

    assert tells(finding, "layout optimization reaches 0 of 4 convolutions (2-D only)")
    assert (finding.module, line_of(finding)) == ("head", 11)
    assert decision_of(graph_of(trial_of(diagnosis, "inductor"))).applied is True
    assert "torch.channels_last_3d" in suggestion_of(finding)
    assert len(finding.evidence) == 4
    assert off is not None
    assert (off.status, off.same_as) == ("same_as", "inductor")


def test_C09_eager_loses_channels_last_at_the_norm_and_every_ratio_has_its_interval() -> None:
    diagnosis = diagnosed("09_no_global_winner.inference", "eager eager-channels-last")
    finding = the_finding(diagnosis, "LD104", "eager-channels-last")
    (breaker,) = graph_of(trial_of(diagnosis, "eager-channels-last")).breakers

    assert tells(
        finding, "channels_last lost at 1 instance_norm layer (norm) ... 1 conversion to contiguous and 1 back"
    )
    assert (finding.module, line_of(finding)) == ("norm", 15)
    assert (breaker.op, breaker.module, len(breaker.conversions)) == ("instance_norm", "norm", 2)

    diagnosis = diagnosed("09_no_global_winner.inference")
    assert diagnosis.comparison is not None
    names = {diagnosis.comparison.baseline, *(ratio.name for ratio in diagnosis.comparison.ratios)}

    assert names == {trial.name for trial in diagnosis.trials if trial.status == "ok"}
    assert all(0 < ratio.low <= ratio.median <= ratio.high for ratio in diagnosis.comparison.ratios)
    assert diagnosis.comparison.fastest != ()


def test_C10_a_dynamic_dimension_vetoes_and_is_named() -> None:
    static, dynamic = (diagnosed(f"10_dynamic_shapes.inference.cuda-90{kind}") for kind in ("", ".dynamic"))
    decisions = [decision_of(graph_of(trial_of(diagnosis, "inductor"))) for diagnosis in (static, dynamic)]
    finding = the_finding(dynamic, "LD208", "inductor")

    assert [(d.applied, d.rule) for d in decisions] == [(True, "weighted-flops"), (False, "dynamic-shape")]
    assert (
        "layout optimization skipped for 3 convolutions because of dynamic shapes: dimension 2 of " in finding.message
    )
    assert tells(finding, "102670 ... dynamic=False ... mark_static")


def test_C11_nominally_other_strides_are_a_note() -> None:
    diagnosis = diagnosed("11_weight_stride_recompile.training")
    trial = trial_of(diagnosis, "inductor")
    (found,) = trial.gradient_layouts
    finding = the_finding(diagnosis, "LD504")

    assert (found.parameter, found.layout.stride, found.gradient.stride) == ("b.weight", (32, 1, 1, 1), (32, 1, 32, 32))
    assert finding.evidence == ("b.weight",)
    assert trial_of(diagnosis, "inductor-layout-opt-off").gradient_layouts == ()
    assert (trial.recompile_count, trial.recompile_reasons) == (0, ())


def test_C13_channel_shuffle_ends_the_channels_last_region() -> None:
    diagnosis = diagnosed("13_channel_shuffle.inference", "eager-channels-last inductor inductor-channels-last")
    finding, lost = the_finding(diagnosis, "LD104", "inductor"), the_finding(diagnosis, "LD209")
    (breaker,) = graph_of(trial_of(diagnosis, "inductor")).breakers
    (back,) = interior_values(trial_of(diagnosis, "inductor"))

    assert "channels_last lost at 1 channel_shuffle call (13_channel_shuffle.py:12)" in finding.message
    assert line_of(finding) == 12
    assert "197109" in suggestion_of(finding)
    assert (breaker.op, breaker.conversions) == ("channel_shuffle", (back.id,))
    assert (back.direction, back.module, line_of(back)) == ("to_channels_last", "b", 13)
    assert lost.configuration == "inductor-channels-last"
    assert tells(
        lost,
        "output 0: contiguous under compiled + channels_last ... "
        "channels_last under eager + channels_last, with equal values ... "
        "lost at channel_shuffle (13_channel_shuffle.py:1 ... 197109",
    )
    assert lost.location is not None


def test_C15_eager_loses_channels_last_at_three_norms_and_inductor_fuses_them() -> None:
    diagnosis = diagnosed("15_instance_norm.inference")
    finding = the_finding(diagnosis, "LD104", "eager-channels-last")
    eager, last = (trial_of(diagnosis, name) for name in ("eager-channels-last", "inductor-channels-last"))

    assert tells(
        finding,
        "channels_last lost at 3 instance_norm layers (net.1, net.4 and net.7) ... "
        "3 conversions to contiguous and 2 back ... stay contiguous ... compile",
    )
    assert [breaker.module for breaker in graph_of(eager).breakers] == ["net.1", "net.4", "net.7"]
    assert [(c.direction, c.owner, c.module) for c in in_graphs(eager)] == [
        ("to_contiguous", "framework", "net.1"),
        ("to_channels_last", "framework", "net.3"),
        ("to_contiguous", "framework", "net.4"),
        ("to_channels_last", "framework", "net.6"),
        ("to_contiguous", "framework", "net.7"),
    ]
    assert {c.bytes_moved for c in in_graphs(eager)} == {2 * 2 * 32 * 96 * 96 * 4}
    assert in_graphs(last) == []
    assert graph_of(last).breakers == ()


@pytest.mark.parametrize("name", ["17_group_norm_only.inference", "20_interpolate_output_strides.inference"])
def test_C17_and_C20_nothing_is_converted(name: str) -> None:
    trials = [trial_of(diagnosed(name), trial.name) for trial in diagnosed(name).trials]

    assert [c for trial in trials for c in in_graphs(trial)] == []
    assert [breaker for trial in trials for graph in trial.graphs for breaker in graph.breakers] == []
    assert [pair for trial in trials for pair in trial.redundant_pairs] == []


@pytest.mark.parametrize("name", ["19_reflect_pad.inference", "20_interpolate_output_strides.inference"])
def test_C19_and_C20_compiled_output_strides_are_eagers(name: str) -> None:
    diagnosis = diagnosed(name)

    for trial in diagnosis.trials:
        equivalence = trial_of(diagnosis, trial.name).equivalence
        assert equivalence is not None
        assert equivalence.status == "equal", equivalence.detail


def test_C19_padding_is_no_conversion() -> None:
    diagnosis = diagnosed("19_reflect_pad.inference")

    for name in ("eager-channels-last", "inductor", "inductor-channels-last"):
        assert in_graphs(trial_of(diagnosis, name), "activation") == [], name
    pads = [n for n in graph_of(trial_of(diagnosis, "eager-channels-last")).nodes if "reflection_pad2d" in n.target]
    assert len(pads) == 3  # there was something to take for a conversion


def test_C21_as_strided_makes_formats_incomparable() -> None:
    diagnosis = diagnosed("21_as_strided_channels_last.inference")
    finding = the_finding(diagnosis, "LD505")

    assert line_of(finding) == 7
    assert "comparing memory formats is unsafe" in finding.message
    assert "outputs differ in eager + channels_last and compiled + channels_last" in finding.message
    for trial in diagnosis.trials:
        equivalence = trial_of(diagnosis, trial.name).equivalence
        assert equivalence is not None
        assert (equivalence.status == "different") is ("channels-last" in trial.name), trial.name
    assert diagnosis.recommendation is not None
    assert diagnosis.recommendation.configuration in ("eager", "inductor", None)  # none with other values


def test_C22_the_forced_configuration_runs_too() -> None:
    diagnosis = diagnosed("22_force_layout_avgpool_flatten.inference")

    assert len(diagnosis.trials) == 9
    assert "inductor-layout-opt-forced" in {trial.name for trial in diagnosis.trials}
    assert {trial.status for trial in diagnosis.trials} <= {"ok", "same_as"}
    assert all(t.redundant_pairs == () for t in diagnosis.trials if t.configuration.backend == "inductor")


def test_C24_both_make_one_copy_of_the_transposed_input_and_it_is_needed() -> None:
    diagnosis = diagnosed("24_transpose_grouped_conv1d.inference")
    finding = the_finding(diagnosis, "LD210", "inductor")

    assert "1-D convolution, whose 3-D tensors have no channels-last format: 1 of 1 convolution" in finding.message
    assert "not redundant: the copy in front of conv, which the kernel needs and eager makes too" in finding.message
    for name in ("eager", "inductor"):
        (copy,) = in_graphs(trial_of(diagnosis, name), "activation")
        assert (copy.module, copy.fused, strides(copy)) == ("conv", False, ((16384, 1, 256), (16384, 64, 1))), name
        assert trial_of(diagnosis, name).redundant_pairs == ()


def test_C25_three_of_three_convolutions_are_one_dimensional() -> None:
    diagnosis = diagnosed("25_conv1d_stack.inference")
    finding = the_finding(diagnosis, "LD210", "inductor")

    assert tells(
        finding, "1-D convolution, whose 3-D tensors have no channels-last format: 3 of 3 convolutions ... Conv2d"
    )


def test_C27_the_warning_about_gradient_strides_is_called_spurious() -> None:
    diagnosis = diagnosed("27_pointwise_grad_strides.training")
    finding = the_finding(diagnosis, "LD504", "inductor")
    seen = {entry.parameter: entry for entry in trial_of(diagnosis, "inductor").gradient_layouts}
    found = [c for c in in_graphs(trial_of(diagnosis, "inductor")) if c.source is not None]

    assert set(seen) == {"net.0.weight", "net.2.weight", "net.4.weight"}
    assert (seen["net.2.weight"].layout.stride, seen["net.2.weight"].gradient.stride) == (
        (64, 1, 1, 1),
        (64, 1, 64, 64),
    )
    assert tells(finding, "in the order of the parameter ... is spurious ... 47163")
    assert finding.suggestion is None
    assert trial_of(diagnosis, "eager").gradient_layouts == ()
    assert [c for c in found if c.source is not None and c.source.shape[2:] == (1, 1)] == []


def test_C29_the_network_runs_channels_last_after_n1() -> None:
    diagnosis = diagnosed("29_layernorm2d_flips_network.inference")
    finding = the_finding(diagnosis, "LD502", "eager")
    found = in_graphs(trial_of(diagnosis, "eager"))

    assert "channels_last in a contiguous model after n1 (permute, " in finding.message
    assert "2 of 3 convolutions with channels_last input, 1 with contiguous input; 3 conversions" in finding.message
    assert (finding.module, line_of(finding)) == ("n1", 7)
    assert [(c.module, c.tensor) for c in found] == [("n1", "activation"), ("c1", "weight"), ("c2", "weight")]
    assert in_graphs(trial_of(diagnosis, "eager-channels-last")) == []


def test_C30_both_skip_connections_are_round_trips_without_the_optimization() -> None:
    name = "inductor-channels-last-opt-off"
    diagnosis = diagnosed("30_unet_in_out_channels.inference", f"inductor {name}")
    pairs = sorted(trial_of(diagnosis, name).redundant_pairs, key=lambda pair: str(pair.module))

    assert [(p.evidence, p.module, p.tensor_shape) for p in pairs] == [
        ("graph", "d1.0", (2, 96, 64, 64)),
        ("graph", "d2.0", (2, 192, 32, 32)),
    ]
    assert all("aten.cat.default" in pair.between for pair in pairs)
    assert "2 round trips" in the_finding(diagnosis, "LD101", name).message
    assert trial_of(diagnosis, "inductor").redundant_pairs == ()


def test_C30_the_veto_names_the_convolution_that_halves_its_channels() -> None:
    diagnosis = diagnosed("30_unet_in_out_channels.training.cuda-90")
    finding = the_finding(diagnosis, "LD207", "inductor")
    decision = decision_of(graph_of(trial_of(diagnosis, "inductor"), "forward"))

    assert (decision.applied, decision.rule) == (False, "smaller-out-channels")
    assert (finding.module, line_of(finding)) == ("d2.0", 17)
    names = "d2.0 (192 -> 64, 3x3) and d1.0 (96 -> 32, 3x3)"
    assert finding.message.startswith(f"layout optimization vetoed in training by {names}: ")
    assert "inductor-layout-opt-forced" in suggestion_of(finding)


def test_C32_both_contiguous_calls_are_told_by_line() -> None:
    diagnosis = diagnosed("32_user_contiguous_calls.inference")
    found = findings_of(diagnosis, "LD501", "eager-channels-last")
    activations = in_graphs(trial_of(diagnosis, "eager-channels-last"), "activation")

    assert sorted(line_of(finding) for finding in found) == [11, 12]
    assert all(
        " on a channels_last tensor (4x32x96x96)" in f.message and f.message.startswith(".contiguous() at ")
        for f in found
    )
    assert all("1 of 3 conversions of activations in eager + channels_last" in f.message for f in found)
    assert all(suggestion_of(f).startswith("delete the call") for f in found)
    assert [(c.owner, line_of(c), c.direction) for c in activations] == [
        ("user", 11, "to_contiguous"),
        ("framework", 12, "to_channels_last"),
        ("user", 12, "to_contiguous"),
    ]
    assert in_graphs(trial_of(diagnosis, "eager")) == []  # where the calls do nothing


def test_C34_four_branches_are_concatenated_contiguous_and_converted_back() -> None:
    diagnosis = diagnosed("34_dilated_conv.inference")
    (pair,) = trial_of(diagnosis, "inductor").redundant_pairs
    known = {c.id: c for c in in_graphs(trial_of(diagnosis, "inductor"))}
    finding = the_finding(diagnosis, "LD101", "inductor")
    last = trial_of(diagnosis, "inductor-channels-last")

    assert (pair.evidence, pair.kind, pair.module) == ("graph", "through", "fuse")
    assert len(pair.also) == 3
    assert {known[id].direction for id in (pair.first, *pair.also)} == {"to_contiguous"}
    assert known[pair.second].direction == "to_channels_last"
    assert pair.between[-1] == "aten.cat.default"
    assert pair.bytes_moved == 2 * (2 * 2 * 128 * 48 * 48 * 4)  # there and back, each read and written
    assert tells(
        finding,
        "concatenation of 4 channels_last branches, written in contiguous ... converted back for the next convolution",
    )
    assert (finding.module, line_of(finding)) == ("fuse", 13)
    assert last.redundant_pairs == ()
    assert in_graphs(last, "activation") == []


@pytest.mark.parametrize("case", ["36_depthwise_mobile", "38_half_precision_backbone"])
@pytest.mark.parametrize(("mode", "direction"), [("inference", "inference"), ("training", "forward")])
def test_C36_and_C38_the_gpu_rules_apply_layout_optimization(case: str, mode: str, direction: str) -> None:
    diagnosis = diagnosed(f"{case}.{mode}.cuda-90")
    trial = trial_of(diagnosis, "inductor")
    first = trial.graphs[0]

    assert decision_of(first).applied is True
    assert first.direction == direction
    assert trial.is_static


@pytest.mark.parametrize("case", ["36_depthwise_mobile", "38_half_precision_backbone"])
def test_C36_and_C38_saved_tensors_reach_the_backward_in_the_layouts_that_the_forward_chose(case: str) -> None:
    forward, backward = trial_of(diagnosed(f"{case}.training.cuda-90"), "inductor").graphs
    made = {buffer.source_node: buffer.layout for buffer in forward.buffers if buffer.source_node is not None}
    received = {node.name: node.layout for node in backward.nodes if node.op == "placeholder"}
    saved = [name for name in received if name in made and name in forward.output_names]

    assert any("convolution" in name for name in saved)
    assert {name: received[name] for name in saved} == {name: made[name] for name in saved}
    convolutions = [layout for name, layout in received.items() if name.startswith("convolution")]
    assert all(layout is not None and layout.memory_formats == ("channels_last",) for layout in convolutions)


def test_where_a_batch_norm_reads_a_turned_tensor_layouts_matter_without_any_convolution() -> None:
    diagnosis = diagnosed("unfold_conv_batch_norm.inference")

    assert irrelevance(diagnosis) is None
    assert "do not matter" not in str(diagnosis)
    assert "LD302" in str(diagnosis)


def test_every_case_is_recorded_and_looked_at() -> None:
    cases = {path.name[:2] for path in (ROOT / "tests" / "casebook").glob("[0-9]*.py")}
    looked_at = {case for name in globals() for case in re.findall(r"C(\d\d)", name) if name.startswith("test_")}

    assert len(cases) == 24
    assert {name[:2] for name in SETS if name[0].isdigit()} == cases
    assert looked_at == cases
