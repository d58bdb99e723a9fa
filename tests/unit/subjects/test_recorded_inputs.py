"""The inputs that a module of a program really gets: kept as they came, whoever calls it and however."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from layoutdoctor import record_inputs
from layoutdoctor.errors import SubjectError, UsageError
from layoutdoctor.run.rehearsal import run_first
from layoutdoctor.subjects.load import load_target
from layoutdoctor.subjects.recorded_inputs import RecordedInputs, UnderAutocast, submodule_of
from layoutdoctor.subjects.subject import describe_subject, subject_from_python

if TYPE_CHECKING:
    from collections.abc import Callable


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, latents: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.conv(latents) * scale


class Pipeline(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vae = nn.ModuleDict({"decoder": Decoder()})
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.vae["decoder"](x[..., ::2, ::2])
        large = self.vae["decoder"](x.to(memory_format=torch.channels_last), scale=0.5)
        return small.mean() + large.mean()


def shapes(recorded: RecordedInputs) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(tuple(t.shape), t.stride()) for t in recorded.args]


@pytest.mark.parametrize(
    ("call", "kept", "expected"),
    [
        ("largest", 2, ((2, 4, 8, 8), (256, 1, 32, 4))),
        (1, 1, ((2, 4, 4, 4), (256, 64, 16, 2))),
        (2, 2, ((2, 4, 8, 8), (256, 1, 32, 4))),
    ],
)
def test_a_call_is_kept_with_its_strides_and_keywords(call: Any, kept: int, expected: tuple[Any, Any]) -> None:
    pipeline, x = Pipeline(), torch.randn(2, 4, 8, 8)
    with record_inputs(pipeline.vae["decoder"], call=call) as recorded:
        pipeline(x)

    assert (recorded.call, recorded.call_count) == (kept, 2)
    assert shapes(recorded) == [expected]
    assert recorded.kwargs == ({"scale": 0.5} if kept == 2 else {})
    assert recorded.args[0].untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert (recorded.autocast, recorded.device) == (None, "cpu")
    assert not pipeline.vae["decoder"]._forward_pre_hooks


def test_each_kind_of_call_is_kept_once_with_how_often_it_came() -> None:
    pipeline, x = Pipeline(), torch.randn(2, 4, 8, 8)
    with record_inputs(pipeline.vae["decoder"], call="each") as recorded, torch.autocast("cpu", torch.bfloat16):
        pipeline(x)
        pipeline(x[..., :6])
        pipeline(x + 1.0)

    assert [(tuple(one.args[0].shape), one.call, one.call_count) for one in recorded.kinds] == [
        ((2, 4, 4, 4), 1, 2),
        ((2, 4, 8, 8), 2, 2),
        ((2, 4, 4, 3), 3, 1),
        ((2, 4, 8, 6), 4, 1),
    ]
    assert torch.equal(recorded.kinds[1].args[0], x)
    assert recorded.kinds[3].kwargs == {"scale": 0.5}
    assert {one.autocast for one in recorded.kinds} == {"bfloat16"}
    assert (recorded.call, recorded.call_count, tuple(recorded.args[0].shape)) == (2, 6, (2, 4, 8, 8))
    assert repr(recorded) == "<RecordedInputs: 2x4x8x8 float32; call 2, called 6 times, 4 kinds of calls>"


def test_of_more_kinds_than_can_be_diagnosed_the_first_64_are_kept() -> None:
    conv = nn.Conv2d(1, 1, 1)

    with record_inputs(conv, call="each") as recorded:
        done = [conv(torch.randn(1, 1, 1, size)) for size in (*range(1, 67), 3, 66)]

    assert len(done) == 68
    assert [one.args[0].shape[3] for one in recorded.kinds] == list(range(1, 65))
    assert (recorded.call_count, sum(one.call_count for one in recorded.kinds)) == (68, 65)


def in_a_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def test_compiled_callers_threads_and_inference_mode_are_seen() -> None:
    pipeline, x = Pipeline().eval(), torch.randn(2, 4, 8, 8)
    compiled = torch.compile(pipeline, backend="eager")
    compiled(x)
    for run in (
        lambda: compiled(x),
        lambda: in_a_thread(lambda: pipeline(x)),
        lambda: torch.inference_mode()(pipeline)(x),
        lambda: torch.no_grad()(compiled)(x),
    ):
        with record_inputs(pipeline.vae["decoder"]) as recorded:
            run()
        assert recorded.call_count == 2
        assert not recorded.args[0].is_inference()
    with record_inputs(torch.compile(pipeline.vae["decoder"], backend="eager")) as recorded:
        pipeline(x)
    assert recorded.call_count == 2


def test_autocast_is_part_of_what_is_diagnosed() -> None:
    pipeline = Pipeline().eval()
    with record_inputs(pipeline.vae["decoder"]) as recorded, torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        pipeline(torch.randn(2, 4, 8, 8))
    subject = subject_from_python(pipeline.vae["decoder"], recorded)

    assert recorded.autocast == "bfloat16"
    assert isinstance(subject.model, UnderAutocast)
    assert subject.model(*subject.args, **subject.kwargs).dtype == torch.bfloat16
    assert subject.notes == (
        "inputs as recorded: call 2 of 2",
        "runs under autocast (bfloat16), as in the recorded call",
    )
    assert subject.name == "Decoder"
    run_first(subject, "inference")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda p, x: None, "cannot record the inputs of Decoder: it was not called"),
        (lambda p, x: p.vae["decoder"].forward(x), "calling its .forward() directly is not seen: expected module(...)"),
        (lambda p, x: p.vae["decoder"](x), "it was called 1 time"),
    ],
)
def test_what_was_not_called_is_told(program: Callable[..., object], words: str) -> None:
    pipeline = Pipeline()
    with pytest.raises(SubjectError) as caught, record_inputs(pipeline.vae["decoder"], call=2):
        program(pipeline, torch.randn(2, 4, 8, 8))
    assert words in str(caught.value)


def test_the_callers_own_error_goes_on_and_the_hook_goes() -> None:
    decoder = Decoder()
    with pytest.raises(RuntimeError, match="to have 4 channels"), record_inputs(decoder):
        decoder(torch.randn(1, 5, 8, 8))
    assert not decoder._forward_pre_hooks


def test_what_is_no_module_and_no_call_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot record the inputs of a int"), record_inputs(1):  # type: ignore[arg-type]
        pass
    for call in (0, -1, "last"):
        with pytest.raises(UsageError, match=f"cannot record call {call!r}"), record_inputs(Decoder(), call=call):  # type: ignore[arg-type]
            pass


MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3)
    def forward(self, x):
        return self.conv(x)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.unused = nn.Conv2d(3, 8, 3), Block(), nn.Linear(2, 2)
    def forward(self, x):
        return self.block(self.stem(x).to(memory_format=torch.channels_last))
def get_inputs(): return [torch.randn(2, 3, 16, 16)]
"""


def test_a_module_of_a_target_with_what_it_gets(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(MODEL, encoding="utf-8")
    subject = load_target(str(tmp_path / "net.py"), module="block")
    record = describe_subject(subject, "inference")

    assert (subject.name, type(subject.model).__name__) == ("net.py (block)", "Block")
    assert [(t.shape, t.memory_formats) for t in record.inputs] == [((2, 8, 14, 14), ("channels_last",))]
    for path, words in {
        "blok": "did you mean 'block'?",
        "decoder": "modules with the most convolutions: ",
        "unused": "it was not called",
    }.items():
        with pytest.raises((UsageError, SubjectError)) as caught:
            load_target(str(tmp_path / "net.py"), module=path)
        assert words in str(caught.value)
    with pytest.raises(UsageError, match=r"expected an nn\.Module"):
        submodule_of(torch.relu, "block")


def test_the_page_on_pipelines_says_what_works() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text(encoding="utf-8")
    snippet = page.split("```python\n")[1].split("```")[0]
    code = "\n".join(line for line in snippet.splitlines() if not line.startswith(("print", "diagnosis = ")))
    names: dict[str, Any] = {}
    exec(code, names)

    assert names["recorded"].args[0].shape == (2, 8, 30, 30)


def test_a_module_can_be_copied_saved_and_scripted_while_its_inputs_are_recorded() -> None:
    module, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(1, 3, 8, 8)
    with record_inputs(module) as outer, record_inputs(module) as seen:
        module(x)
        copies = (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.jit.trace(module[0], x))
        for one in copies:
            one(x)
        assert not any((one._forward_pre_hooks, one._forward_hooks) != ({}, {}) for one in (module, *copies[:2]))
    assert (outer.call_count, seen.call_count) == (1, 1)


def test_a_scripted_module_is_recorded_too() -> None:
    scripted = torch.jit.trace(nn.Conv2d(3, 4, 3), torch.randn(1, 3, 8, 8))
    with record_inputs(scripted) as seen:
        scripted(torch.randn(2, 3, 8, 8))
    assert seen.args[0].shape == (2, 3, 8, 8)


def test_blocks_that_end_in_any_order_leave_nothing_behind() -> None:
    call, module = nn.Module.__call__, nn.Conv2d(3, 4, 3)
    first, second = record_inputs(module), record_inputs(module)
    first.__enter__()
    seen = second.__enter__()
    module(torch.randn(1, 3, 8, 8))
    first.__exit__(None, None, None)
    module(torch.randn(1, 3, 8, 8))
    second.__exit__(None, None, None)
    assert (seen.call_count, nn.Module.__call__ is call) == (2, True)
    compiled: list[Any] = []
    torch.compile(torch.relu, backend=lambda graph, _: compiled.append(graph) or graph.forward)(torch.ones(2))
    assert len(compiled) == 1


@pytest.mark.parametrize("call", ["largest", "each"])
def test_calls_of_many_threads_at_once_are_all_counted(call: Any) -> None:
    module, count = nn.Linear(4, 4), 16
    begin = threading.Barrier(count)

    def run(size: int) -> None:
        begin.wait()
        for rows in range(1, 20):
            module(torch.ones(rows * size, 4))

    with record_inputs(module, call=call) as seen:
        threads = [threading.Thread(target=run, args=(1 + number % 2,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert seen.call_count == 19 * count
    if call == "each":
        assert sum(kind.call_count for kind in seen.kinds) == 19 * count
