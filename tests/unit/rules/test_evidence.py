from __future__ import annotations

from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    kernels,
)
from trace_builders import (
    a_recorded_kernel,
    a_recorded_trial,
    a_total,
    a_trace_diagnosis,
    recorded_kernels,
    to_channels_last,
)

from layoutdoctor.diagnosis.records import Equivalence, Trial
from layoutdoctor.rules import evidence

LAST, OFF, ON = "inductor-channels-last", "inductor-layout-opt-off", "inductor-layout-opt-on"


def same_as(name: str, other: str) -> Trial:
    return Trial(configuration=a_configuration(name), status="same_as", same_as=other)


def test_which_facts_it_gives() -> None:
    # The main trial is the comparisons baseline.
    diagnosis = a_diagnosis(a_trial(), a_trial("eager"), comparison=a_comparison(baseline="eager"))
    assert evidence.main_trial(diagnosis) is diagnosis.trials[1]

    # Without a comparison the main trial is torch compiles default or the only one.
    two = a_diagnosis(a_trial("eager"), a_trial())
    recorded = a_diagnosis(a_trial("recorded"))
    assert evidence.main_trial(two) is two.trials[1]
    assert evidence.main_trial(recorded) is recorded.trials[0]
    assert evidence.main_trial(a_diagnosis(a_trial("eager"), a_trial(OFF))) is None

    # The main trial of a baseline measured under another name is that other.
    diagnosis = a_diagnosis(a_trial(ON), same_as("inductor", ON), comparison=a_comparison())
    assert evidence.main_trial(diagnosis) is diagnosis.trials[0]
    assert evidence.is_baseline(diagnosis, ON)

    # The ratio of a configuration is that of the trial it is the same as.
    ratio = a_ratio(OFF, 1.1)
    diagnosis = a_diagnosis(a_trial(), a_trial(OFF), same_as(LAST, OFF), comparison=a_comparison(ratio))
    assert evidence.ratio_of(diagnosis, LAST) == ratio
    assert evidence.ratio_of(diagnosis, "inductor") is None
    assert evidence.ratio_of(diagnosis, "eager") is None

    # Kernels without time have no shares.
    assert evidence.share_of_kernels(a_trial(kernels=kernels(seconds=1.0, share=0.0)), 0.25) == 0.25
    assert evidence.share_of_kernels(a_trial(kernels=None), 0.25) is None
    assert evidence.share_of_kernels(a_trial(), None) is None

    # The recommended alternative is preferred to a faster one.
    comparison = a_comparison(a_ratio(OFF, 1.2), a_ratio(LAST, 1.4))
    trials = (a_trial(), a_trial(OFF), a_trial(LAST))

    def best(**changes: object) -> str | None:
        diagnosis = a_diagnosis(*trials, comparison=comparison, **changes)
        found = evidence.clean_alternative(diagnosis, trials[0], lambda trial: True)
        return found.name if found is not None else None

    assert best() == LAST
    assert best(recommendation=a_recommendation(OFF)) == OFF

    # Of two others the one whose interval lies below is no alternative.
    slow, fast = a_trial(OFF), a_trial(LAST)
    diagnosis = a_diagnosis(slow, fast, comparison=a_comparison(a_ratio(OFF, 0.9), a_ratio(LAST, 1.1)))
    assert evidence.clean_alternative(diagnosis, slow, lambda trial: True) is fast
    assert evidence.clean_alternative(diagnosis, fast, lambda trial: True) is None

    # A baseline not compared with the trial is no alternative.
    diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison())
    assert evidence.clean_alternative(diagnosis, diagnosis.trials[1], lambda trial: True) is None

    # A trial recorded elsewhere is one where nothing else was tried.
    diagnosis = a_trace_diagnosis()
    assert list(evidence.trace_trials(diagnosis)) == [diagnosis.trials[0]]
    assert list(evidence.trace_trials(a_diagnosis())) == []

    # Without a trace the mode says whether it is training.
    diagnosis = a_diagnosis(subject=a_subject(mode="training"))
    assert evidence.is_training(diagnosis, diagnosis.trials[0])
    assert not evidence.is_training(a_diagnosis(), a_trial(kernels=kernels(to_channels_last("a", tensor="gradient"))))

    # What is not known to be free of the trouble is no alternative.
    for other in (
        a_trial(LAST, kernels=None),
        a_trial(LAST, equivalence=Equivalence(status="different")),
        a_failed_trial(LAST),
        same_as(LAST, "inductor"),
    ):
        diagnosis = a_diagnosis(a_trial(), other, comparison=a_comparison(a_ratio(LAST, 1.4)))
        assert evidence.clean_alternative(diagnosis, diagnosis.trials[0], lambda trial: True) is None

    # An alternative is at least not measurably slower.
    for median, is_offered in ((1.4, True), (1.0, True), (0.9, False)):
        diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(a_ratio(LAST, median)))
        found = evidence.clean_alternative(diagnosis, diagnosis.trials[0], lambda trial: True)
        assert (found is not None) == is_offered

    # A run with a backward in it is training.
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


def test_how_severe_it_is() -> None:
    # Only a share known to be small is a note.
    for share, severity in ((None, "warning"), (0.02, "warning"), (0.0199, "note")):
        assert evidence.severity_of_share(share) == severity

    # A cost without a measured share is a note.
    assert evidence.severity_of_cost(a_trial(), 3e-3) == "warning"
    assert evidence.severity_of_cost(a_trial(), 1e-4) == "note"
    assert evidence.severity_of_cost(a_trial(), None) == "note"
    assert evidence.severity_of_cost(a_trial(is_static=True), 3e-3) == "note"
