"""Which configurations are made of those that were timed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from builders import a_decision, a_graph, a_placeholder, an_environment, contiguous
from fake_workers import a_worker
from recorded_builders import Recorder

from layoutdoctor.diagnosis.configurations import BY_NAME, name_without_cures
from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.subject import Cure, InputTensor
from layoutdoctor.diagnosis.trial import Equivalence, Failure
from layoutdoctor.recording.recording import Iteration
from layoutdoctor.run.deriving import (
    MATRIX_PRODUCT_RULE,
    cures_together,
    in_both_directions,
    in_eager_mode,
    in_other_sizes,
    on_a_gpu,
    single_cures,
    with_cures,
    with_switch,
)
from layoutdoctor.workers.messages import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.workers.worker import Worker

DIFFERENT = Equivalence(status="different")
BROKEN = {"status": "failed", "failure": Failure(kind="run", message="view")}
WITH_CUDNN = an_environment(cudnn="9.1", settings={"torch.backends.cudnn.benchmark": "False"})


def a_proposal(name: str, bytes_moved: int = 1) -> Proposal:
    return Proposal(cure=Cure(name=name), bytes_moved=bytes_moved)


def worker(configuration: str | Configuration, *proposals: Proposal, **facts: Any) -> Worker:
    known = BY_NAME[configuration] if isinstance(configuration, str) else configuration
    made = a_worker(known, **facts)
    made.proposals = proposals
    return made


def names(configurations: Sequence[Configuration]) -> list[str]:
    return [configuration.name for configuration in configurations]


def test_layout_optimization_is_forced_where_the_default_has_it_in_the_forward_alone() -> None:
    on, uncounted = a_decision(applied=True), a_decision(applied=False, rule="only-backward-convolutions")

    def chosen(name: str, *others: str, is_left_out: bool = True) -> list[str]:
        forward, backward = a_graph(direction="forward", decision=on), a_graph(direction="backward", decision=uncounted)
        made = worker(name, graphs=(forward, backward) if is_left_out else (forward,))
        return names(in_both_directions([worker("eager"), made, *map(worker, others)]))

    forced = "inductor-layout-opt-forced"
    assert chosen("inductor") == [forced]
    assert chosen("inductor", forced) == chosen("inductor", is_left_out=False) == []
    assert chosen("inductor-channels-last") == []


def test_eager_mode_is_tried_in_the_formats_of_what_lowered_no_graph() -> None:
    def chosen(*others: str, **facts: Any) -> list[str]:
        made = [worker(name, **facts) for name in ("inductor", "inductor-channels-last-freezing")]
        return names(in_eager_mode([*made, *map(worker, others)]))

    assert chosen(ran_as_eager=True) == ["eager", "eager-channels-last"]
    assert chosen("eager", ran_as_eager=True) == ["eager-channels-last"]
    assert chosen(notes=("something else",)) == chosen(ran_as_eager=True, **BROKEN) == []


def test_the_default_is_lowered_for_the_other_kind_of_sizes() -> None:
    image = {"shape": (2, 3), "stride": (3, 1), "dtype": "float32", "memory_formats": ()}
    inputs = (InputTensor(**image, symbolic=(0,)),)
    layouts = {"inductor+symbolic-sizes": contiguous((2, 3)), "inductor+static-sizes": Layout(("s7", 3), (3, 1), ())}
    for name, layout in layouts.items():
        made = [worker("inductor", graphs=(a_graph(nodes=(a_placeholder("x", layout),)),))]
        (other,) = in_other_sizes(made, inputs)
        assert (other.name, other.dynamic) == (name, "symbolic" in name)
        assert in_other_sizes(made, (InputTensor(**image),)) == in_other_sizes([worker("eager")], inputs) == ()


def test_the_fastest_gets_each_cure_that_was_proposed_for_it_the_dearest_first() -> None:
    proposals = [a_proposal("a", 1), a_proposal("b", 9), a_proposal("c", 5), a_proposal("d", 7)]
    workers = [worker("inductor"), worker("eager", a_proposal("z")), worker("inductor-layout-opt-on", *proposals)]

    chosen = single_cures(workers, {"inductor": 1.0, "eager": 0.5, "inductor-layout-opt-on": 1.1})

    assert names(chosen) == [f"inductor-layout-opt-on+{name}" for name in "bdc"]
    assert [configuration.cures[0].name for configuration in chosen] == ["b", "d", "c"]
    assert {configuration.layout_optimization for configuration in chosen} == {"on"}


def test_the_fastest_that_loses_its_format_is_tried_with_what_keeps_it_unless_the_best_does() -> None:
    keeping = Proposal(cure=Cure(name="keep", answers="LD104"), bytes_moved=1)
    medians = {"inductor": 1.0, "eager": 0.4, "inductor-channels-last": 0.9, "eager-channels-last": 0.8}
    workers = [worker(name) for name in ("inductor", "eager")]
    losing = [worker(name, keeping, a_proposal("z", 0)) for name in ("eager-channels-last", "inductor-channels-last")]

    assert names(single_cures([*workers, *losing], medians)) == ["inductor-channels-last+keep"]
    best = {**medians, "inductor-channels-last": 1.1}
    chosen = names(single_cures([*workers, *losing], best))
    assert chosen == ["inductor-channels-last+keep", "inductor-channels-last+z"]


def test_what_a_cure_gains_without_frozen_weights_is_tried_as_well() -> None:
    names_of = ("inductor", "inductor-freezing", "eager")
    workers = [worker(name, a_proposal("a", 2), a_proposal("b", 1)) for name in names_of]
    medians = {"inductor": 1.0, "inductor-freezing": 1.3, "eager": 0.7}

    frozen = ["inductor-freezing+a", "inductor-freezing+b"]
    assert names(single_cures(workers, medians)) == [*frozen, "inductor+a"]
    assert names(single_cures([worker("inductor"), *workers[1:]], medians)) == frozen
    cured = [with_cures(BY_NAME[name], (Cure(name="a"),)) for name in names_of[:2]]
    gains = {**medians, "inductor+a": 1.5, "inductor-freezing+a": 1.6}
    assert cures_together([*workers, *map(worker, cured)], gains) == ()


def test_what_is_wrong_or_did_not_run_is_no_base() -> None:
    workers = [
        worker("eager", a_proposal("a")),
        worker("inductor", a_proposal("a"), equivalence=DIFFERENT),
        worker("inductor-layout-opt-off", a_proposal("a"), status="same_as", same_as="inductor"),
        worker("inductor-channels-last", a_proposal("a")),  # was not timed
    ]

    assert names(single_cures(workers, {"eager": 0.5, "inductor": 1.0, "inductor-layout-opt-off": 2.0})) == ["eager+a"]


def test_what_failed_is_tried_with_what_mends_it_compiled_as_the_best_is() -> None:
    workers = [
        worker("eager"),
        worker("eager-channels-last", a_proposal("mend"), **BROKEN),
        worker("inductor", a_proposal("a")),
        worker("inductor-channels-last", a_proposal("mend"), **BROKEN),
        worker("inductor-layout-opt-off", **BROKEN),
    ]

    assert names(single_cures(workers, {"eager": 0.5, "inductor": 1.0})) == [
        "inductor+a",
        "inductor-channels-last+mend",
    ]
    assert names(single_cures(workers, {"eager": 2.0, "inductor": 1.0})) == ["eager-channels-last+mend"]


@pytest.mark.parametrize(
    ("medians", "together"),
    [
        ({"inductor+a": 1.1, "inductor+b": 1.2}, ["inductor+b+a"]),
        ({"inductor+a": 1.1, "inductor+b": 0.9}, []),
        ({"inductor+a": 1.0, "inductor+b": 1.0}, []),
        ({"inductor+a": 1.1}, []),
    ],
)
def test_all_that_help_are_tried_together(medians: dict[str, float], together: list[str]) -> None:
    cured = [with_cures(BY_NAME["inductor"], (Cure(name=name),)) for name in "ab"]
    workers = [worker("inductor"), *map(worker, cured)]

    chosen = cures_together(workers, {"inductor": 1.0, **medians})

    assert names(chosen) == together
    assert all(name_without_cures(configuration) == "inductor" for configuration in chosen)
    assert all(name_without_cures(with_switch(configuration)) == "inductor" for configuration in chosen)


# ---------------------------------------------------------------------------------------------- on a GPU
def a_gpu_worker(name: str, busy_seconds: float | None) -> Worker:
    """Profiled, with one kernel of so many seconds in a call."""
    made = a_worker(BY_NAME[name], call_seconds=1.0)
    if busy_seconds is not None:
        recorder = Recorder()
        with recorder.operation("aten::relu"):
            recorder.kernel("k", takes=round(busy_seconds * 1e9))
        made.iterations = (Iteration(events=recorder.trace(), device="cuda"),)
    made.was_profiled = True
    return made


MEDIANS = {"eager": 1.3, "inductor": 1.0, "inductor-channels-last": 1.2}


def test_the_best_two_are_tried_under_cudnns_own_timing() -> None:
    workers = [a_gpu_worker(name, 1.0) for name in MEDIANS]

    chosen = on_a_gpu(workers, MEDIANS, WITH_CUDNN, tries_all=False)

    assert names(chosen) == ["eager+cudnn-benchmark", "inductor-channels-last+cudnn-benchmark"]
    assert [configuration.library_switches for configuration in chosen] == [{"cudnn.benchmark": True}] * 2
    switched_on = an_environment(cudnn="9.1", settings={"torch.backends.cudnn.benchmark": "True"})
    for environment in (switched_on, an_environment()):
        assert on_a_gpu(workers, MEDIANS, environment, tries_all=False) == ()


def test_what_waits_for_launches_is_tried_with_cuda_graphs() -> None:
    def chosen(busy_seconds: float | None) -> list[str]:
        workers = [
            a_gpu_worker("eager", 0.1),
            a_gpu_worker("inductor", 1.0),
            a_gpu_worker("inductor-channels-last", busy_seconds),
        ]
        return names(on_a_gpu(workers, MEDIANS, an_environment(), tries_all=False))

    assert chosen(0.7) == ["inductor-channels-last+cudagraphs"]
    assert chosen(0.9) == chosen(None) == []


def test_max_autotune_is_tried_where_all_is_asked_for() -> None:
    (chosen,) = on_a_gpu([a_gpu_worker(name, 1.0) for name in MEDIANS], MEDIANS, an_environment(), tries_all=True)

    assert chosen.name == "inductor-channels-last+max-autotune"
    assert chosen.inductor_options == {"max_autotune": True}


def test_a_cure_that_cannot_gain_two_percent_is_not_compiled() -> None:
    cures = [Cure(name=name) for name in ("without-contiguous", "flat-conv3d")]
    known = worker("inductor", *(Proposal(cure=cure, bytes_moved=1_000_000) for cure in cures), call_seconds=1.0)

    assert names(single_cures([known], {"inductor": 1.0}, 1e9)) == ["inductor+flat-conv3d"]  # 8 ms of 1 s at most
    assert len(single_cures([known], {"inductor": 1.0})) == 2  # how fast copies are is not known


def test_a_quick_diagnosis_tries_only_the_cure_for_convolutions_that_are_matrix_products() -> None:
    cures = [Cure(name="keep", answers="LD104"), Cure(name="matrix-product", answers=MATRIX_PRODUCT_RULE)]
    known = worker("inductor", *(Proposal(cure=cure, bytes_moved=9 - number) for number, cure in enumerate(cures)))

    assert names(single_cures([known], {"inductor": 1.0}, answers=(MATRIX_PRODUCT_RULE,))) == [
        "inductor+matrix-product"
    ]
    assert names(single_cures([known], {"inductor": 1.0}, answers=())) == []
