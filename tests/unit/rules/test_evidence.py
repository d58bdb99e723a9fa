from __future__ import annotations

from builders import (
    a_comparison,
    a_configuration,
    a_diagnosis,
    a_failed_trial,
    a_graph,
    a_ratio,
    a_recommendation,
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

from layoutdoctor.diagnosis.records import NO_DIFFERENCE, Equivalence, Trial
from layoutdoctor.rules import evidence
from layoutdoctor.rules.advice import advised

LAST, OFF, ON = "inductor-channels-last", "inductor-layout-opt-off", "inductor-layout-opt-on"


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
    assert evidence.is_baseline(diagnosis, ON)


def alternative(*trials: Trial, **changes: object) -> str | None:
    """Of the first of some trials."""
    found = evidence.clean_alternative(a_diagnosis(*trials, **changes), trials[0], lambda trial: True)
    return found.name if found is not None else None


def test_an_alternative_is_free_of_the_trouble_and_not_measurably_slower() -> None:
    trials, ratios = (a_trial(), a_trial(OFF), a_trial(LAST)), a_comparison(a_ratio(OFF, 1.2), a_ratio(LAST, 1.4))
    assert alternative(*trials, comparison=ratios) == LAST
    assert alternative(*trials, comparison=ratios, recommendation=a_recommendation(OFF)) == OFF
    for median, found in ((1.4, LAST), (1.0, LAST), (0.9, None)):
        assert alternative(a_trial(), a_trial(LAST), comparison=a_comparison(a_ratio(LAST, median))) == found

    # Of one that was recorded in part it is not known.
    for part in (
        {"kernels": None},
        {"kernels": kernels(count=0, seconds=0.0)},
        {"kernels": kernels(lacks=("oneDNN's log",), sources=("torch.profiler",))},
        {"graphs": (a_graph(hook_failure="the graph could not be read"),)},
    ):
        assert alternative(a_trial(), a_trial(LAST, **part), comparison=a_comparison(a_ratio(LAST, 1.4))) is None

    # What neither has tells them not apart.
    partly = {"kernels": kernels(lacks=("2 kernels may convert a layout",))}
    assert alternative(a_trial(**partly), a_trial(LAST, **partly), comparison=a_comparison(a_ratio(LAST, 1.4))) == LAST

    # What noise leaves undecided is none where it looks far slower.
    for median, found in ((0.28, None), (0.98, LAST)):
        unclear = a_ratio(LAST, median, low=0.04, high=21.0, verdict=NO_DIFFERENCE)
        assert alternative(a_trial(), a_trial(LAST), comparison=a_comparison(unclear)) == found

    unclear = a_ratio(LAST, 0.98, low=0.91, high=1.07, verdict=NO_DIFFERENCE, decided=False)
    diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(unclear))
    assert evidence.alternative_words(diagnosis, *diagnosis.trials) == (
        "the times are too noisy to tell what it brings: 0.98x the speed of inductor (0.91 to 1.07)"
    )
    noise = a_ratio(LAST, 0.98, low=0.25, high=9.1, verdict=NO_DIFFERENCE, decided=False)
    diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(noise))
    told = evidence.alternative_words(diagnosis, *diagnosis.trials)
    assert told == "the times are too noisy to tell what it brings"
    told = evidence.alternative_words(diagnosis, *reversed(diagnosis.trials))
    assert told == f"the times of {LAST} are too noisy to tell how fast it is"

    # One round is no measurement: nothing follows from its ratio.
    one_round = a_ratio(LAST, 0.17, low=0.17, high=0.17, verdict=NO_DIFFERENCE, coverage=None, round_count=1)
    diagnosis = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(one_round))
    assert evidence.ratio_of(diagnosis, LAST) is None
    assert advised(diagnosis, diagnosis.trials[0], (LAST,), "give it channels_last") == "give it channels_last"
    for trial in diagnosis.trials:  # so neither pays for its trouble
        assert not evidence.is_worth_it(diagnosis, trial, lambda other: True)
    slower = a_diagnosis(a_trial(), a_trial(LAST), comparison=a_comparison(a_ratio(LAST, 0.5)))
    assert evidence.is_worth_it(slower, slower.trials[0], lambda other: True)

    # Of two others the one whose interval lies below is none, nor is one that was compared with nothing.
    apart = a_comparison(a_ratio(OFF, 0.9), a_ratio(LAST, 1.1))
    assert alternative(a_trial(OFF), a_trial(LAST), comparison=apart) == LAST
    assert alternative(a_trial(LAST), a_trial(OFF), comparison=apart) is None
    assert alternative(a_trial(LAST), a_trial(), comparison=a_comparison()) is None

    for other in (
        a_trial(LAST, kernels=None),
        a_trial(LAST, equivalence=Equivalence(status="different")),
        a_failed_trial(LAST),
        same_as(LAST, "inductor"),
    ):
        assert alternative(a_trial(), other, comparison=a_comparison(a_ratio(LAST, 1.4))) is None


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
