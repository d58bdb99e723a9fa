"""Policies: the single choice, the choice by call, the report, the command, and the model that follows one."""

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
from layoutdoctor.diagnosis.answer import Ratio
from layoutdoctor.diagnosis.configurations import ONCE_FOR_ALL_SIZES, compiled_with
from layoutdoctor.diagnosis.policy import load_policy
from layoutdoctor.diagnosis.saved import to_json
from layoutdoctor.errors import RecordError, UsageError
from layoutdoctor.examination.policy import make_policy
from layoutdoctor.reports import render_policy
from layoutdoctor.subjects.policy import apply_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    assert [configuration.name for configuration in policy.configurations] == [TWIN, EAGER]
    assert [policy.seconds(name) for name in ("inductor", TWIN, EAGER, None)] == pytest.approx([0.18, 0.13, 0.21, 0.1])
    assert render_policy(policy) == (
        "layoutdoctor policy · model.py · inference · cpu\n"
        "\n"
        "compiled + channels_last is the best single choice for 2 kinds of call: 1.38x faster than the\n"
        "  default; a choice by call is 1.30x faster than it.\n"
        "The worst exchange of choices: eager takes 3.20x as long as compiled + channels_last for 8x3x8x8, 1\n"
        "  of 11\n"
        "Each shape is compiled with its own sizes; a model compiled once for all gets symbolic sizes, which\n"
        "  was not measured\n"
        'Apply it: model = layoutdoctor.apply_policy(model, "policy.json") # what --output policy.json wrote\n'
        "\n"
        "Calls: the default's time, the choice, and ratios to the default\n"
        "call               per call  use                       compiled + channels_last  eager\n"
        "1x3x8x8, 10 of 11  10.0 ms   eager                     1.25x  1.22 to 1.28       2.00x  1.97 to 2.03\n"
        "8x3x8x8, 1 of 11   80.0 ms   compiled + channels_last  1.60x  1.57 to 1.63       0.50x  0.47 to 0.53\n"
    )


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
    other = msgspec.structs.replace(one, subject=msgspec.structs.replace(one.subject, mode="training"))
    for given, weights, said in (
        ([], None, "cannot make a policy of 0 diagnoses"),
        ([one], [0.0], "a weight from 1e-15 to 1e15 for each"),
        ([one], [math.inf], "a weight from 1e-15 to 1e15 for each"),
        ([one, one], None, "two diagnoses with the same input shapes, device and number of threads"),
        (
            [one, other],
            None,
            "Model in training against inductor and Model in inference against inductor: expected one",
        ),
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
    assert load_policy(output) == make_policy([of_batch(1, 1.25, 2.0, EAGER), of_batch(8, 1.6, 0.5, TWIN)], [10, 1])
    for words, said in (
        (["--weights", "10"], "of 2 diagnoses with 1 weights"),
        (["--weights", "a,b"], "cannot use 'a,b' as weights: expected numbers separated by commas, such as 10,1"),
        (["--output", "policy.html"], "cannot render a policy as 'html': expected one of json, markdown, text"),
    ):
        assert main(["policy", *files, *words]) == 2
        assert said in capsys.readouterr().err
    saved = json.loads(output.read_text())
    for broken in ("[]", json.dumps({**saved, "everywhere": "other"}), json.dumps({**saved, "cases": []})):
        output.write_text(broken)
        with pytest.raises(RecordError, match=r"cannot read .*policy.json"):
            load_policy(output)


def test_a_model_runs_each_call_as_the_policy_says(tmp_path: Path) -> None:
    ran: list[tuple[tuple[int, ...], bool]] = []

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            ran.append((tuple(x.shape), x.is_contiguous(memory_format=torch.channels_last)))
            return x + 1

    path = tmp_path / "policy.json"
    threads = an_environment(thread_count=torch.get_num_threads())
    policy = make_policy(
        [
            of_batch(1, 0.5, 2.0, EAGER, environment=threads),
            of_batch(2, 0.5, 1.2, "eager-channels-last", environment=threads),
        ]
    )
    channels_last = [
        msgspec.structs.replace(policy.configurations[0], name="eager-channels-last", input_format="channels_last")
    ]
    policy = msgspec.structs.replace(policy, configurations=(*policy.configurations, *channels_last))
    path.write_bytes(to_json(policy))

    model = apply_policy(Model(), path)
    for batch in (1, 2, 5, 1):
        assert torch.equal(model(torch.zeros(batch, 3, 8, 8)), torch.ones(batch, 3, 8, 8))

    assert policy.everywhere == EAGER
    assert ran == [((1, 3, 8, 8), False), ((2, 3, 8, 8), True), ((5, 3, 8, 8), False), ((1, 3, 8, 8), False)]


@pytest.mark.compile
def test_each_shape_of_the_policy_is_compiled_with_its_own_sizes_and_all_others_once() -> None:
    """As each was measured. With automatic dynamic shapes the second one's sizes become symbols, in another graph."""
    shapes: list[tuple[object, ...]] = []

    def compiled(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **settings: object) -> Callable[..., Any]:
        shapes.extend(tuple(map(str, one.shape)) for one in inputs if isinstance(one, torch.Tensor))
        return graph.forward

    threads = an_environment(thread_count=torch.get_num_threads())
    policy = make_policy([of_batch(batch, 1.3, 0.5, environment=threads) for batch in range(1, 12)])
    model = apply_policy(nn.ReLU(), policy)
    torch._dynamo.reset()
    with mock.patch("torch._inductor.compile_fx.compile_fx", compiled):
        for batch in (*range(1, 12), *range(1, 16)):
            model(torch.zeros(batch, 3, 8, 8))

    assert shapes[:11] == [(str(batch), "3", "8", "8") for batch in range(1, 12)]
    assert len(shapes) == 12  # one more for all others


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

    assert "a model compiled once for all gets symbolic sizes (compiled + symbolic-sizes)" in text
    assert "call per call use compiled + symbolic-sizes 1x3x8x8 10.0 ms the default 0.80x 0.77 to 0.83" in text


def test_a_policy_of_another_device_is_refused_and_one_of_other_threads_warned_of() -> None:
    x = torch.zeros(1, 3, 8, 8)
    policy = make_policy([of_batch(1, 0.5, 2.0, EAGER, environment=an_environment(thread_count=500))])
    with pytest.warns(UserWarning, match="made with 500 threads, and torch uses"):
        assert apply_policy(nn.Identity(), policy).configuration_of(x) == EAGER

    elsewhere = msgspec.structs.replace(policy.cases[0], device="cuda", device_name="NVIDIA H100")
    with pytest.raises(UsageError, match="to a model on cpu: it was made on NVIDIA H100; diagnose the model here"):
        apply_policy(nn.Identity(), msgspec.structs.replace(policy, cases=(elsewhere,)))(x)


@pytest.mark.compile
def test_two_shapes_are_diagnosed_and_make_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("import torch\nmodel = torch.nn.Conv2d(4, 4, 3)\n")
    output = tmp_path / "policy.json"
    sets = ["--input", "f32[1,4,8,8]", "--or", "--input", "f32[2,4,8,8]"]
    rest = ["--configurations", "eager,inductor", "--budget", "0.2", "--threads", "1", "--output", str(output)]

    assert main([str(tmp_path / "model.py"), *sets, *rest]) == 0

    policy = load_policy(output)
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
