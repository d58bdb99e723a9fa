from __future__ import annotations

from collections import UserDict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from layoutdoctor.errors import SubjectError
from layoutdoctor.run.rehearsal import run_first
from layoutdoctor.subjects.load import load_target
from layoutdoctor.subjects.step import COPIES_INPUTS_NOTE, Step, tensors_of
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from pathlib import Path

X = torch.randn(2, 3, 6, 6)


@dataclass
class Result:
    loss: Any
    logits: Any


def a_step(run: Any, *args: Any, mode: Any = "training", **changes: Any) -> Step:
    return Step(run, run if isinstance(run, nn.Module) else nn.Module(), args, {}, mode, **changes)


def test_every_tensor_of_a_nested_output_is_found_in_order() -> None:
    a, b, c, d, e = (torch.tensor(float(n)) for n in range(5))
    output = {"x": a, "rest": (b, [None, 3, Result(c, "text")], SimpleNamespace(d=d)), "more": UserDict(e=[e])}

    assert [float(tensor) for tensor in tensors_of(output)] == [0, 1, 2, 3, 4]


def test_training_gives_the_gradients_of_the_weighted_sum() -> None:
    model = nn.Conv2d(3, 4, 3).double()
    x = X.double().requires_grad_(True)
    step = a_step(model, x)
    results = step.results()
    weight = step._weights[0]
    assert weight is not None

    (model(x) * weight).sum().backward()

    assert torch.allclose(results.gradients["weight"], model.weight.grad)
    assert torch.allclose(results.gradients["bias"], model.bias.grad)
    assert torch.allclose(results.gradients["input 0"], x.grad)


def test_the_loss_weight_is_fixed_and_has_the_outputs_strides_and_no_zero() -> None:
    model = nn.Conv2d(3, 4, 3)
    plain, permuted = a_step(model, X), a_step(model, X.to(memory_format=torch.channels_last))
    plain()
    permuted()
    (first,), (second,) = plain._weights, permuted._weights
    assert first is not None
    assert second is not None

    assert torch.equal(first, second)
    assert first.is_contiguous()
    assert second.is_contiguous(memory_format=torch.channels_last)
    assert (first != 0).all()
    assert torch.equal(first, first.bfloat16().float())
    assert len(first.unique()) > 16


def test_a_batch_norm_a_scalar_and_integers_get_the_loss_they_should() -> None:
    normed = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
    model = nn.Linear(3, 1, bias=False)

    def results(run: Any, module: nn.Module) -> Any:
        return Step(run, module, (torch.ones(5, 3),), {}, "training").results()

    # The gradient of a plain sum is zero behind a batch norm.
    assert a_step(normed, X).results().gradients["0.weight"].abs().max() > 0.1
    assert results(lambda x: {"loss": model(x).mean(), "parts": 3}, nn.Module()).gradients == {}
    assert torch.allclose(results(lambda x: model(x).mean(), model).gradients["weight"], torch.ones(1, 3))
    found = results(lambda x: (model(x), model(x).argmax(1)), model)
    assert [output.dtype for output in found.outputs] == [torch.float32, torch.int64]
    assert set(found.gradients) == {"weight"}


def test_no_gradient_stays_after_an_iteration() -> None:
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    step = a_step(model, x)

    for _ in range(2):
        step()
        assert [tensor.grad for tensor in (*model.parameters(), x)] == [None] * 3
    step.ready()()
    once = model.weight.grad.clone()  # type: ignore[union-attr]
    step.ready()()
    assert torch.equal(model.weight.grad, once)  # type: ignore[arg-type]
    step.release()

    assert [tensor.grad for tensor in (*model.parameters(), x)] == [None] * 3


def test_results_are_those_of_the_first_call() -> None:
    counter = iter(range(10))
    step = a_step(lambda x: x + next(counter), torch.zeros(2), mode="inference")

    step()
    step()

    assert step.results().outputs[0].tolist() == [0, 0]
    step.forget_results()
    assert step.results().outputs == []


def test_gradients_are_kept_where_the_next_iteration_writes_over_the_memory_of_its_own() -> None:
    memory = torch.zeros(3)  # as a CUDA graph has it: every replay writes its gradients there

    class Replayed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x * weight

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            memory.add_(1)
            return None, memory.detach()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> Any:
            return Replayed.apply(x, self.weight)

    step = a_step(Model(), torch.ones(3))
    gradients = step.results().gradients
    step()

    assert memory.tolist() == [2, 2, 2]
    assert gradients["weight"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_under_the_callers_autocast_every_iteration_casts_the_weights(mode: Any) -> None:
    model = nn.Linear(6, 6)
    casts: list[str] = []

    class Casts(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            casts.extend([str(function)] * ("_to_copy" in str(function) and args[0].shape == model.weight.shape))
            return function(*args, **(kwargs or {}))

    with torch.autocast("cpu", torch.bfloat16):
        step = a_step(model, X[:, :2], mode=mode)
        step()
        with Casts():
            step()

    assert casts.count("aten._to_copy.default") == (1 if mode == "inference" else 2)


def test_results_keep_the_strides_of_the_outputs_and_two_steps_draw_the_same_numbers() -> None:
    results = a_step(lambda x: x[:, ::2].to(memory_format=torch.channels_last), X, mode="inference").results()
    outputs = [a_step(functional.dropout, X, mode="inference").results().outputs[0] for _ in range(2)]

    assert results.outputs[0].stride() == results.output_layouts[0].stride == (72, 1, 12, 2)
    assert results.output_layouts[0].memory_formats == ("channels_last",)
    assert torch.equal(outputs[0], outputs[1])


def test_a_model_that_changes_its_inputs_gets_fresh_ones_every_time_and_another_the_same() -> None:
    x = torch.ones(3)
    seen: list[list[float]] = []
    places: list[int] = []
    changing = a_step(lambda x: (seen.append(x.tolist()), x.add_(1))[1], x, mode="inference")
    leaving = a_step(lambda x: (places.append(x.data_ptr()), x + 1)[1], x, mode="inference")
    for _ in range(3):
        changing()
        leaving()

    assert seen == [[1, 1, 1]] * 3
    assert x.tolist() == [1, 1, 1]
    assert places[1] == places[2] == x.data_ptr()
    assert (changing.notes_on_run(), leaving.notes_on_run()) == ((COPIES_INPUTS_NOTE,), ())


def test_a_start_copies_its_inputs_once_to_memory_of_its_own() -> None:
    x, places = torch.ones(3), []
    step = a_step(lambda x: (places.append(x.data_ptr()), x + 1)[1], x, mode="inference")
    step()
    step()
    step.take_own_inputs()
    step()
    step()

    assert places[1] == x.data_ptr()
    assert places[2] == places[3] != x.data_ptr()


async def later(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("run", "mode", "message"),
    [
        (lambda x: None, "inference", "its output (NoneType) holds no tensor"),
        (lambda x: (y for y in [x]), "inference", "its output (generator) holds no tensor, expected at least one"),
        (later, "inference", "its output (coroutine) holds no tensor, expected at least one; return the tensors"),
        (nn.ReLU(), "training", "no output requires a gradient; call model.requires_grad_(True), let forward run with"),
    ],
)
def test_what_cannot_be_compared_or_trained_says_why(run: Any, mode: str, message: str) -> None:
    with pytest.raises(SubjectError) as caught:
        a_step(run, torch.ones(2, 2), mode=mode)()
    assert message in str(caught.value)


def test_a_model_that_raises_names_its_error_its_line_and_its_inputs(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.conv = torch.nn.Conv2d(4, 4, 3)\n    def forward(self, x, scale=1):\n"
        "        return self.conv(x)\ndef get_inputs(): return [torch.randn(2, 3, 8, 8), 2]\n"
    )

    with pytest.raises(SubjectError) as caught:
        run_first(load_target(str(path)), "inference")

    message = str(caught.value)
    assert message.startswith("cannot run net.py on float32[2, 3, 8, 8], 2: RuntimeError: Given groups=1")
    assert message.endswith(
        "(net.py:7, module conv (Conv2d)); give inputs that the model accepts (--input, or example_input in Python)"
    )
    assert "\n" not in message


def test_missing_arguments_are_told_like_any_other_error() -> None:
    def needs_two(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * mask

    with pytest.raises(SubjectError, match=r"cannot run needs_two on x=float32\[2, 3, 6, 6\], flag=True: TypeError:"):
        run_first(subject_from_python(needs_two, {"x": X, "flag": True}), "inference")


def test_inputs_on_another_device_than_the_weights_are_to_be_moved() -> None:
    class Apart(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("Expected all tensors to be on the same device")

    subject = replace(subject_from_python(Apart(3, 4, 3), X), args=(X.to("meta"),))

    with pytest.raises(SubjectError, match=r"; its weights and inputs are on cpu and meta: move all to one device$"):
        run_first(subject, "inference")


def test_a_model_that_ends_the_process_is_told_so() -> None:
    def leave(x: torch.Tensor) -> torch.Tensor:
        raise SystemExit(5)

    with pytest.raises(SubjectError, match=r"cannot run leave on .*: it called sys.exit\(5\)"):
        run_first(subject_from_python(leave, X), "inference")
