"""
The verdicts of the casebook: what a diagnosis of each case says, against what the casebook wants said.

One row per diagnosis, only as many configurations as the verdict needs; one test per row and expectation, ids by case.
Expected are codes, places, configurations and the numbers that are exact. What compares measured times (``BY_TIME``) is
another thing on every run and on every machine, so nothing here rests on it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from builders import a_diagnosis, a_failed_trial, a_trial

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.isolation.messages import Request
from layoutdoctor.rules import run_rules
from layoutdoctor.run.diagnose import diagnose_subject
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from layoutdoctor.diagnosis.records import (
        Conversion,
        Decision,
        Diagnosis,
        Finding,
        Graph,
        LayoutBreaker,
        Mode,
        Trial,
    )
    from layoutdoctor.subjects.subject import LoadedSubject

pytestmark = pytest.mark.compile

CASEBOOK = Path(__file__).parent.parent / "casebook"

# Whether these are told, and how severe, depends on what was measured in this run.
BY_TIME = frozenset({"LD103", "LD203", "LD204", "LD205", "LD303", "LD304", "LD401", "LD403"})

SMOKE = {("01", "inference"), ("36", "inference")}
ALL = "all"
CHANNELS_LAST_ONLY = ("channels_last",)


def marked_dynamic(subject: LoadedSubject) -> None:
    """What a user writes who lets the height vary."""
    torch._dynamo.mark_dynamic(subject.args[0], 2)


@dataclass(frozen=True)
class Row:
    """
    One diagnosis and what is expected of it.

    Attributes:
        case: Number in the casebook.
        mode: ``inference`` or ``training``.
        configurations: Names, separated by spaces.
        expectations: Each takes the diagnosis and asserts; its name says what is expected.
        target: A GPU that is not there, to lower for.
        prepare: What is done to the loaded subject first.
    """

    case: str
    mode: Mode
    configurations: str
    expectations: tuple[Callable[[Diagnosis], None], ...]
    target: str | None = None
    prepare: Callable[[LoadedSubject], None] | None = None


def diagnose_row(row: Row) -> Diagnosis:
    (path,) = CASEBOOK.glob(f"{row.case}_*.py")
    subject = load_target(str(path))
    if row.prepare is not None:
        row.prepare(subject)
    return diagnose_subject(
        subject,
        Request(
            mode=row.mode,
            configurations=choose_configurations(row.configurations.split(), row.mode),
            lower_for=row.target,
            budget_seconds=0.1,
        ),
    )


# What the expectations ask.


def trial_of(diagnosis: Diagnosis, name: str) -> Trial:
    trial = diagnosis.measured_trial(name)
    assert trial is not None
    assert trial.status == "ok", trial.failure
    assert all(graph.hook_failure is None for graph in trial.graphs)
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


def codes_of(diagnosis: Diagnosis, *configurations: str) -> set[str]:
    """Codes told about some configurations, or about the whole diagnosis; without those that compare times."""
    told = {f.code for f in diagnosis.findings if not configurations or f.configuration in (None, *configurations)}
    return told - BY_TIME


def codes_of_compiled(diagnosis: Diagnosis) -> set[str]:
    names = [trial.name for trial in diagnosis.trials if trial.configuration.backend == "inductor"]
    return codes_of(diagnosis, *names)


def line_of(thing: Finding | Conversion | LayoutBreaker) -> int:
    assert thing.location is not None
    return thing.location.line


def in_graphs(trial: Trial, tensor: str | None = None) -> list[Conversion]:
    return [c for graph in trial.graphs for c in graph.conversions if tensor in (None, c.tensor)]


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


def is_gradient_of_a_parameter(conversion: Conversion) -> bool:
    return conversion.port in ("output 1", "output 2")


def has_avx512() -> bool:
    """Whether oneDNN blocks by 16, as the casebook's figures have it; its own log says so once per process only."""
    return bool(torch.backends.cpu.get_cpu_capability() == "AVX512")


# C01


def one_conversion_in_and_one_out_for_four_convolutions(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD105", "inductor")

    assert finding.severity == "note"
    assert finding.message.startswith("1 conversion in, 1 out (fused) for 4 convolutions that run channels-last")
    assert "and 4 weights, once per call without freezing" in finding.message
    assert finding.suggestion is not None
    assert finding.suggestion.startswith("nothing is wrong here: a channels_last input saves the conversion at the ent")


def entry_exit_and_four_weights_are_told_apart(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")
    decision = decision_of(graph_of(trial))
    entry, exit_ = in_graphs(trial, "activation")
    weights = in_graphs(trial, "weight")

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


def nothing_else_is_wrong_with_the_compiled_model(diagnosis: Diagnosis) -> None:
    assert codes_of_compiled(diagnosis) <= {"LD105"}


def no_activation_is_converted_with_channels_last_input(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor-channels-last")

    assert in_graphs(trial) == []
    assert trial.redundant_pairs == ()
    assert in_library(trial, graph_of(trial), "activation", "unknown") == []
    assert codes_of(diagnosis) == set()


# C03


def the_upsample_hands_channels_last_to_the_next_convolution(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")
    graph = graph_of(trial)
    (dec,) = [c for c in decision_of(graph).convolutions if c.module == "dec"]
    layouts = {buffer.name: buffer.layout for buffer in graph.buffers}
    (written,) = [buffer for buffer in graph.buffers if buffer.is_extern and dec.node in buffer.origins]
    read = [layouts[name] for name in written.reads if name in layouts]
    values = [layout for layout in read if layout is not None and layout.shape == (4, 32, 128, 128)]

    assert [layout.memory_formats for layout in values] == [CHANNELS_LAST_ONLY]
    assert dec.channels_last is True
    assert interior_values(trial) == []
    assert all(c.role == "exit" for c in in_graphs(trial, "activation") if c.module != "enc")


def this_torch_has_no_finding_about_the_upsample(diagnosis: Diagnosis) -> None:
    assert codes_of_compiled(diagnosis) <= {"LD105"}
    assert trial_of(diagnosis, "inductor").redundant_pairs == ()


# C04 and C06


def the_decision_is_applied_in_the_forward_only(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")
    forward, backward = (decision_of(graph_of(trial, direction)) for direction in ("forward", "backward"))

    assert (forward.applied, forward.rule) == (True, "cpu-onednn")
    assert (backward.applied, backward.rule) == (False, "only-backward-convolutions")
    assert (forward.convolution_count, backward.convolution_count) == (4, 4)
    assert (forward.channels_last_convolution_count, backward.channels_last_convolution_count) == (4, 0)
    assert all(c.is_backward for c in backward.convolutions)


def the_mismatch_names_the_issue_and_the_four_uncounted_convolutions(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD206", "inductor")

    assert "layout optimization is on in the forward and off in the backward" in finding.message
    assert "Inductor counts 0 convolutions there, its 4 convolution_backward are not counted" in finding.message
    assert "189239" in finding.message
    assert finding.suggestion is not None
    assert "channels_last" in finding.suggestion
    assert "layout_optimization" in finding.suggestion


def nothing_is_laid_out_anew_that_channels_last_input_would_not_save(diagnosis: Diagnosis) -> None:
    """The advice is to give channels_last: what is converted all the same was not the decision's doing."""
    told = the_finding(diagnosis, "LD206", "inductor").evidence
    contiguous, last = (trial_of(diagnosis, name) for name in ("inductor", "inductor-channels-last"))
    blamed = [c for c in in_graphs(contiguous) if c.id in told]
    kept = {(c.node, c.module, c.tensor, *strides(c)) for c in in_graphs(last)}

    assert [c for c in blamed if (c.node, c.module, c.tensor, *strides(c)) in kept and not c.required_by] == []


def as_many_tensors_are_laid_out_anew_as_the_record_holds(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD206", "inductor")
    trial = trial_of(diagnosis, "inductor")
    backward = graph_of(trial, "backward")
    values = [c for c in backward.conversions if c.tensor != "weight" and c.role != "exit"]
    inside = [c for c in in_library(trial, backward, "activation", "gradient") if not is_gradient_of_a_parameter(c)]
    told = [c for c in (*values, *inside) if c.id in finding.evidence]
    counted = re.search(
        r"(\d+) tensors are laid out anew for them \((\d+) by the compiler and (\d+) by", finding.message
    )

    assert counted is not None, finding.message
    assert len(told) == len(finding.evidence)
    assert [int(number) for number in counted.groups()] == [
        len(told),
        sum(c.owner == "compiler" for c in told),
        sum(c.owner == "library" for c in told),
    ]
    kept = {(c.node, *strides(c)) for c in in_graphs(trial_of(diagnosis, "inductor-channels-last"))}
    must = [c for c in values if c.role != "entry" and (c.node, *strides(c)) not in kept]
    assert {c.id for c in told} >= {c.id for c in (*must, *inside)}


def one_output_that_two_values_make_is_put_back_once(diagnosis: Diagnosis) -> None:
    """The sum at the end reads two channels-last values and is written contiguous: one output, one conversion out."""
    exits = [c for c in graph_of(trial_of(diagnosis, "inductor"), "forward").conversions if c.role == "exit"]

    assert len({c.value for c in exits}) == 1
    assert the_finding(diagnosis, "LD105").message.startswith("1 conversion in, 1 out (fused) for 4 convolutions")


def a_tensor_that_is_written_once_is_counted_once(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD206", "inductor")
    backward = graph_of(trial_of(diagnosis, "inductor"), "backward")
    written = {c.value for c in backward.conversions if c.id in finding.evidence}

    assert f" {len(written)} tensors are laid out anew for them" in finding.message


def the_library_converts_four_large_tensors_of_the_depthwise_convolution(diagnosis: Diagnosis) -> None:
    if not has_avx512():
        pytest.skip("the casebook's figures are those of a processor with AVX-512")
    trial = trial_of(diagnosis, "inductor")
    found = in_library(trial, graph_of(trial, "backward"), "activation", "gradient")
    values = [c for c in found if not is_gradient_of_a_parameter(c)]

    assert [c.module for c in values] == ["dw"] * 4
    assert [c.direction for c in values].count("to_blocked") == 3
    assert all(c.source is not None and c.source.shape == (4, 128, 48, 48) for c in values)


def the_depthwise_convolution_reads_a_layout_that_is_neither_format(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")
    backward = graph_of(trial, "backward")
    (found,) = [c for c in backward.conversions if c.module == "dw" and c.tensor == "activation"]

    assert strides(found) == ((294912, 1, 6144, 128), (294912, 48, 6144, 1))
    assert (found.direction, found.owner, found.tensor) == ("other", "compiler", "activation")
    assert found.target is not None
    assert found.target.memory_formats == ()
    assert line_of(found) == 19  # y = self.act(self.bn2(self.dw(y))), the line of the forward
    assert found.required_by != ()


def with_channels_last_input_only_the_depthwise_input_is_converted(diagnosis: Diagnosis) -> None:
    """
    The casebook says "all CL"; torch 2.13's own code says otherwise for one buffer.

    It writes the depthwise convolution's input by ``empty_strided_cpu((4, 128, 48, 48), (294912, 48, 6144, 1))``, which
    is one of the casebook's three transposing tiles with channels_last input.
    """
    trial = trial_of(diagnosis, "inductor-channels-last")
    backward = graph_of(trial, "backward")

    assert graph_of(trial, "forward").conversions == ()
    assert [(c.module, c.tensor, c.direction, strides(c)) for c in backward.conversions] == [
        ("dw", "activation", "other", ((294912, 1, 6144, 128), (294912, 48, 6144, 1)))
    ]


# C07


def the_flag_is_applied_to_none_of_four_convolutions(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD201", "inductor")

    assert "0 of 4 convolutions made channels-last" in finding.message
    assert "all are 3-D and Inductor's rule covers 2-D only" in finding.message
    assert (finding.module, line_of(finding)) == ("head", 11)
    assert finding.suggestion is not None
    assert "torch.channels_last_3d" in finding.suggestion
    assert len(finding.evidence) == 4


def the_code_without_the_flag_is_the_same(diagnosis: Diagnosis) -> None:
    off = diagnosis.trial("inductor-layout-opt-off")

    assert off is not None
    assert (off.status, off.same_as) == ("same_as", "inductor")


# C09


def every_ratio_has_its_interval(diagnosis: Diagnosis) -> None:
    assert diagnosis.comparison is not None
    ratios = diagnosis.comparison.ratios

    assert {diagnosis.comparison.baseline, *(ratio.name for ratio in ratios)} == {t.name for t in diagnosis.trials}
    assert all(0 < ratio.low <= ratio.median <= ratio.high for ratio in ratios)
    assert diagnosis.comparison.fastest != ()


def eager_loses_channels_last_at_the_norm(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD104", "eager-channels-last")
    (breaker,) = graph_of(trial_of(diagnosis, "eager-channels-last")).breakers

    assert "channels_last is lost at 1 instance_norm layer (norm; " in finding.message
    assert "1 conversion out and 1 back in" in finding.message
    assert (finding.module, line_of(finding)) == ("norm", 15)
    assert (breaker.op, breaker.module, len(breaker.conversions)) == ("instance_norm", "norm", 2)


# C10


def static_shapes_are_not_vetoed(diagnosis: Diagnosis) -> None:
    decision = decision_of(graph_of(trial_of(diagnosis, "inductor")))

    assert (decision.applied, decision.rule) == (True, "weighted-flops")
    assert findings_of(diagnosis, "LD208") == []


def a_dynamic_dimension_vetoes_and_is_named(diagnosis: Diagnosis) -> None:
    decision = decision_of(graph_of(trial_of(diagnosis, "inductor")))
    finding = the_finding(diagnosis, "LD208", "inductor")

    assert (decision.applied, decision.rule) == (False, "dynamic-shape")
    assert finding.severity == "note"
    assert (
        "layout optimization skipped for 3 convolutions because of dynamic shapes: dimension 2 of " in finding.message
    )
    assert "102670" in finding.message
    assert finding.suggestion is not None
    assert "dynamic=False" in finding.suggestion
    assert "mark_static" in finding.suggestion


# C11 and C27


def the_gradient_of_the_1x1_weight_has_nominally_other_strides(diagnosis: Diagnosis) -> None:
    (found,) = trial_of(diagnosis, "inductor").gradient_layouts
    finding = the_finding(diagnosis, "LD504")

    assert (found.parameter, found.layout.stride, found.gradient.stride) == ("b.weight", (32, 1, 1, 1), (32, 1, 32, 32))
    assert (finding.severity, finding.evidence) == ("note", ("b.weight",))


def nothing_is_compiled_again(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")

    assert (trial.recompile_count, trial.recompile_reasons) == (0, ())
    assert findings_of(diagnosis, "LD211") == []


def the_warning_about_gradient_strides_is_called_spurious(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD504", "inductor")
    seen = {entry.parameter: entry for entry in trial_of(diagnosis, "inductor").gradient_layouts}

    assert set(seen) == {"net.0.weight", "net.2.weight", "net.4.weight"}
    assert (seen["net.2.weight"].layout.stride, seen["net.2.weight"].gradient.stride) == (
        (64, 1, 1, 1),
        (64, 1, 64, 64),
    )
    assert finding.severity == "note"
    assert "47163" in finding.message
    assert "the same bytes in both formats" in finding.message
    assert "is spurious here" in finding.message
    assert finding.suggestion is not None
    assert finding.suggestion.startswith("nothing to do")


def eager_gradients_have_their_parameters_strides(diagnosis: Diagnosis) -> None:
    assert trial_of(diagnosis, "eager").gradient_layouts == ()


def no_1x1_weight_or_gradient_is_converted(diagnosis: Diagnosis) -> None:
    found = [c for c in in_graphs(trial_of(diagnosis, "inductor")) if c.source is not None]

    assert [c for c in found if c.source is not None and c.source.shape[2:] == (1, 1)] == []


def the_loss_gradient_made_ready_is_no_mismatch(diagnosis: Diagnosis) -> None:
    """The caller's gradient comes in eager's strides: it is converted once at the entry, whatever was decided."""
    backward = graph_of(trial_of(diagnosis, "inductor"), "backward")
    entries = {c.id for c in backward.conversions if c.role == "entry"}
    blamed = {id for finding in findings_of(diagnosis, "LD206") for id in finding.evidence}

    assert len(entries) == 1
    assert blamed.isdisjoint(entries)
    assert [f.severity for f in findings_of(diagnosis, "LD206") if f.severity != "note"] == []


# C13


def channel_shuffle_ends_the_channels_last_region(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD104", "inductor")
    (breaker,) = graph_of(trial_of(diagnosis, "inductor")).breakers
    (back,) = interior_values(trial_of(diagnosis, "inductor"))

    assert "channels_last is lost at 1 channel_shuffle call (13_channel_shuffle.py:12)" in finding.message
    assert line_of(finding) == 12
    assert finding.suggestion is not None
    assert "197109" in finding.suggestion
    assert (breaker.op, breaker.conversions) == ("channel_shuffle", (back.id,))
    assert (back.direction, back.module, line_of(back)) == ("to_channels_last", "b", 13)


def the_output_lost_eagers_channels_last_at_channel_shuffle(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD209", "inductor-channels-last")

    assert "returns output 0 as contiguous where eager-channels-last returns channels_last" in finding.message
    assert "with equal values" in finding.message
    assert "lost at channel_shuffle (13_channel_shuffle.py:1" in finding.message
    assert "197109" in finding.message
    assert finding.location is not None


# C15


def eager_loses_channels_last_at_three_norms(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD104", "eager-channels-last")
    breakers = graph_of(trial_of(diagnosis, "eager-channels-last")).breakers

    assert "channels_last is lost at 3 instance_norm layers (net.1, net.4 and net.7; " in finding.message
    assert "3 conversions out and 2 back in" in finding.message
    assert finding.suggestion is not None
    assert "stay contiguous" in finding.suggestion
    assert "compile" in finding.suggestion
    assert [breaker.module for breaker in breakers] == ["net.1", "net.4", "net.7"]


def each_norm_converts_out_and_the_next_convolution_back(diagnosis: Diagnosis) -> None:
    found = in_graphs(trial_of(diagnosis, "eager-channels-last"))

    assert [(c.direction, c.owner, c.module) for c in found] == [
        ("to_contiguous", "framework", "net.1"),
        ("to_channels_last", "framework", "net.3"),
        ("to_contiguous", "framework", "net.4"),
        ("to_channels_last", "framework", "net.6"),
        ("to_contiguous", "framework", "net.7"),
    ]
    assert {c.bytes_moved for c in found} == {2 * 2 * 32 * 96 * 96 * 4}


def inductor_fuses_the_norms_and_converts_nothing(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor-channels-last")

    assert in_graphs(trial) == []
    assert graph_of(trial).breakers == ()
    assert findings_of(diagnosis, "LD104", "inductor-channels-last") == []


# C17, C19, C20


def nothing_is_said_of_conversions_or_decisions(diagnosis: Diagnosis) -> None:
    assert [code for code in codes_of(diagnosis) if code.startswith(("LD1", "LD2"))] == []


def nothing_is_converted(diagnosis: Diagnosis) -> None:
    trials = [trial_of(diagnosis, trial.name) for trial in diagnosis.trials]

    assert [c for trial in trials for c in in_graphs(trial)] == []
    assert [breaker for trial in trials for graph in trial.graphs for breaker in graph.breakers] == []
    assert [pair for trial in trials for pair in trial.redundant_pairs] == []


def padding_is_no_conversion(diagnosis: Diagnosis) -> None:
    for name in ("eager-channels-last", "inductor", "inductor-channels-last"):
        assert in_graphs(trial_of(diagnosis, name), "activation") == [], name
    pads = [n for n in graph_of(trial_of(diagnosis, "eager-channels-last")).nodes if "reflection_pad2d" in n.target]
    assert len(pads) == 3  # there was something to take for a conversion


def compiled_output_strides_are_eagers(diagnosis: Diagnosis) -> None:
    assert codes_of_compiled(diagnosis).isdisjoint({"LD101", "LD104", "LD209"})
    for trial in diagnosis.trials:
        assert trial.equivalence is not None
        assert trial.equivalence.status == "equal", trial.equivalence.detail


def nothing_but_notes(diagnosis: Diagnosis) -> None:
    assert [f for f in diagnosis.findings if f.severity != "note" and f.code not in BY_TIME] == []


# C21


def as_strided_makes_formats_incomparable(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD505")

    assert line_of(finding) == 7
    assert "comparing memory formats is unsafe for this model" in finding.message
    assert "the outputs of eager-channels-last and inductor-channels-last differ" in finding.message
    assert "results are compared only with eager on the same input format" in finding.message


def the_outputs_differ_under_channels_last_only(diagnosis: Diagnosis) -> None:
    assert {f.configuration for f in findings_of(diagnosis, "LD402")} == {
        "eager-channels-last",
        "inductor-channels-last",
    }
    for trial in diagnosis.trials:
        assert trial.equivalence is not None
        assert (trial.equivalence.status == "different") is trial.name.endswith("channels-last"), trial.name


def no_configuration_with_other_values_is_recommended(diagnosis: Diagnosis) -> None:
    assert diagnosis.recommendation is not None
    assert diagnosis.recommendation.configuration in ("eager", "inductor", None)


# C22


def every_configuration_runs_the_forced_one_too(diagnosis: Diagnosis) -> None:
    assert "inductor-layout-opt-forced" in {trial.name for trial in diagnosis.trials}
    assert {trial.status for trial in diagnosis.trials} <= {"ok", "same_as"}
    assert findings_of(diagnosis, "LD301") == []


def nothing_is_wrong_with_the_compiled_trials(diagnosis: Diagnosis) -> None:
    assert codes_of_compiled(diagnosis).isdisjoint({"LD101", "LD104"})
    assert all(trial.redundant_pairs == () for trial in diagnosis.trials if trial.configuration.backend == "inductor")


# C24 and C25


def the_copy_in_front_of_conv1d_is_needed_and_eager_makes_it_too(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD210", "inductor")

    assert finding.severity == "note"
    assert "1 of 1 convolution is 1-D" in finding.message
    assert "the copy in front of conv is needed by the kernel, and eager makes it too: not redundant" in finding.message
    assert codes_of(diagnosis) == {"LD210"}


def both_make_one_copy_of_the_transposed_input(diagnosis: Diagnosis) -> None:
    for name in ("eager", "inductor"):
        (copy,) = in_graphs(trial_of(diagnosis, name), "activation")
        assert (copy.module, copy.fused, strides(copy)) == ("conv", False, ((16384, 1, 256), (16384, 64, 1))), name
        assert trial_of(diagnosis, name).redundant_pairs == ()


def three_of_three_convolutions_are_one_dimensional(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD210", "inductor")

    assert finding.severity == "note"
    assert "3 of 3 convolutions are 1-D: layout optimization cannot apply" in finding.message
    assert finding.suggestion is not None
    assert "Conv2d" in finding.suggestion
    assert codes_of_compiled(diagnosis).isdisjoint({"LD101", "LD102", "LD104", "LD201"})


# C29


def the_network_runs_channels_last_after_n1(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD502", "eager")
    found = in_graphs(trial_of(diagnosis, "eager"))

    assert "the contiguous model runs channels_last after n1 (permute, " in finding.message
    assert "2 of 3 convolutions read it, 1 reads contiguous; 3 conversions" in finding.message
    assert (finding.module, line_of(finding)) == ("n1", 7)
    assert [(c.module, c.tensor) for c in found] == [("n1", "activation"), ("c1", "weight"), ("c2", "weight")]
    assert in_graphs(trial_of(diagnosis, "eager-channels-last")) == []


def a_norm_over_the_last_dimension_is_no_breaker(diagnosis: Diagnosis) -> None:
    assert findings_of(diagnosis, "LD104") == []


# C30


def both_skip_connections_are_round_trips(diagnosis: Diagnosis) -> None:
    pairs = trial_of(diagnosis, "inductor-channels-last-opt-off").redundant_pairs

    assert [(p.evidence, p.module) for p in sorted(pairs, key=lambda pair: str(pair.module))] == [
        ("graph", "d1.0"),
        ("graph", "d2.0"),
    ]
    assert all("aten.cat.default" in pair.between for pair in pairs)
    assert {pair.module: pair.tensor_shape for pair in pairs} == {"d1.0": (2, 96, 64, 64), "d2.0": (2, 192, 32, 32)}
    assert "2 round trips" in the_finding(diagnosis, "LD101", "inductor-channels-last-opt-off").message


def the_default_has_no_round_trip(diagnosis: Diagnosis) -> None:
    assert trial_of(diagnosis, "inductor").redundant_pairs == ()
    assert codes_of(diagnosis, "inductor") <= {"LD105"}


def contiguous_eager_has_no_channels_last_region_to_lose(diagnosis: Diagnosis) -> None:
    """ATen's own upsampling converts inside itself; the model and its input are contiguous."""
    assert findings_of(diagnosis, "LD104", "eager") == []


def the_veto_names_the_convolution_that_halves_its_channels(diagnosis: Diagnosis) -> None:
    finding = the_finding(diagnosis, "LD207", "inductor")
    decision = decision_of(graph_of(trial_of(diagnosis, "inductor"), "forward"))

    assert (decision.applied, decision.rule) == (False, "smaller-out-channels")
    assert (finding.severity, finding.module, line_of(finding)) == ("note", "d2.0", 17)
    assert "layout optimization vetoed in training by d2.0 (192 -> 64, 3x3;" in finding.message
    assert finding.suggestion is not None
    assert "inductor-layout-opt-forced" in finding.suggestion


# C32


def both_contiguous_calls_are_told_by_line(diagnosis: Diagnosis) -> None:
    found = findings_of(diagnosis, "LD501", "eager-channels-last")

    assert sorted(line_of(finding) for finding in found) == [11, 12]
    assert all("calls .contiguous() on a channels_last tensor (4x32x96x96)" in f.message for f in found)
    assert all("1 of the 3 conversions of activations in eager-channels-last" in f.message for f in found)
    assert all(f.suggestion is not None and f.suggestion.startswith("delete the call") for f in found)


def the_user_owns_two_of_three_conversions(diagnosis: Diagnosis) -> None:
    found = in_graphs(trial_of(diagnosis, "eager-channels-last"), "activation")

    assert [(c.owner, line_of(c), c.direction) for c in found] == [
        ("user", 11, "to_contiguous"),
        ("framework", 12, "to_channels_last"),
        ("user", 12, "to_contiguous"),
    ]


def the_calls_do_nothing_in_contiguous_eager(diagnosis: Diagnosis) -> None:
    assert in_graphs(trial_of(diagnosis, "eager")) == []


# C34


def four_branches_are_concatenated_contiguous_and_converted_back(diagnosis: Diagnosis) -> None:
    (pair,) = trial_of(diagnosis, "inductor").redundant_pairs
    known = {c.id: c for c in in_graphs(trial_of(diagnosis, "inductor"))}
    finding = the_finding(diagnosis, "LD101", "inductor")

    assert (pair.evidence, pair.kind, pair.module) == ("graph", "through", "fuse")
    assert len(pair.also) == 3
    assert {known[id].direction for id in (pair.first, *pair.also)} == {"to_contiguous"}
    assert known[pair.second].direction == "to_channels_last"
    assert pair.between[-1] == "aten.cat.default"
    assert pair.bytes_moved == 2 * (2 * 2 * 128 * 48 * 48 * 4)  # there and back, each read and written
    assert "4 channels_last branches are concatenated" in finding.message
    assert "at aten.cat" in finding.message
    assert "converted back for the next convolution" in finding.message
    assert (finding.module, line_of(finding)) == ("fuse", 13)


def channels_last_input_removes_the_round_trip(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor-channels-last")

    assert trial.redundant_pairs == ()
    assert in_graphs(trial, "activation") == []
    assert findings_of(diagnosis, "LD101", "inductor-channels-last") == []


# C36 and C38


def the_gpu_rules_apply_layout_optimization(diagnosis: Diagnosis) -> None:
    trial = trial_of(diagnosis, "inductor")
    first = trial.graphs[0]

    assert decision_of(first).applied is True
    assert first.direction == ("inference" if diagnosis.subject.mode == "inference" else "forward")
    assert trial.is_static


def what_was_not_measured_is_a_note(diagnosis: Diagnosis) -> None:
    assert [(f.code, f.severity, f.message) for f in diagnosis.findings if f.severity != "note"] == []


TARGETED: tuple[tuple[str, Mode, tuple[Callable[[Diagnosis], None], ...]], ...] = (
    ("36", "inference", ()),
    ("36", "training", (a_tensor_that_is_written_once_is_counted_once,)),
    ("38", "inference", ()),
    ("38", "training", ()),
)

ROWS = (
    Row(
        "01",
        "inference",
        "inductor",
        (
            one_conversion_in_and_one_out_for_four_convolutions,
            entry_exit_and_four_weights_are_told_apart,
            nothing_else_is_wrong_with_the_compiled_model,
        ),
    ),
    Row("01", "inference", "inductor-channels-last", (no_activation_is_converted_with_channels_last_input,)),
    Row(
        "03",
        "inference",
        "inductor",
        (the_upsample_hands_channels_last_to_the_next_convolution, this_torch_has_no_finding_about_the_upsample),
    ),
    Row(
        "04",
        "training",
        "inductor inductor-channels-last",
        (
            the_decision_is_applied_in_the_forward_only,
            the_mismatch_names_the_issue_and_the_four_uncounted_convolutions,
            nothing_is_laid_out_anew_that_channels_last_input_would_not_save,
        ),
    ),
    Row(
        "06",
        "training",
        "inductor inductor-channels-last",
        (
            the_decision_is_applied_in_the_forward_only,
            the_mismatch_names_the_issue_and_the_four_uncounted_convolutions,
            as_many_tensors_are_laid_out_anew_as_the_record_holds,
            one_output_that_two_values_make_is_put_back_once,
            the_library_converts_four_large_tensors_of_the_depthwise_convolution,
            the_depthwise_convolution_reads_a_layout_that_is_neither_format,
            with_channels_last_input_only_the_depthwise_input_is_converted,
        ),
    ),
    Row(
        "07",
        "inference",
        "inductor inductor-layout-opt-off",
        (the_flag_is_applied_to_none_of_four_convolutions, the_code_without_the_flag_is_the_same),
    ),
    Row(
        "09",
        "inference",
        "eager eager-channels-last",
        (every_ratio_has_its_interval, eager_loses_channels_last_at_the_norm),
    ),
    Row(
        "10", "inference", "inductor", (static_shapes_are_not_vetoed, what_was_not_measured_is_a_note), target="cuda:90"
    ),
    Row(
        "10",
        "inference",
        "inductor",
        (a_dynamic_dimension_vetoes_and_is_named,),
        target="cuda:90",
        prepare=marked_dynamic,
    ),
    Row(
        "11",
        "training",
        "inductor",
        (
            the_gradient_of_the_1x1_weight_has_nominally_other_strides,
            nothing_is_compiled_again,
            the_loss_gradient_made_ready_is_no_mismatch,
        ),
    ),
    Row(
        "13",
        "inference",
        "eager-channels-last inductor inductor-channels-last",
        (channel_shuffle_ends_the_channels_last_region, the_output_lost_eagers_channels_last_at_channel_shuffle),
    ),
    Row(
        "15",
        "inference",
        "eager eager-channels-last inductor-channels-last",
        (
            eager_loses_channels_last_at_three_norms,
            each_norm_converts_out_and_the_next_convolution_back,
            inductor_fuses_the_norms_and_converts_nothing,
        ),
    ),
    Row(
        "17",
        "inference",
        "eager eager-channels-last inductor inductor-channels-last",
        (nothing_is_said_of_conversions_or_decisions, nothing_is_converted),
    ),
    Row(
        "19",
        "inference",
        "eager eager-channels-last inductor inductor-channels-last",
        (padding_is_no_conversion, compiled_output_strides_are_eagers),
    ),
    Row(
        "20",
        "inference",
        "eager eager-channels-last inductor inductor-channels-last",
        (nothing_but_notes, nothing_is_converted, compiled_output_strides_are_eagers),
    ),
    Row(
        "21",
        "inference",
        "eager eager-channels-last inductor inductor-channels-last",
        (
            as_strided_makes_formats_incomparable,
            the_outputs_differ_under_channels_last_only,
            no_configuration_with_other_values_is_recommended,
        ),
    ),
    Row(
        "22", "inference", ALL, (every_configuration_runs_the_forced_one_too, nothing_is_wrong_with_the_compiled_trials)
    ),
    Row(
        "24",
        "inference",
        "eager inductor",
        (the_copy_in_front_of_conv1d_is_needed_and_eager_makes_it_too, both_make_one_copy_of_the_transposed_input),
    ),
    Row("25", "inference", "eager inductor", (three_of_three_convolutions_are_one_dimensional,)),
    Row(
        "27",
        "training",
        "eager inductor",
        (
            the_warning_about_gradient_strides_is_called_spurious,
            eager_gradients_have_their_parameters_strides,
            no_1x1_weight_or_gradient_is_converted,
            the_loss_gradient_made_ready_is_no_mismatch,
        ),
    ),
    Row(
        "29",
        "inference",
        "eager eager-channels-last",
        (the_network_runs_channels_last_after_n1, a_norm_over_the_last_dimension_is_no_breaker),
    ),
    Row("30", "inference", "eager", (contiguous_eager_has_no_channels_last_region_to_lose,)),
    Row(
        "30",
        "inference",
        "inductor inductor-channels-last-opt-off",
        (both_skip_connections_are_round_trips, the_default_has_no_round_trip),
    ),
    Row(
        "30",
        "training",
        "inductor",
        (the_veto_names_the_convolution_that_halves_its_channels, what_was_not_measured_is_a_note),
        target="cuda:90",
    ),
    Row(
        "32",
        "inference",
        "eager eager-channels-last",
        (
            both_contiguous_calls_are_told_by_line,
            the_user_owns_two_of_three_conversions,
            the_calls_do_nothing_in_contiguous_eager,
        ),
    ),
    Row(
        "34",
        "inference",
        "inductor inductor-channels-last",
        (four_branches_are_concatenated_contiguous_and_converted_back, channels_last_input_removes_the_round_trip),
    ),
    *(
        Row(
            case,
            mode,
            "inductor",
            (the_gpu_rules_apply_layout_optimization, what_was_not_measured_is_a_note, *more),
            target="cuda:90",
        )
        for case, mode, more in TARGETED
    ),
)


@pytest.fixture(scope="module")
def diagnosed() -> Callable[[Row], Diagnosis]:
    """Diagnoses each row once for all tests of this file."""
    known: dict[Row, Diagnosis] = {}

    def diagnose(row: Row) -> Diagnosis:
        if row not in known:
            known[row] = diagnose_row(row)
        return known[row]

    return diagnose


@pytest.mark.parametrize(
    ("row", "expectation"),
    [
        pytest.param(
            row,
            expectation,
            id=f"C{row.case}-{row.mode}-{expectation.__name__}",
            marks=[pytest.mark.smoke] if (row.case, row.mode) in SMOKE else [],
        )
        for row in ROWS
        for expectation in row.expectations
    ],
)
def test_the_verdict_is_the_casebooks(
    diagnosed: Callable[[Row], Diagnosis], row: Row, expectation: Callable[[Diagnosis], None]
) -> None:
    expectation(diagnosed(row))


def test_every_case_has_a_row() -> None:
    assert {row.case for row in ROWS} == {path.name[:2] for path in CASEBOOK.glob("[0-9]*.py")}
    assert len({row.case for row in ROWS}) == 24


# What this machine cannot show, on records.


def test_C11_a_guard_on_a_weights_stride_is_told_as_a_recompile_for_strides() -> None:
    guard = "tensor 'L['self'].encoder_q.layer1[0].conv1.weight' stride mismatch at index 2. expected 1, actual 64"
    (finding,) = [
        f for f in run_rules(a_diagnosis(a_trial(recompile_reasons=(guard,), recompile_count=1))) if f.code == "LD211"
    ]

    assert "compiled again because of parameter strides, though no shape changed" in finding.message
    assert "encoder_q.layer1[0].conv1.weight (stride of dimension 2: expected 1, actual 64)" in finding.message
    assert finding.suggestion is not None
    assert "lerp_" in finding.suggestion
    assert "126241" in finding.suggestion


def test_C22_a_forced_configuration_that_crashes_is_a_result_and_the_others_are_fine() -> None:
    assertion = "AssertionError: expected size 2048==2048, stride 1==2048 at dim=1"
    diagnosis = a_diagnosis(a_trial(), a_failed_trial("inductor-layout-opt-forced", assertion))
    findings = run_rules(diagnosis)

    assert [(f.code, f.severity, f.configuration) for f in findings if f.code == "LD301"] == [
        ("LD301", "note", "inductor-layout-opt-forced")
    ]
    (finding,) = [f for f in findings if f.code == "LD301"]
    assert assertion in finding.message
    assert "184014" in finding.message
    assert finding.suggestion == "do not force it: the other configurations are not affected"
