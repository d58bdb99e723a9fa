from __future__ import annotations

from typing import Any

import pytest
import torch
from loops import for_each
from torch import nn

from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS
from layoutdoctor.diagnosis.records import Configuration
from layoutdoctor.examination.choice import effective_options, global_options, how_to_apply

BY_NAME = {configuration.name: configuration for configuration in BUILTIN_CONFIGURATIONS}
MIXED = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(2, 2))


@for_each(
    ("name", "options", "settings"),
    [
        ("eager", {}, {}),
        ("inductor", {}, {}),
        ("inductor-layout-opt-off", {"layout_optimization": False}, {}),
        ("inductor-layout-opt-on", {"layout_optimization": True}, {}),
        ("inductor-layout-opt-forced", {"layout_optimization": True, "force_layout_optimization": True}, {}),
        ("inductor-freezing", {}, {"freezing": True}),
    ],
)
def test_freezing_is_a_global_setting_and_the_rest_are_options(
    name: str, options: dict[str, bool], settings: dict[str, bool]
) -> None:
    assert (effective_options(BY_NAME[name]), global_options(BY_NAME[name])) == (options, settings)


@for_each(
    ("name", "ranks", "lines"),
    [
        ("eager", {4}, ["# nothing to change: call the model as it is, without torch.compile"]),
        ("inductor", {4}, ["model = torch.compile(model)"]),
        ("inductor-layout-opt-off", {4}, ['model = torch.compile(model, options={"layout_optimization": False})']),
        (
            "inductor-channels-last",
            {1, 4},
            [
                "model = model.to(memory_format=torch.channels_last)",
                "model = torch.compile(model)",
                "x = x.to(memory_format=torch.channels_last)",
            ],
        ),
        (
            "eager-channels-last",
            {5},
            [
                "model = model.to(memory_format=torch.channels_last_3d)",
                "x = x.to(memory_format=torch.channels_last_3d)",
            ],
        ),
        (
            "inductor-freezing",
            {4},
            [
                "import torch._inductor.config",
                "model.eval()",
                "model = torch.compile(model)",
                "with torch.no_grad(), torch._inductor.config.patch(freezing=True):  # where it compiles",
                "    y = model(x)",
            ],
        ),
    ],
)
def test_the_lines_are_the_shortest_that_do_it(name: str, ranks: set[int], lines: list[str]) -> None:
    assert how_to_apply(BY_NAME[name], frozenset(ranks)).splitlines() == lines


def test_a_text_option_is_quoted() -> None:
    configuration = Configuration(
        name="own", backend="inductor", layout_optimization="default", inductor_options={"trace.name": 'a"b\\c', "n": 3}
    )

    assert how_to_apply(configuration, frozenset()) == (
        'model = torch.compile(model, options={"trace.name": "a\\"b\\\\c", "n": 3})'
    )


def run_lines(name: str, model: nn.Module, x: torch.Tensor, ranks: set[int], **changes: Any) -> dict[str, Any]:
    """What the pasted lines leave, compiling replaced by a note of how it was asked for: Inductor has its own tests."""
    asked: list[Any] = []
    scope: dict[str, Any] = {"torch": torch, "model": model, "x": x}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda model, options=None: asked.append(options) or model)
        exec(how_to_apply(BY_NAME[name], frozenset(ranks)), scope)
    return {**scope, "asked": asked}


def test_the_lines_for_both_ranks_convert_each_parameter_to_its_format() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3), nn.Linear(2, 2))

    scope = run_lines("inductor-channels-last", model, torch.randn(1, 3, 4, 5, 6), {1, 2, 4, 5})

    assert scope["model"][0].weight.is_contiguous(memory_format=torch.channels_last)
    assert scope["model"][1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert scope["x"].is_contiguous(memory_format=torch.channels_last_3d)
    assert scope["asked"] == [None]


@pytest.mark.thorough
def test_the_lines_for_freezing_set_it_while_the_model_is_called() -> None:
    import torch._inductor.config as inductor_config

    seen: list[bool] = []
    model = nn.Conv2d(3, 4, 3)
    model.register_forward_pre_hook(lambda *_: seen.append(inductor_config.freezing))

    scope = run_lines("inductor-freezing", model, torch.randn(1, 3, 4, 4), {4})

    assert seen == [True]
    assert not scope["y"].requires_grad
    assert not inductor_config.freezing


def test_the_lines_for_contiguous_undo_channels_last() -> None:
    configuration = Configuration(name="own", backend="eager", model_format="contiguous", input_format="contiguous")
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    scope: dict[str, Any] = {"torch": torch, "model": model, "x": torch.randn(2, 3).t()}

    exec(how_to_apply(configuration, frozenset({4})), scope)

    assert model.weight.is_contiguous()
    assert scope["x"].is_contiguous()
