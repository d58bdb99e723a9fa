"""The cures compiled: tried on the configuration that shows them, equal in outputs and gradients, lines as pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from cured_models import CASES, Case
from live_trials import requested

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.examination.advice.applying import ModelCall, how_to_apply
from layoutdoctor.run import deriving
from layoutdoctor.run.deriving import with_switch
from layoutdoctor.workers.messages import Request

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Mode

pytestmark = pytest.mark.compile

# The convolutions' own dtype under autocast is bfloat16, with eight bits.
TOLERANCES = {"autocast-dtype": 3e-2}
FLAT, *OTHERS = CASES


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        pytest.param(FLAT, "inference", marks=pytest.mark.smoke),
        (FLAT, "training"),
        *((case, "inference") for case in OTHERS),
    ],
    ids=lambda value: getattr(value, "cure", value),
)
def test_a_cure_compiles_computes_the_same_and_is_what_its_lines_say(
    monkeypatch: pytest.MonkeyPatch, case: Case, mode: Mode
) -> None:
    monkeypatch.setattr(deriving, "can_pay", lambda *given: True)  # the models are too small for any gain
    torch.compiler.reset()  # of what a case before compiled; with another shape the sizes would be symbolic
    torch.manual_seed(0)
    base = case.configuration.replace("eager", "inductor")
    names = f"eager,{base}" if case.cure == "view-as-reshape" else base  # something has to run
    model, x = case.model().train(mode == "training"), torch.randn(case.shape)
    request = Request(mode=mode, configurations=choose_configurations(names), derives="all", budget_seconds=0.1)

    trials = {trial.name: trial for trial in requested(model, x, request).trials}

    # In training the default may be beside one that has layout optimization backward too: the better is cured.
    (cured,) = (one for one in trials.values() if [cure.name for cure in one.configuration.cures] == [case.cure])
    base = cured.name.removesuffix(f"+{case.cure}")
    assert (cured.status, cured.failure) == ("ok", None)
    assert cured.measurement is not None
    assert cured.equivalence is not None
    assert cured.equivalence.status == "equal"
    assert cured.equivalence.gradients_checked == (mode == "training")
    targets = [node.target for graph in cured.graphs for node in graph.nodes]
    assert targets != [node.target for graph in trials[base].graphs for node in graph.nodes]
    expected = model(x).detach()
    scope: dict[str, Any] = {"torch": torch, "model": model, "x": x}
    rank = len(case.shape)
    exec(how_to_apply(cured.configuration, frozenset({rank}), ModelCall("model(x)", {"x": rank})), scope)
    found = scope["model"](scope["x"]).detach()
    tolerance = TOLERANCES.get(case.cure, 1e-4)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_a_configuration_under_a_switch_is_compiled_trained_and_timed_beside_its_twin() -> None:
    (base,) = choose_configurations("inductor")
    request = Request(mode="training", configurations=(base, with_switch(base)), budget_seconds=0.1)

    plain, switched = requested(FLAT.model(), torch.randn(FLAT.shape), request).trials

    assert [plain.status, switched.status] == ["ok", "ok"]  # the code is the same, the libraries' are not
    assert switched.measurement is not None
    assert switched.equivalence is not None
    assert switched.equivalence.status == "equal"
    assert len(switched.graphs) == len(plain.graphs)
