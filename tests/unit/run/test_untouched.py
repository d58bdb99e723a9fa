"""What a diagnosis in the caller's process proves and leaves: model, environment, other threads; and when it is one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import layoutdoctor
from layoutdoctor.errors import SubjectError, TransportError, UsageError
from layoutdoctor.run import diagnose as run
from layoutdoctor.state.process import one_at_a_time
from layoutdoctor.subjects import untouched as guard
from layoutdoctor.subjects.subject import subject_from_python
from layoutdoctor.subjects.untouched import untouched

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model(torch.ones(1, 3, 4, 4)).sum().backward()
    return model


def convert(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def widen(model: nn.Module) -> None:
    model.double()


def replace_buffer(model: nn.Module) -> None:
    model[1].running_mean = torch.zeros(4)  # type: ignore[index,union-attr]


def write(model: nn.Module) -> None:
    model[1].running_mean.data.add_(1)  # type: ignore[index,union-attr,operator]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: model.eval(), "Sequential (train mode)"),
        (lambda model: model.zero_grad(), "0.weight (gradient)"),
        (lambda model: model[0].weight.grad.add_(1), "0.weight.grad (values)"),
        (lambda model: model[0].bias.requires_grad_(requires_grad=False), "0.bias (requires_grad)"),
        (
            convert,
            "0.weight (float32[4, 3, 3, 3], strides (27, 9, 3, 1) -> float32[4, 3, 3, 3], strides (27, 1, 9, 3))",
        ),
        (widen, "0.weight (float32[4, 3, 3, 3], strides (27, 9, 3, 1) -> float64[4, 3, 3, 3]"),
        (replace_buffer, "1.running_mean"),
        (write, "1.running_mean (values)"),
    ],
    ids=["mode", "gradient gone", "gradient", "flag", "strides", "dtype", "buffer replaced", "values"],
)
def test_what_was_changed_is_named_and_put_back(change: Callable[[nn.Module], Any], said: str) -> None:
    model = net()
    x = torch.ones(1, 3, 4, 4)
    before = {name: (tensor, tensor.clone(), tensor.stride()) for name, tensor in model.state_dict().items()}
    grads = [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]

    with pytest.raises(SubjectError) as caught, untouched(subject_from_python(model, x)):
        change(model)

    assert said in str(caught.value)
    assert "it was changed meanwhile" in str(caught.value)
    assert "it was put back" in str(caught.value)
    assert model.training
    assert model[0].bias.requires_grad  # type: ignore[index,union-attr]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name][1])
        assert tensor.stride() == before[name][2]
        assert tensor.data_ptr() == before[name][0].data_ptr()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))  # type: ignore[arg-type]


def test_one_element_of_a_large_tensor_is_seen_and_said_to_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LARGEST_WHOLE", 1 << 20)
    model = nn.Linear(1024, 1025, bias=False)

    lost = r"weight \(values\) \(cannot be put back\); what can be was put back"
    with torch.no_grad(), pytest.raises(SubjectError, match=lost), untouched(subject_from_python(model, torch.ones(1))):
        model.weight[512, 7] += 1  # between the blocks that are read: torch's count tells
    with pytest.raises(SubjectError, match=lost), untouched(subject_from_python(model, torch.ones(1))):
        model.weight.data.mul_(2)  # which torch does not count


def test_an_error_of_the_block_goes_on_where_nothing_was_changed() -> None:
    with pytest.raises(ZeroDivisionError), untouched(subject_from_python(net(), torch.ones(1))):
        raise ZeroDivisionError


def test_a_second_diagnosis_waits_for_the_first() -> None:
    order: list[str] = []

    def second() -> None:
        with one_at_a_time():
            order.append("second")

    with one_at_a_time(), one_at_a_time():  # a progress function may ask for one: it is the same thread
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()

    assert order == ["first", "second"]


@pytest.mark.thorough
def test_two_threads_diagnose_one_after_the_other() -> None:
    running: list[int] = []
    most: list[int] = []

    def work(x: torch.Tensor) -> torch.Tensor:
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        y = torch.nn.functional.avg_pool2d(x, 2)
        running.pop()
        return y

    def timer(step: Callable[[], None], calls: int) -> tuple[float, ...]:
        step()
        return (1e-3,) * calls

    def diagnose() -> None:
        layoutdoctor.diagnose(work, torch.ones(1, 3, 8, 8), configurations="eager", timer=timer)

    threads = [threading.Thread(target=diagnose) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(most) > 4
    assert set(most) == {1}


CODE = """
import os
before = dict(os.environ)
import layoutdoctor.run.diagnose, layoutdoctor.run.static, layoutdoctor.run.fresh, layoutdoctor.commands.diagnose
assert dict(os.environ) == before, "after the import"
import torch
timer = lambda step, calls: (step(), (1e-3,) * calls)[1]
layoutdoctor.diagnose(torch.nn.Conv2d(3, 4, 3), torch.ones(1, 3, 8, 8), configurations="eager", timer=timer)
from layoutdoctor.state.switches import current_settings
current_settings()
assert dict(os.environ) == before, "after a diagnosis"
"""


@pytest.mark.thorough
def test_the_environment_is_the_same_after_an_import_and_a_diagnosis() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}

    ended = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False, timeout=600
    )

    assert ended.returncode == 0, ended.stderr


def test_a_diagnosis_has_processes_of_its_own_unless_it_cannot_or_shall_not(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def isolated(subject: Any, request: Any, **options: Any) -> str:
        asked.append("isolated")
        if "Conv2d" in subject.name:
            raise TransportError("it holds a lock")
        return "there"

    def here(subject: Any, *_: Any, **__: Any) -> Any:
        asked.append(f"here {subject.notes}")
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "diagnose_isolated", isolated)
    monkeypatch.setattr(run, "record_subject", here)
    x = torch.ones(1, 3, 8, 8)

    assert layoutdoctor.diagnose(nn.ReLU(), x) == "there"  # type: ignore[comparison-overlap]
    assert layoutdoctor.diagnose(nn.ReLU(), x, timeout_seconds=5) == "there"  # type: ignore[comparison-overlap]
    for model, options in (
        (nn.ReLU(), {"isolate": False}),
        (nn.ReLU(), {"timer": lambda step, calls: (1.0,)}),
        (nn.Conv2d(3, 4, 3), {}),
    ):
        with pytest.raises(KeyboardInterrupt):
            layoutdoctor.diagnose(model, x, **options)  # type: ignore[arg-type]
    for wrong in ({"isolate": False}, {"timer": lambda step, calls: (1.0,)}):
        with pytest.raises(UsageError, match="cannot limit a configuration's time in this process: leave out isolate"):
            layoutdoctor.diagnose(nn.ReLU(), x, timeout_seconds=5, **wrong)  # type: ignore[arg-type]

    assert asked == [
        *("isolated", "isolated", "here ()", "here ()", "isolated", "here ('not isolated: it holds a lock',)")
    ]
