"""
Counts that must be exact: every oneDNN reorder of the casebook's models, against a count of the log's own lines.

The figures are those of a machine with AVX-512, where oneDNN blocks by 16. That a fresh run has as many, and that a log
nobody of layoutdoctor reads has as many, is what tests/compile/test_fresh_recordings.py proves.
"""

from __future__ import annotations

import pytest
from kept_recordings import REORDERS, diagnosed, kept, reorders, trial_of

CHAIN = "01_conv_chain_layout_opt.inference"


@pytest.mark.parametrize(("name", "configuration", "count"), REORDERS)
def test_every_reorder_is_recorded(name: str, configuration: str, count: int) -> None:
    trial = trial_of(diagnosed(name), configuration)
    (log,) = [i.log for recording in kept(name) if recording.name == trial.name for i in recording.iterations]
    found = reorders(diagnosed(name), configuration)

    assert "AVX-512" in str(diagnosed(name).environment.onednn_isa)
    assert log is not None
    assert (log.not_understood, log.other_lines) == ([], [])
    assert len(found) == sum(primitive.kind == "reorder" for primitive in log.primitives) == count
    assert trial.kernels is not None
    assert trial.kernels.not_understood_count == 0
    assert trial.kernels.lacks == ()
    assert all(c.node is not None and c.location is not None and c.module is not None for c in found)


def test_the_conv_chain_has_seven_activation_and_four_weight_reorders_without_layout_optimization() -> None:
    tensors = [c.tensor for c in reorders(diagnosed(CHAIN), "inductor-layout-opt-off")]

    assert (tensors.count("activation"), tensors.count("weight")) == (7, 4)


def test_the_conv_chain_has_three_round_trips_without_layout_optimization_and_none_with_it() -> None:
    names = ("inductor-layout-opt-off", "eager", "inductor", "inductor-channels-last")

    assert [len(trial_of(diagnosed(CHAIN), name).redundant_pairs) for name in names] == [3, 3, 0, 0]


def test_the_round_trips_of_the_conv_chain_name_both_conversions_the_operations_and_the_place() -> None:
    pair = trial_of(diagnosed(CHAIN), "eager").redundant_pairs[0]

    assert (pair.kind, pair.between) == ("through", ("aten.native_batch_norm.default", "aten.relu.default"))
    assert (pair.module, pair.tensor_shape) == ("body.1.0", (4, 64, 56, 56))
    assert pair.bytes_moved == 4 * (4 * 64 * 56 * 56 * 4)  # two conversions, each read and written once, 4 bytes each
