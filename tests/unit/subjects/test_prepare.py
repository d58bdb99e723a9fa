from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
import torch._inductor.config as inductor_config
from torch import nn

from layoutdoctor.diagnosis.compile_arguments import compiled_with
from layoutdoctor.diagnosis.configurations import BY_NAME, by_aot_inductor
from layoutdoctor.diagnosis.subject import Configuration
from layoutdoctor.errors import UsageError
from layoutdoctor.subjects.prepare import compile_for, options_beside_code, prepare, same_preparation_key
from layoutdoctor.subjects.subject import LoadedSubject, subject_from_python

BENCHMARK = "cudnn.benchmark"
CONTIGUOUS = Configuration(name="contiguous", backend="eager", model_format="contiguous", input_format="contiguous")


class Mixed(nn.Module):
    """4-D and 5-D weights, tied weights, a 4-D buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Conv2d(3, 4, 3)
        self.tied = nn.Conv2d(3, 4, 3)
        self.tied.weight = self.flat.weight
        self.deep = nn.Conv3d(3, 4, 3)
        self.register_buffer("table", torch.randn(1, 2, 3, 4))

    def forward(self, x: torch.Tensor, clip: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.flat(x) + self.tied(x), self.deep(clip)


def a_subject(model: Any = None) -> LoadedSubject:
    x = torch.randn(2, 3, 5, 5, requires_grad=True)
    return subject_from_python(model or Mixed(), {"x": x, "clip": torch.randn(2, 3, 4, 5, 5)})


def test_channels_last_is_given_by_rank_and_keeps_ties() -> None:
    prepared = prepare(a_subject(), BY_NAME["eager-channels-last"], "inference")
    module: Any = prepared.module

    assert module.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert module.deep.weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert module.table.is_contiguous(memory_format=torch.channels_last)
    assert module.tied.weight is module.flat.weight
    assert prepared.kwargs["x"].is_contiguous(memory_format=torch.channels_last)
    assert prepared.kwargs["clip"].is_contiguous(memory_format=torch.channels_last_3d)
    assert prepared.kwargs["x"].requires_grad
    assert prepared.kwargs["x"].is_leaf
    assert prepared.notes == ()


def test_a_model_and_its_inputs_are_changed_in_place_and_get_their_mode() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout())
    x = torch.randn(2, 3, 8, 8)
    for model in (net, lambda x: net(x)):
        subject = subject_from_python(model, x)
        assert prepare(subject, BY_NAME["inductor"], "inference").args[0] is x
        assert not net[1].training

        prepared = prepare(subject, BY_NAME["inductor-channels-last"], "training")

        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
        assert net[1].training
        assert prepared.run is model
        assert [*prepared.module.parameters()] == [*net.parameters()]
        net.to(memory_format=torch.contiguous_format)


class Exported(nn.ReLU):
    def train(self, mode: bool = True) -> Any:
        raise NotImplementedError("Calling train() is not supported yet.")  # as torch.export's modules say


def test_preserve_keeps_the_strides_of_weights_and_inputs_and_contiguous_undoes_channels_last() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    expanded = torch.randn(2, 1, 5, 5).expand(2, 3, 5, 5)
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)

    kept = prepare(subject_from_python(model, expanded), BY_NAME["inductor"], "inference")
    undone = prepare(subject_from_python(model, x), CONTIGUOUS, "inference")

    assert (kept.module.weight.stride(), kept.args[0].stride()) == (model.weight.stride(), expanded.stride())
    assert undone.module.weight.is_contiguous()
    assert undone.args[0].is_contiguous()


def test_channels_last_that_changes_no_weight_says_so() -> None:
    already = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    for model, x, note in (
        (nn.Linear(2, 2), torch.ones(2), "changed no weight: the model has no 4-D or 5-D parameter"),
        (already, torch.ones(1, 3, 5, 5), "changed no weight: all 4-D and 5-D parameters already have this format"),
        (torch.relu, torch.ones(2), "was given to the inputs only: the function uses no module"),
    ):
        prepared = prepare(subject_from_python(model, x), BY_NAME["eager-channels-last"], "inference")
        assert prepared.notes == (f"channels_last {note}",)
    assert prepare(subject_from_python(Exported(), x), BY_NAME["eager"], "training").notes == (
        "the model cannot change between train and eval mode: it runs in the mode of its export",
    )


def test_equal_preparations_have_equal_keys() -> None:
    subject = a_subject()

    def key(name: str) -> Any:
        return same_preparation_key(prepare(subject, BY_NAME[name], "inference"), BY_NAME[name])

    keys = {name: key(name) for name in BY_NAME}
    assert keys["inductor"] == keys["inductor-layout-opt-on"]  # torch's default on this platform
    others = [keys[name] for name in BY_NAME if name != "inductor-layout-opt-on"]
    assert len(set(others)) == len(others)
    with inductor_config.patch(layout_optimization=False):
        assert key("inductor") == key("inductor-layout-opt-off")
        assert key("inductor") != key("inductor-layout-opt-on")
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    subject = subject_from_python(model, torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last))
    assert key("eager") == key("eager-channels-last")


def test_symbolic_sizes_are_marked_or_not_as_the_configuration_says() -> None:
    x = torch.randn(2, 3, 5, 5)
    torch._dynamo.mark_dynamic(x, 0)
    subject, keys = subject_from_python(nn.Conv2d(3, 4, 3), x), []
    for dynamic, marked in ((None, {0}), (True, {0}), (False, set())):
        configuration = msgspec.structs.replace(BY_NAME["inductor"], dynamic=dynamic)
        step = prepare(subject, configuration, "inference")
        assert getattr(step.args[0], "_dynamo_dynamic_indices", set()) == marked
        keys.append(same_preparation_key(step, configuration))
    assert len(set(keys)) == len(keys)


def test_compile_for_eager_converts_inputs_and_calls_a_copy() -> None:
    model = nn.Conv2d(3, 4, 3).eval()
    x = torch.randn(2, 3, 5, 5)

    ready = compile_for(model, BY_NAME["eager-channels-last"])

    assert ready(x).is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(ready(x), model(x), atol=1e-6)
    assert model.weight.is_contiguous()
    assert ready.module is not None
    assert not ready.module.training
    assert repr(ready) == "<Conv2d as configuration 'eager-channels-last'>"
    with pytest.raises(UsageError, match="it is a recorded trace"):
        compile_for(model, Configuration(name="recorded", backend="recorded"))
    function = compile_for(lambda x: model(x), BY_NAME["eager"])
    assert torch.equal(function(x), model(x))
    with pytest.raises(UsageError, match="it changes the module that this function uses; give the module itself"):
        compile_for(lambda x: model(x), BY_NAME["eager-channels-last"])
    bound = compile_for(model.forward, BY_NAME["eager-channels-last"])
    assert bound(x).is_contiguous(memory_format=torch.channels_last)
    assert model.weight.is_contiguous()


def test_compile_for_passes_the_options_and_unwraps_a_compiled_model(monkeypatch: Any) -> None:
    asked: list[Any] = []
    model = nn.Conv2d(3, 4, 3)
    compiled = torch.compile(model)

    def compile_(run: Any, options: Any, **more: Any) -> Any:
        asked.append((type(run), options, *more.items()))
        return run

    monkeypatch.setattr(torch, "compile", compile_)

    compile_for(compiled, BY_NAME["inductor-layout-opt-off"])
    compile_for(model, BY_NAME["inductor"])
    given = {"mode": "reduce-overhead", "dynamic": True}
    compile_for(model, compiled_with(BY_NAME["inductor-layout-opt-off"], given))

    assert asked == [
        (nn.Conv2d, {"layout_optimization": False}),
        (nn.Conv2d, None),
        (nn.Conv2d, {"triton.cudagraphs": True, "layout_optimization": False}, ("dynamic", True)),
    ]


def test_compile_for_freezing_sets_it_around_the_call_of_a_copy_in_eval_mode(monkeypatch: Any) -> None:
    seen: list[tuple[bool, bool]] = []
    model = nn.Conv2d(3, 4, 3)
    model.register_forward_pre_hook(lambda *_: seen.append((inductor_config.freezing, torch.is_grad_enabled())))
    monkeypatch.setattr(torch, "compile", lambda run, options: run)

    ready = compile_for(model, BY_NAME["inductor-freezing"])
    ready(torch.randn(1, 3, 5, 5))

    assert ready.module is not None
    assert (ready.module.training, model.training) == (False, True)
    assert seen == [(True, False)]
    assert not inductor_config.freezing


def test_compile_for_aot_inductor_makes_a_package_for_each_kind_of_inputs(monkeypatch: Any) -> None:
    made: list[Any] = []
    monkeypatch.setattr("layoutdoctor.subjects.prepare.compile_as", lambda run, configuration: made.append(run) or run)
    (one,) = by_aot_inductor([BY_NAME["inductor"]], {})[1:]
    ready, x = compile_for(nn.Conv2d(2, 3, 3).eval(), one), torch.randn(2, 2, 5, 5)

    for given in (x, x + 1, x.to(memory_format=torch.channels_last), x[:1], x):
        ready(given)

    assert len(made) == 3


def test_a_switch_is_on_while_the_copy_runs_and_is_put_back_also_where_it_raises() -> None:
    seen: list[bool] = []

    class Noting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(torch.backends.cudnn.benchmark)
            if x.sum() > 100:
                raise RuntimeError("too much")
            return x * 2

    configuration = Configuration(name="eager+cudnn-benchmark", backend="eager", library_switches={BENCHMARK: True})
    subject = subject_from_python(Noting(), torch.zeros(1))
    prepared = prepare(subject, configuration, "inference")
    prepared()
    prepared()
    ready = compile_for(Noting(), configuration)
    ready(torch.zeros(1))
    with pytest.raises(RuntimeError, match="too much"):
        ready(torch.full((1,), 1000.0))

    assert seen == [True] * len(seen)
    assert len(seen) == 4
    assert torch.backends.cudnn.benchmark is False
    plain = msgspec.structs.replace(configuration, library_switches={})
    assert same_preparation_key(prepared, configuration) != same_preparation_key(
        prepare(subject, plain, "inference"), plain
    )


def test_cuda_graphs_tell_configurations_of_the_same_code_apart() -> None:
    def graphs(name: str = "inductor", **options: bool) -> Any:
        return options_beside_code(msgspec.structs.replace(BY_NAME[name], inductor_options=options))

    plain = graphs()

    assert graphs(**{"triton.cudagraphs": True}) != plain
    assert graphs(**{"triton.cudagraphs": False}) == graphs(max_autotune=True) == plain
    assert graphs("inductor-layout-opt-off") == plain
    assert graphs("eager") == ()
    with inductor_config.patch({"triton.cudagraphs": True}):
        assert graphs() == graphs(**{"triton.cudagraphs": True}) != plain
