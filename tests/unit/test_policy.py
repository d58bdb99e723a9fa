"""Policies: the single choice, the choice by call, the report, the command, and the lines to paste."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
import torch
from builders import (
    a_comparison,
    a_diagnosis,
    a_measurement,
    a_ratio,
    a_recommendation,
    a_subject,
    a_trial,
    an_environment,
    an_input,
    contiguous,
)
from torch import nn

from layoutdoctor.__main__ import main
from layoutdoctor.diagnosis.answer import Ratio, WithoutFreezing
from layoutdoctor.diagnosis.compile_arguments import compiled_with
from layoutdoctor.diagnosis.configurations import BUILTIN_CONFIGURATIONS, ONCE_FOR_ALL_SIZES, choose_configurations
from layoutdoctor.diagnosis.policy import Policy
from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.errors import UsageError
from layoutdoctor.examination.advice.dispatch import lines_by_shape
from layoutdoctor.examination.advice.policy import make_policy
from layoutdoctor.privacy import scrub
from layoutdoctor.reports import render_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from layoutdoctor.diagnosis.answer import Comparison
    from layoutdoctor.diagnosis.diagnosis import Diagnosis
    from layoutdoctor.diagnosis.subject import Configuration
    from layoutdoctor.workers.messages import Request

TWIN, EAGER = "inductor-channels-last", "eager"


def of_batch(batch: int, twin: float, eager: float, use: str | None = None, **changes: Any) -> Diagnosis:
    """A call of ``[batch, 3, 8, 8]`` that takes 10 ms for each image in the default."""
    measured = a_measurement(*[batch * 10e-3] * 9)
    trials = (a_trial("inductor", measurement=measured), a_trial(TWIN), a_trial(EAGER))
    fields = {
        "subject": a_subject(inputs=(an_input(contiguous((batch, 3, 8, 8))),)),
        "comparison": a_comparison(a_ratio(TWIN, twin), a_ratio(EAGER, eager)),
        "recommendation": a_recommendation(use),
    }
    return a_diagnosis(*trials, **{**fields, **changes})


def test_the_single_choice_is_certainly_faster_over_all_and_each_call_has_its_own() -> None:
    policy = make_policy([of_batch(1, 1.25, 2.0, EAGER), of_batch(8, 1.6, 0.5, TWIN)], [10, 1])

    assert policy.everywhere == TWIN  # 10 x 8 + 50 ms, against 10 x 5 + 160 ms of eager and 10 x 10 + 80 ms
    assert [case.use for case in policy.cases] == [EAGER, TWIN]
    assert [configuration.name for configuration in policy.configurations] == ["inductor", TWIN, EAGER]
    assert [policy.seconds(name) for name in ("inductor", TWIN, EAGER, None)] == pytest.approx([0.18, 0.13, 0.21, 0.1])
    assert render_policy(policy) == (
        "layoutdoctor policy · model.py · inference · cpu\n"
        "\n"
        "compiled + channels_last is the best single choice for 2 kinds of call: 1.38x faster than the\n"
        "  default; a choice for each kind of call is 1.30x faster still.\n"
        "The costliest wrong choice: eager takes 3.20x as long as compiled + channels_last for 8x3x8x8, 1 of\n"
        "  11\n"
        "Each shape is compiled with its own sizes; a model compiled once gets symbolic sizes, which were not\n"
        "  measured\n"
        "\n"
        "Calls: the default's time, the choice, and ratios to the default\n"
        "call               per call  use                       compiled + channels_last  eager\n"
        "1x3x8x8, 10 of 11  10.0 ms   eager                     1.25x  1.22 to 1.28       2.00x  1.97 to 2.03\n"
        "8x3x8x8, 1 of 11   80.0 ms   compiled + channels_last  1.60x  1.57 to 1.63       0.50x  0.47 to 0.53\n"
        f"\n{policy.how}\n"
    )
    assert f"\n```python\n{policy.how}\n```" in render_policy(policy, "markdown")


def test_a_choice_that_is_not_certain_is_none_and_calls_without_a_certain_one_use_the_single_choice() -> None:
    unsure = msgspec.structs.replace(a_ratio(TWIN, 1.5), low=0.6)
    doubted = of_batch(8, 1.0, 1.0, "inductor", comparison=a_comparison(unsure))
    policy = make_policy([of_batch(1, 1.3, 1.0, TWIN), doubted])
    assert (policy.everywhere, [case.use for case in policy.cases]) == ("inductor", [TWIN, "inductor"])

    policy = make_policy([of_batch(8, 1.3, 1.0, TWIN), of_batch(1, 1.01, 1.0), of_batch(2, 0.9, 1.0)])
    assert (policy.everywhere, [case.use for case in policy.cases]) == (TWIN, [TWIN, TWIN, "inductor"])


def test_a_configuration_with_wrong_outputs_or_without_a_time_is_no_choice() -> None:
    wrong = msgspec.structs.replace(a_trial().equivalence, status="different")
    diagnosis = of_batch(1, 3.0, 2.0, EAGER)
    trials = [
        msgspec.structs.replace(trial, equivalence=wrong) if trial.name == TWIN else trial for trial in diagnosis.trials
    ]
    policy = make_policy([msgspec.structs.replace(diagnosis, trials=tuple(trials))])

    assert [ratio.name for ratio in policy.cases[0].ratios] == [EAGER]
    assert policy.everywhere == EAGER
    assert policy.seconds(TWIN) is None


def test_diagnoses_that_make_no_policy_are_refused() -> None:
    one = of_batch(1, 1.3, 1.0)
    other, larger = (
        msgspec.structs.replace(one, subject=msgspec.structs.replace(one.subject, **changes))
        for changes in ({"mode": "training"}, {"parameter_count": 7_777})
    )
    elsewhere = msgspec.structs.replace(one, environment=an_environment(device_name="NVIDIA H100"))
    older = msgspec.structs.replace(one, environment=an_environment(torch="2.7.0"))
    for given, weights, said in (
        ([], None, "cannot make a policy: no kind of call was measured"),
        ([one], [0.0], "a weight from 1e-15 to 1e15 for each"),
        ([one], [math.inf], "a weight from 1e-15 to 1e15 for each"),
        ([one, one], None, "two diagnoses with the same input shapes and number of threads"),
        ([one, other], None, "differ in mode: got 'inference' and 'training'; make one policy for each"),
        ([one, elsewhere], None, "differ in device: got 'cpu' and 'NVIDIA H100'"),
        ([one, older], None, "differ in version of torch: got '2.13.0' and '2.7.0'"),
        ([one, larger], None, "differ in number of parameters: got "),
        ([a_diagnosis()], None, "it has no times of its baseline; diagnose the model where it runs"),
    ):
        with pytest.raises(UsageError, match=said):
            make_policy(given, weights)


def test_the_command_reads_saved_diagnoses_and_writes_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / f"{batch}.json") for batch in (1, 8)]
    for path, diagnosis in zip(files, (of_batch(1, 1.25, 2.0, EAGER), of_batch(8, 1.6, 0.5, TWIN)), strict=True):
        diagnosis.save(path)
    output = tmp_path / "policy.json"

    assert main(["policy", *files, "--weights", "10,1", "--output", str(output), "--format", "markdown"]) == 0
    assert "| 1x3x8x8, 10 of 11 | 10.0 ms | eager |" in capsys.readouterr().out
    assert msgspec.json.decode(output.read_bytes(), type=Policy) == scrub(
        make_policy([of_batch(1, 1.25, 2.0, EAGER), of_batch(8, 1.6, 0.5, TWIN)], [10, 1])
    )
    for words, said in (
        (["--weights", "10"], "of 2 diagnoses with the weights 10.0: expected a weight from"),
        (["--weights", "a,b"], "cannot use 'a,b' as weights: expected numbers separated by commas, such as 10,1"),
        (["--output", "policy.html"], "cannot render a policy as 'html': expected one of json, markdown, text"),
    ):
        assert main(["policy", *files, *words]) == 2
        assert said in capsys.readouterr().err


BY_NAME = {one.name: one for one in BUILTIN_CONFIGURATIONS}


def running(batch: int, name: str, **changes: Any) -> Diagnosis:
    """A call for which one of the built-in configurations is recommended, and measured as twice as fast."""
    subject = a_subject(inputs=(an_input(contiguous((batch, 3, 8, 8))),), parameter_formats={"contiguous_format": 1})
    fields = {
        "subject": subject,
        "trials": tuple(map(a_trial, dict.fromkeys(("inductor", "eager", name)))),
        "comparison": a_comparison(a_ratio(name, 2.0)),
        "recommendation": a_recommendation(name, how=f"# {name}"),
    }
    return a_diagnosis(**{**fields, **changes})


def pasted(how: str | None, model: nn.Module) -> Callable[..., Any]:
    """What ``model`` is after the lines were pasted below it."""
    assert how is not None
    names: dict[str, Any] = {"model": model}
    exec(compile(how, "pasted.py", "exec"), names)
    found: Callable[..., Any] = names["model"]
    return found


class Formats(nn.Module):
    """Notes the batch of each call and whether input and weight are channels-last."""

    ran: list[tuple[int, bool, bool]]

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        formats = (one.is_contiguous(memory_format=torch.channels_last) for one in (x, self.conv.weight))
        Formats.ran.append((len(x), *formats))
        result: torch.Tensor = self.conv(x)
        return result


def test_the_pasted_lines_run_each_shape_in_its_configuration_and_all_others_as_the_baseline() -> None:
    diagnoses = [running(1, "eager"), running(2, "eager-channels-last")]
    policy = make_policy([msgspec.structs.replace(one, comparison=eager_baseline(one)) for one in diagnoses])
    Formats.ran = []
    model = Formats()
    with torch.no_grad():
        expected = {batch: model(torch.ones(batch, 3, 8, 8)) for batch in (1, 2, 5)}
        call = pasted(policy.how, model)
        Formats.ran = []
        for batch in (1, 2, 5, 1):
            assert torch.allclose(call(torch.ones(batch, 3, 8, 8)), expected[batch], atol=1e-6)

    assert Formats.ran == [(1, False, False), (2, True, True), (5, False, False), (1, False, False)]
    assert not model.conv.weight.is_contiguous(memory_format=torch.channels_last)  # it was copied
    assert call(x=torch.ones(2, 3, 8, 8)).shape == (2, 4, 6, 6)
    assert Formats.ran[-1] == (2, True, True)


def eager_baseline(diagnosis: Diagnosis) -> Comparison:
    """The comparison of a diagnosis with eager mode as its baseline, so that nothing compiles."""
    assert diagnosis.comparison is not None
    return msgspec.structs.replace(diagnosis.comparison, baseline="eager")


@pytest.mark.compile
def test_each_shape_is_compiled_with_its_own_sizes_and_all_others_once() -> None:
    """As each was measured. With automatic dynamic shapes the second one's sizes become symbols, in another graph."""
    shapes: list[tuple[object, ...]] = []

    def compiled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **settings: object) -> Callable[..., Any]:
        shapes.extend(tuple(map(str, one.shape)) for one in inputs if isinstance(one, torch.Tensor))
        return graph.forward

    policy = make_policy([running(batch, TWIN) for batch in range(1, 12)])
    torch._dynamo.reset()
    with (
        mock.patch.object(torch._dynamo.config, "recompile_limit", 8),
        mock.patch("torch._inductor.compile_fx.compile_fx", compiled),
    ):
        model = pasted(policy.how, nn.ReLU())
        for batch in (*range(1, 12), *range(1, 16)):
            model(torch.zeros(batch, 3, 8, 8))

    assert sorted(shapes[:11]) == sorted((str(batch), "3", "8", "8") for batch in range(1, 12))
    assert len(shapes) == 12  # one more for all others


def test_frozen_weights_are_left_out_of_the_lines_unless_all_calls_have_them() -> None:
    frozen, cold = "inductor-channels-last-freezing", "inductor-freezing"
    free = WithoutFreezing(configuration=TWIN, speedup=a_ratio(TWIN, 1.5), how="# free")
    trials = tuple(map(a_trial, ("inductor", TWIN, frozen)))
    advice = a_recommendation(frozen, how="# frozen", without_freezing=free)
    mixed = make_policy([running(1, frozen, trials=trials, recommendation=advice), running(2, "eager")])
    assert mixed.how is not None
    assert f"def way_1(model):  # '{TWIN}'" in mixed.how
    assert "freezing" not in mixed.how
    assert "Frozen weights, packages and library switches" in render_policy(mixed)

    both = make_policy([running(1, frozen), running(2, cold)])
    assert both.how is not None
    assert both.how.count("torch._inductor.config.patch(freezing=True)") == 2
    assert "Frozen weights, packages and library switches" not in render_policy(both)


def test_one_way_for_all_calls_is_the_lines_of_that_way() -> None:
    both = [running(1, "eager-channels-last"), running(2, "eager-channels-last")]
    assert make_policy(both).how == "# eager-channels-last"
    assert make_policy(both[:1]).how == "# eager-channels-last"
    assert make_policy([running(1, TWIN)]).how == f"# {TWIN}"
    none = [msgspec.structs.replace(one, recommendation=a_recommendation("inductor", how=None)) for one in both]
    slow = [msgspec.structs.replace(one, comparison=a_comparison(a_ratio("eager-channels-last", 0.5))) for one in none]
    assert make_policy(slow).how is None


def test_in_training_one_model_runs_all_calls() -> None:
    modes = [
        msgspec.structs.replace(one, subject=msgspec.structs.replace(one.subject, mode="training"))
        for one in (running(1, TWIN), running(2, "eager"))
    ]
    measured = a_comparison(a_ratio(TWIN, 2.0), a_ratio("eager", 1.5))
    trials = tuple(map(a_trial, ("inductor", TWIN, "eager")))
    policy = make_policy([msgspec.structs.replace(one, comparison=measured, trials=trials) for one in modes])

    assert (policy.everywhere, policy.how) == (TWIN, f"# {TWIN}")
    assert "In training all calls update one model" in " ".join(render_policy(policy).split())


def test_the_lines_hold_cures_threads_and_switches_that_all_calls_share() -> None:
    cure = Cure(name="c", modules=("conv",), how="for name in ('conv',):\n    model.get_submodule(name).cured = True")
    cured = msgspec.structs.replace(
        BY_NAME["eager-channels-last"],
        name="eager-channels-last+c",
        cures=(cure,),
        library_switches={"cudnn.benchmark": True},
    )
    plain = msgspec.structs.replace(BY_NAME["eager"], library_switches={"cudnn.benchmark": True})
    diagnoses = []
    for one, threads in ((cured, 500), (plain, torch.get_num_threads())):
        trials = (a_trial("inductor"), a_trial(configuration=one))
        comparison, advice = a_comparison(a_ratio(one.name, 2.0)), a_recommendation(one.name)
        fields = {"trials": trials, "comparison": comparison, "recommendation": advice}
        diagnoses.append(running(1, "eager", environment=an_environment(thread_count=threads), **fields))
    policy = make_policy(diagnoses)
    assert policy.how is not None
    assert "\ntorch.backends.cudnn.benchmark = True\n" in policy.how
    assert "        (500, ((1, 3, 8, 8),)): ways[0],\n" in policy.how
    assert scrub(policy) == policy  # nothing in such lines looks like a path or a secret

    Formats.ran = []
    with torch.no_grad(), torch.backends.cudnn.flags(benchmark=False):
        call = pasted(policy.how.replace("torch.compile(model)", "model"), Formats())
        call(torch.ones(1, 3, 8, 8))
        with mock.patch("torch.get_num_threads", return_value=500):
            call(torch.ones(1, 3, 8, 8))
    assert Formats.ran == [(1, False, False), (1, True, True)]


def test_shapes_are_also_tried_as_one_compiled_model_sees_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[Configuration]] = []

    def diagnose(arguments: object, conclusion: object, requests: dict[str, Request], conclude: object) -> int:
        tried.extend(list(request.configurations) for request in requests.values())
        return 0

    monkeypatch.setattr("layoutdoctor.commands.several.diagnose_several", diagnose)
    model = str(tmp_path / "model.py")
    main([model, "--quick", "--input", "f32[1,4]", "--or", "--input", "f32[2,4]"])
    main([model, "--quick", "--threads", "1,2"])
    main([model, "--configurations", "eager,inductor", "--input", "f32[1,4]", "--or", "--input", "f32[2,4]"])

    assert [ONCE_FOR_ALL_SIZES in one for one in tried] == [True, True, False, False, False, False]
    assert compiled_with(ONCE_FOR_ALL_SIZES, {"mode": "default"}).compile_arguments == {
        "dynamic": True,
        "mode": "default",
    }
    of_users = compiled_with(ONCE_FOR_ALL_SIZES, {"dynamic": False})
    assert of_users.compile_arguments == {"dynamic": False}  # a model of static sizes is the default


def test_the_report_shows_what_symbolic_sizes_cost() -> None:
    once = ONCE_FOR_ALL_SIZES.name
    trials = (a_trial("inductor", measurement=a_measurement(*[10e-3] * 9)), a_trial(once))
    fields = {"trials": trials, "comparison": a_comparison(a_ratio(once, 0.8))}
    one, two = (msgspec.structs.replace(of_batch(batch, 1.0, 1.0), **fields) for batch in (1, 2))
    text = " ".join(render_policy(make_policy([one, two])).split())

    assert "a model compiled once gets symbolic sizes (compiled + symbolic-sizes)" in text
    assert "call per call use compiled + symbolic-sizes 1x3x8x8 10.0 ms the default 0.80x 0.77 to 0.83" in text


@pytest.mark.compile
def test_two_shapes_are_diagnosed_and_make_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.Conv2d(4, 4, 3)\n")
    output = tmp_path / "policy.json"
    sets = ["--input", "f32[1,4,8,8]", "--or", "--input", "f32[2,4,8,8]"]
    rest = ["--configurations", "eager,inductor", "--budget", "0.2", "--threads", "1", "--output", str(output)]

    assert main([str(tmp_path / "model.py"), *sets, *rest]) == 0

    policy = msgspec.json.decode(output.read_bytes(), type=Policy)
    assert [case.shapes for case in policy.cases] == [((1, 4, 8, 8),), ((2, 4, 8, 8),)]
    assert [case.thread_count for case in policy.cases] == [1, 1]
    assert all([ratio.name for ratio in case.ratios] == [EAGER] for case in policy.cases)
    assert isinstance(policy.cases[0].ratios[0], Ratio)
    assert "layoutdoctor policy · model.py · inference" in capsys.readouterr().out


@pytest.mark.compile
def test_calls_without_times_make_no_policy_and_are_still_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.ReLU()\n")
    sets = ["--input", "f32[1,4]", "--or", "--input", "f32[2,4]"]

    assert main([str(tmp_path / "model.py"), *sets, "--format", "json"]) == 0

    printed = capsys.readouterr()
    assert [one["subject"]["name"] for one in json.loads(printed.out)] == ["model.py"] * 2
    assert "no policy: cannot make a policy of the diagnosis of model.py: it has no times" in printed.err


@pytest.mark.parametrize("name", ["eager-channels-last", "inductor-channels-last-freezing"])
def test_the_pasted_lines_convert_an_input_as_it_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    seen: list[tuple[bool, bool]] = []

    class Net(nn.Module):
        def forward(self, clip: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            frames = clip.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
            seen.append((frames, mask.is_contiguous()))
            return clip

    (own,) = choose_configurations(name)
    way = msgspec.structs.replace(own, input_uses=("frames", "other"))
    kinds = {(None, ((2, 5, 3, 8, 8), (2, 3, 4, 4))): way}
    lines = lines_by_shape(kinds, choose_configurations("eager")[0], has_formats=False)
    names: dict[str, Any] = {"model": Net()}
    exec(compile(lines, "pasted.py", "exec"), names)

    names["model"](torch.randn(2, 5, 3, 8, 8), mask=torch.randn(2, 3, 4, 4))
    names["model"](torch.randn(1, 5, 3, 8, 8), torch.randn(2, 3, 4, 4))

    assert seen == [(True, True), (False, True)]
