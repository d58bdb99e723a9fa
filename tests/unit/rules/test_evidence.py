from __future__ import annotations

from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_trial,
)
from trace_builders import (
    a_recorded_kernel,
    a_recorded_trial,
    a_total,
    a_trace_diagnosis,
    recorded_kernels,
    to_channels_last,
)

from layoutdoctor.diagnosis.records import Trial
from layoutdoctor.rules import evidence
from layoutdoctor.rules.times import Times

OFF, ON = "inductor-layout-opt-off", "inductor-layout-opt-on"


def same_as(name: str, other: str) -> Trial:
    return Trial(configuration=a_configuration(name), status="same_as", same_as=other)


def test_the_main_trial_is_that_of_the_baseline_or_the_only_one() -> None:
    two, recorded = a_diagnosis(a_trial("eager"), a_trial()), a_diagnosis(a_trial("recorded"))
    assert evidence.main_trial(two) is two.trials[1]
    assert evidence.main_trial(recorded) is recorded.trials[0]
    assert evidence.main_trial(a_diagnosis(a_trial("eager"), a_trial(OFF))) is None

    # A baseline that was measured under another name is that other.
    diagnosis = a_diagnosis(a_trial(ON), same_as("inductor", ON), comparison=a_comparison())
    assert evidence.main_trial(diagnosis) is diagnosis.trials[0]
    assert Times(diagnosis).is_baseline(ON)


def test_a_run_with_a_backward_in_it_is_training() -> None:
    for trial, is_training in (
        (a_recorded_trial(to_channels_last("a")), False),
        (a_recorded_trial(kernels=None), False),
        (a_recorded_trial(to_channels_last("a", tensor="gradient")), True),
        (a_recorded_trial(to_channels_last("a", op="aten::convolution_backward")), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(backward=True),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel("sm80_xmma_dgrad_nhwc"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(op="ReluBackward0"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(kernels=(a_recorded_kernel(),))), False),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("cudnn::bn_bw_1C11_kernel_new"),))), True),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("aten::conv2d", kind="operation"),))), False),
        (a_recorded_trial(kernels=recorded_kernels(totals=(a_total("MyBackwardModule", kind="module"),))), False),
    ):
        assert evidence.is_training(a_trace_diagnosis(trial), trial) is is_training
