"""The cures, in eager: which models they fit, that outputs and gradients stay, and that the lines do the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from builders import a_graph, a_node
from cured_models import CASES, Autocast, Case, Contiguous, Flat, Usual, Volume
from live_trials import seen_here
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from layoutdoctor import subjects
from layoutdoctor.capture.eager_graph import record_eager_iteration
from layoutdoctor.diagnosis.configurations import BY_NAME
from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.errors import UsageError
from layoutdoctor.run.deriving import with_cures
from layoutdoctor.subjects.cures import ALL_CURES, KnownCure, Seen, propose
from layoutdoctor.subjects.prepare import compile_for
from layoutdoctor.workers.messages import Proposal

if TYPE_CHECKING:
    from layoutdoctor.diagnosis.subject import Configuration, Mode
    from layoutdoctor.diagnosis.trial import Trial


def run(
    model: Any, x: torch.Tensor, configuration: Configuration, mode: Mode = "inference"
) -> tuple[Trial, tuple[Proposal, ...]]:
    """The trial of one configuration, and the cures that it speaks for."""
    return seen_here(model, x, configuration, mode)[1:]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.cure)
def tried(request: pytest.FixtureRequest) -> tuple[Case, nn.Module, torch.Tensor, Configuration]:
    """A case's model and input, and its configuration with the cure that was proposed for it."""
    case: Case = request.param
    torch.manual_seed(0)
    model, x = case.model().eval(), torch.randn(case.shape)
    _, proposals = run(model, x, BY_NAME[case.configuration])
    assert {p.cure.name for p in proposals} == {case.cure, *case.beside}
    own = next(proposal for proposal in proposals if proposal.cure.name == case.cure)
    assert own.cure.modules == case.modules
    assert own.bytes_moved > 0 or case.cure == "view-as-reshape"
    return case, model, x, with_cures(BY_NAME[case.configuration], (own.cure,))


def test_a_cure_leaves_outputs_and_names_as_they_are(tried: Any) -> None:
    case, model, x, configuration = tried
    names = [name for name, _ in model.named_parameters()]

    trial, proposals = run(model, x, configuration)

    assert configuration.name == f"{case.configuration}+{case.cure}"
    assert (trial.status, trial.failure) == ("ok", None)
    assert trial.equivalence is not None
    assert trial.equivalence.status == "equal"
    assert proposals == ()
    assert [name for name, _ in model.named_parameters()] == names
    assert type(model) is case.model
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("model", "shape", "mode"),
    [
        (Usual, (2, 4, 8, 8), "inference"),
        (Usual, (2, 4, 8, 8), "training"),
        (Volume, (2, 4, 3, 8, 8), "inference"),
        (Contiguous, (2, 4, 8, 8), "inference"),  # its result is contiguous already
        (Autocast, (2, 4, 8, 8), "training"),  # its float32 weights are what autocast is for
    ],
)
def test_a_model_that_no_cure_fits_is_left_alone(model: Any, shape: Any, mode: Mode) -> None:
    trial, proposals = run(model(), torch.randn(shape), BY_NAME["eager"], mode)

    assert trial.status == "ok"
    assert proposals == ()


def test_a_model_that_is_one_flat_convolution_is_cured_itself() -> None:
    model, x = nn.Conv3d(4, 4, (1, 3, 3), padding="same"), torch.randn(2, 4, 3, 8, 8)
    _, proposals = run(model, x, BY_NAME["eager"])
    ready = compile_for(model, with_cures(BY_NAME["eager"], (proposals[0].cure,)))

    assert type(ready.module).__name__ == "FlatConv3d"
    assert type(model) is nn.Conv3d
    torch.testing.assert_close(ready(x), model(x))
    torch.testing.assert_close(ready(x[0]), model(x[0]))  # without a batch
    assert ready.module.state_dict().keys() == model.state_dict().keys()


class Named(nn.Conv3d):
    """A subclass that computes the same."""


class Doubled(nn.Conv3d):
    """A subclass with a forward of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


FLAT = ("flat-conv3d", (2, 4, 5, 8, 9))
PRODUCT = "matrix-product"
BY_CURE = [
    (nn.Conv3d(4, 6, (1, 3, 3), groups=2, dilation=(2, 2, 1), bias=False), *FLAT),
    (nn.Conv3d(4, 6, (1, 3, 3), stride=(3, 1, 2), padding=(0, 1, 2), padding_mode="reflect"), *FLAT),
    (nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 0, 1), padding_mode="replicate"), *FLAT),
    (nn.Conv3d(4, 6, (1, 3, 3), padding=(0, 1, 1), padding_mode="circular", groups=2), *FLAT),
    (nn.Conv3d(4, 6, (1, 3, 3), padding="same", dilation=(1, 2, 2)), *FLAT),
    (nn.Conv3d(4, 6, (1, 3, 3), padding="valid", stride=(2, 1, 1)), *FLAT),
    (Named(4, 6, (1, 3, 3)), *FLAT),
    (Doubled(4, 6, (1, 3, 3)), None, FLAT[1]),
    (nn.Conv3d(4, 6, (1, 3, 3), padding=(1, 1, 1)), None, FLAT[1]),
    (nn.Conv3d(4, 6, (1, 3, 3), padding="same", padding_mode="circular"), None, FLAT[1]),
    (nn.Conv3d(4, 6, (2, 4, 3), stride=(2, 4, 3)), PRODUCT, (2, 4, 4, 8, 9)),
    (nn.Conv3d(4, 6, (1, 4, 3), stride=(1, 4, 3), bias=False), PRODUCT, (2, 4, 4, 8, 9)),
    (nn.Conv2d(3, 6, 7), PRODUCT, (2, 3, 7, 7)),
    (nn.Conv2d(8, 6, 1, padding="same", dilation=2), PRODUCT, (2, 8, 1, 1)),
    (nn.Conv1d(5, 6, 10, 10, padding="valid"), PRODUCT, (2, 5, 40)),
    (weight_norm(nn.Conv2d(3, 6, 4, 4)), PRODUCT, (2, 3, 8, 8)),
    (nn.Conv2d(4, 6, 4, 4, groups=2), None, (2, 4, 8, 8)),
    (nn.Conv2d(4, 6, 4, 4), None, (2, 4, 9, 8)),
    (nn.Conv2d(4, 6, 4, 4, padding=2), None, (2, 4, 8, 8)),
    (nn.Conv2d(4, 6, 2, 2, dilation=2), None, (2, 4, 8, 8)),
    (nn.Conv2d(4, 6, 3, padding="same"), None, (2, 4, 3, 3)),
    (nn.Conv2d(4, 6, 1), None, (2, 4, 8, 8)),
]


@pytest.mark.parametrize(("conv", "cure", "shape"), BY_CURE, ids=lambda value: str(value).replace(" ", ""))
def test_a_convolution_is_cured_in_both_formats_outputs_and_gradients_equal(conv: Any, cure: Any, shape: Any) -> None:
    model, x = nn.Sequential(conv), torch.randn(shape)
    graph = record_eager_iteration(lambda: model(x), model, lambda: ())
    proposals = propose(Seen(model, (graph,), "training"))
    assert [(one.cure.name, one.cure.modules) for one in proposals] == ([(cure, ("0",))] if cure else [])

    for name in ("eager", "eager-channels-last") if cure else ():
        plain = compile_for(model, BY_NAME[name])
        cured = compile_for(model, with_cures(BY_NAME[name], (proposals[0].cure,)))
        inputs = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, found = plain(inputs[0]), cured(inputs[1])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        for output in (expected, found):
            output.square().sum().backward()
        assert type(cured.module[0]).__mro__[1] is type(conv)
        assert list(cured.module.state_dict()) == list(model.state_dict())
        pairs = zip((inputs[1], *cured.module.parameters()), (inputs[0], *plain.module.parameters()), strict=True)
        for own, other in pairs:
            torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-3)


def test_another_image_and_one_without_a_batch_run_as_before() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 6, 4, stride=4)), torch.randn(1, 3, 8, 8)
    graph = record_eager_iteration(lambda: model(x), model, lambda: ())
    cured = compile_for(model, with_cures(BY_NAME["eager"], (propose(Seen(model, (graph,), "inference"))[0].cure,)))

    for other in (torch.randn(2, 3, 9, 11), torch.randn(3, 8, 8)):
        torch.testing.assert_close(cured(other), model(other))


@pytest.mark.parametrize(
    ("cure", "message"),
    [
        (Cure(name="leeches"), "cannot apply the cure 'leeches' of 'eager\\+leeches': expected one of autocast-dtype"),
        (Cure(name="flat-conv3d", modules=("stem",)), "it has no module 'stem'; give the model that was diagnosed"),
    ],
)
def test_a_cure_of_another_model_or_version_is_refused(cure: Cure, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compile_for(Flat(), with_cures(BY_NAME["eager"], (cure,)))


def test_a_cure_that_breaks_the_model_costs_its_trial_and_one_that_computes_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = {
        "double": "model.register_forward_hook(lambda module, inputs, output: 2 * output)",
        "refuse": "model.register_forward_pre_hook(lambda module, inputs: 1 / 0)",
    }
    cures = [
        KnownCure(name, lambda seen, name=name: Proposal(cure=Cure(name=name)), lines, "LD101")
        for name, lines in bad.items()
    ]
    monkeypatch.setattr(subjects.cures, "ALL_CURES", (*cures, *ALL_CURES))
    model, x = Flat().eval(), torch.randn(2, 4, 3, 8, 8)

    _, proposals = run(model, x, BY_NAME["eager"])
    doubled, _ = run(model, x, with_cures(BY_NAME["eager"], (Cure(name="double"),)))
    refused, _ = run(model, x, with_cures(BY_NAME["eager"], (Cure(name="refuse"),)))

    assert [proposal.cure.name for proposal in proposals] == ["double", "refuse", "flat-conv3d"]
    assert doubled.equivalence is not None
    assert (doubled.status, doubled.equivalence.status) == ("ok", "different")
    assert refused.failure is not None
    assert refused.failure.message == "ZeroDivisionError: division by zero"


def test_each_cure_has_a_case_and_lines() -> None:
    assert sorted(case.cure for case in CASES) == sorted(cure.name for cure in ALL_CURES)


def test_many_modules_stand_one_a_line() -> None:
    model = nn.Sequential(*(nn.Conv3d(2, 2, (1, 3, 3), padding=(0, 1, 1)) for _ in range(40)))
    _, proposals = run(model, torch.randn(1, 2, 2, 4, 4), BY_NAME["eager"])

    lines = proposals[0].cure.how.splitlines()

    assert '    "39",' in lines
    assert max(map(len, lines)) < 110
    assert msgspec.json.decode(msgspec.json.encode(proposals[0].cure), type=Cure) == proposals[0].cure


def test_a_saved_activation_of_a_backward_graph_is_no_convolution() -> None:
    layout = strided_layout((2, 6, 3, 4, 4), (288, 48, 16, 4, 1))
    saved = a_node("convolution", "convolution", op="placeholder", module="frames", layout=layout)
    read = a_node("relu", "aten.relu.default", ("convolution",), module="other")

    (proposal,) = propose(Seen(Flat(), (a_graph(direction="backward", nodes=(saved, read)),), "training"))

    assert proposal.cure.name == "flat-conv3d"
