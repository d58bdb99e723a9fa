"""
The casebook's known false alarms, one by one: what looks like a layout problem and is none.

Flagged means a finding above a note, or a conversion or pair in the record where no layout changes without need. What
compares measured times, and what oneDNN really converts inside a contiguous convolution, is no matter of this file.
Beside each silence is a case that is reported, so that the test would see a tool that says nothing at all. Numbers 5,
14, 15 and 17 are about shares and ratios, 6 about a kernel's name: tests/unit/rules has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kept_recordings import above_note, diagnosed, graph_of, in_graphs, the_finding, trial_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.conversion import Conversion
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Mode

FORMATS = ("eager", "eager-channels-last", "inductor", "inductor-channels-last")


def of(model: str, mode: Mode = "inference") -> Diagnosis:
    """The diagnosis of a model in false_alarms.py."""
    return diagnosed(f"false_alarms.{model}.{mode}")


def converted(diagnosis: Diagnosis) -> list[Conversion]:
    return [c for trial in diagnosis.trials for c in in_graphs(trial_of(diagnosis, trial.name))]


def described(conversions: Sequence[Conversion]) -> list[tuple[Any, ...]]:
    """What a failure should show of a conversion."""
    return [(c.graph, c.op, c.node, c.tensor, c.role, c.direction, c.source, c.target) for c in conversions]


def flags(diagnosis: Diagnosis) -> list[tuple[Any, ...]]:
    """Findings above a note, conversions that graphs claim, breakers and the pairs that graphs prove."""
    graphs = [graph for trial in diagnosis.trials for graph in trial.graphs]
    pairs = [p for trial in diagnosis.trials for p in trial.redundant_pairs if p.evidence == "graph"]
    return [
        *((f.code, f.configuration, f.message) for f in above_note(diagnosis)),
        *described(converted(diagnosis)),
        *((b.op, b.node, b.reason) for graph in graphs for b in graph.breakers),
        *((p.first, p.second, p.between) for p in pairs),
    ]


def large_strides(conversion: Conversion) -> tuple[list[Any], list[Any]]:
    """Strides of the dimensions larger than 1, before and after."""
    found: list[list[Any]] = []
    for layout in (conversion.source, conversion.target):
        assert layout is not None
        assert layout.stride is not None
        found.append([step for size, step in zip(layout.shape, layout.stride, strict=True) if size != 1])
    return found[0], found[1]


@pytest.mark.parametrize(
    ("model", "mode"),
    [
        ("MovesOnly", "inference"),  # 7: kernels that only move elements
        ("MovesOnlyThatKeepChannelsLast", "inference"),
        ("CopiesOfManyKinds", "training"),  # 8: bias, casts, accumulation, updates
        ("Tokens", "inference"),  # 9: flatten and transpose are views in both formats
        ("NormalizedByGroup", "inference"),  # 11: reduces with strides on channels_last
        ("SlowConvolution", "inference"),  # 12: a fallback convolution
        ("ClonesAndMutates", "inference"),  # 16: clones for aliases and mutation
    ],
)
def test_nothing_is_flagged(model: str, mode: Mode) -> None:
    assert flags(of(model, mode)) == []


# 1


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_01_dimensions_of_size_1_make_no_conversion(mode: Mode) -> None:
    diagnosis = of("SqueezeAndAttend", mode)
    found = [c for c in converted(diagnosis) if c.source is not None]
    nominal = [c for c in found if large_strides(c)[0] == large_strides(c)[1]]
    ambiguous = [c for c in found if c.source is not None and len(c.source.memory_formats) > 1]

    assert described(nominal) == []
    assert described(ambiguous) == []
    assert above_note(diagnosis) == []
    if mode == "inference":
        assert [c.module for c in found if c.role == "entry"] == ["stem"]  # a real one is seen


# 2, 3, 4


def test_02_and_03_one_conversion_in_is_a_note_and_the_way_back_to_eagers_strides_has_its_reason() -> None:
    diagnosis = diagnosed("false_alarms.TwoConvolutions.inference", "inductor")
    activations = [c for c in converted(diagnosis) if c.tensor == "activation"]

    assert [c.role for c in activations] == ["entry", "exit"]

    (exit_,) = [c for c in converted(diagnosis) if c.role == "exit"]
    trial = trial_of(diagnosis, "inductor")

    assert (exit_.direction, exit_.tensor) == ("to_contiguous", "activation")
    assert "keep_output_stride" in str(exit_.cause)
    assert trial.equivalence is not None
    assert trial.equivalence.output_layouts_differ is False


def test_04_weights_are_told_apart_from_the_activation_in_the_same_kernel_and_are_in_no_pair() -> None:
    trial = trial_of(of("TwoConvolutions"), "inductor")
    found = in_graphs(trial)
    weights = [c for c in found if c.tensor == "weight"]
    (entry,) = [c for c in found if c.role == "entry"]

    assert [(c.module, c.source and c.source.shape, c.role) for c in weights] == [
        ("a", (16, 3, 3, 3), None),
        ("b", (16, 16, 3, 3), None),
    ]
    assert weights[0].kernel == entry.kernel
    assert len({entry.value, *(c.value for c in weights)}) == 3
    assert trial.redundant_pairs == ()


# 7


def test_07_moves_keep_channels_last_and_a_copy_into_another_order_is_seen() -> None:
    assert len(trial_of(of("MovesOnly"), "inductor").graphs[0].kernel_names) >= 1
    for trial in of("MovesOnlyThatKeepChannelsLast").trials:
        assert trial.equivalence is not None
        assert {layout.memory_formats for layout in trial.equivalence.output_layouts} == {("channels_last",)}

    diagnosis = of("Transposes")

    assert [len(in_graphs(trial_of(diagnosis, name))) for name in ("eager", "inductor")] == [1, 1]


# 9


def test_09_made_contiguous_they_are_a_copy_in_the_contiguous_format_only() -> None:
    diagnosis = of("ContiguousTokens")

    assert [len(in_graphs(trial_of(diagnosis, name))) for name in FORMATS] == [1, 0, 1, 0]
    assert in_graphs(diagnosis.trials[0])[0].owner == "user"


# 10


def test_10_the_copy_of_a_sequence_for_conv1d_is_needed() -> None:
    diagnosis = of("SequenceConvolution")

    assert "which the kernel needs and eager makes too" in the_finding(diagnosis, "LD210").message
    assert all(trial.redundant_pairs == () for trial in diagnosis.trials)


# 12


def test_12_a_fallback_convolution_is_no_conversion_however_long_it_takes() -> None:
    eager = trial_of(of("SlowConvolution"), "eager")

    assert eager.kernels is not None
    assert [k.name for k in eager.kernels.kernels if k.library == "onednn"] == []  # it really is the fallback
    assert eager.kernels.conversion_count == 0


# Not in the casebook's list


def test_a_classifiers_flatten_is_no_breaker_since_nobody_converts_back() -> None:
    diagnosis = of("Classifier")

    assert len(converted(diagnosis)) == 1  # flatten does copy
    assert graph_of(trial_of(diagnosis, "eager-channels-last")).breakers == ()
