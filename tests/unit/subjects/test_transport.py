"""A subject that another process rebuilds is the one that was saved: values, memory, marks, modes, code."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import linecache
import os
import shutil
import subprocess
import sys
import threading
import types
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest
import torch
import torch._inductor.config
from torch import nn
from transport_facts import FACTS_FILE, facts

from layoutdoctor.errors import SubjectError
from layoutdoctor.subjects.copies import copy_model
from layoutdoctor.subjects.load import execute_file
from layoutdoctor.subjects.subject import LoadedSubject, subject_from_python
from layoutdoctor.subjects.transport import (
    load_subject,
    save_subject,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).parents[2]

SOURCE = """
import functools

import torch
import torch._dynamo.config as settings
from torch import nn

SCALE = torch.full((2,), 3.0)
ATEN, OPERATORS = torch.ops.aten, torch.ops

class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2

@functools.lru_cache(maxsize=7)
def positions(count):
    return torch.arange(count)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return Twice.apply(OPERATORS.aten.neg(ATEN.neg(self.inner(x)))) + positions(x.shape[-1])

class Model(Block):
    def __init__(self):
        super().__init__(2)
        self.more = Block(2)

    def forward(self, x):
        return self.more(super().forward(x)) * (SCALE if settings.suppress_errors is False else 0)
"""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.second(torch.relu(self.norm(self.first(x)))) * scale


FLOATS = (torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.complex64)
DTYPES = (*FLOATS, torch.bool, torch.int8, torch.uint16, torch.int64)


class Memory(nn.Module):
    """Parameters and buffers that share memory in every way there is, and buffers of all dtypes."""

    def __init__(self) -> None:
        super().__init__()
        whole = torch.arange(24.0)
        self.tied = nn.Linear(4, 4, bias=False)
        self.to_it = nn.Linear(4, 4, bias=False)
        self.to_it.weight = self.tied.weight
        self.gaps = nn.Parameter(torch.randn(4, 8)[:, ::2], requires_grad=False)
        self.register_buffer("head", whole[:4])
        self.register_buffer("tail", whole[8:12])
        self.register_buffer("bits", whole.view(torch.int32)[:4])
        self.register_buffer("nothing", torch.empty(0, 3))
        self.register_buffer("scalar", torch.tensor(2.5))
        self.register_buffer("left_out", torch.ones(4), persistent=False)
        for number, dtype in enumerate(DTYPES):
            self.register_buffer(f"held_{number}", torch.arange(6).reshape(2, 3).t().to(dtype))

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        y = self.to_it(self.tied(x)) @ self.gaps + self.head + self.tail + self.bits.float() + self.left_out
        held = (buffer for name, buffer in self.named_buffers() if name.startswith("held"))
        return y * self.scalar + sum(part.to(torch.complex64).abs().sum() for part in (*more, *held))


class Stateful(nn.Module):
    """What modules keep as attributes: plain tensors, results of autograd, a device, an enum of torch's, operators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.plain = torch.arange(4.0)[1:3]
        self.kept = self.linear(torch.ones(2))
        self.device, self.memory_format = torch.device("cpu"), torch.channels_last
        self.operator, self.act = torch.ops.aten.relu.default, torch.relu
        self.packet = torch.ops.aten.sigmoid
        self.handle = self.register_forward_hook(lambda module, inputs, output: output + module.plain)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.packet(self.operator(self.act(self.linear(x)))) + self.kept.detach()


def half(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x / by


def images() -> torch.Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def a_module() -> LoadedSubject:
    model, seen = Net().train(), []
    model.norm.eval()
    model.second.weight.requires_grad_(False)
    model(images()).sum().backward()
    model.first.register_forward_hook(lambda module, inputs, output: output.mul(3))
    model.second.register_forward_pre_hook(lambda module, inputs: (seen.append(1), inputs[0].abs())[1:])
    model.first.weight.register_hook(lambda grad: grad)  # on a tensor: no copy of ours has these
    return LoadedSubject("a module", model, (images(),), {"scale": 2.0}, ("a note",), "model.py")


def shared_memory() -> LoadedSubject:
    model = Memory()
    x = torch.ones(2, 4)
    return subject_from_python(model, (x, x, x[1:], model.tied.weight, model.head[1:3]), name="shared memory")


def inputs() -> LoadedSubject:
    expanded = torch.randn(1, 3).expand(4, 3)
    dynamic = torch.randn(4, 3)
    torch._dynamo.mark_dynamic(dynamic, 0, min=2, max=9)
    grads = torch.randn(4, 3, requires_grad=True)
    grads.grad = torch.ones(4, 3)
    nested = {"list": [torch.ones(2), 3], "flag": True, "conj": torch.ones(2, dtype=torch.complex64).conj()}

    def add(*args: torch.Tensor, nested: dict[str, Any]) -> torch.Tensor:
        return sum(a.sum() for a in args) + nested["list"][0].sum() * nested["list"][1] + nested["conj"].real.sum()

    args = (expanded, dynamic, grads, grads * 2, torch.randn(6, 4)[1:5, 1:])
    return LoadedSubject("inputs", add, args, {"nested": nested})


def parametrized() -> LoadedSubject:
    new = nn.utils.parametrizations
    kinds = (new.weight_norm, new.spectral_norm, new.orthogonal, nn.utils.weight_norm, nn.utils.spectral_norm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last two are the old ones
        model = nn.Sequential(*(kind(nn.Linear(4, 4)) for kind in kinds), Holder(nn.ReLU()))
    return subject_from_python(model.eval(), torch.ones(2, 4), name="parametrized")


class Holder(nn.Module):
    """Keeps the same module under two names, itself in a list, and one compiled."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.again = inner, inner
        self.me = [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.me[0] is self
        assert self.inner is self.again
        return self.inner(x)


def functions() -> LoadedSubject:
    net, table = Net().eval(), torch.randn(3, 1, 1)

    @functools.lru_cache
    def scale(times: int) -> float:
        return 0.5 * times

    def closed(x: torch.Tensor) -> torch.Tensor:
        return net(half(x)) * scale(3) + table

    return subject_from_python(functools.partial(closed), images(), name="functions")


def from_a_file(folder: Path) -> LoadedSubject:
    path = folder / "model_file.py"
    path.write_text(SOURCE)
    return subject_from_python(execute_file(path).Model(), torch.ones(2), name="from a file")


def from_main() -> LoadedSubject:
    """A class as a script or a notebook has it: of ``__main__``, its text in no file."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, "<a cell of a notebook>", "exec"), namespace)
    return subject_from_python(namespace["Model"](), torch.ones(2), name="from main")


def from_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedSubject:
    """As many load a file of their own: a module with a specification, in a folder that is not on sys.path."""
    (folder / "by_path.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("by_path", folder / "by_path.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "by_path", module)
    spec.loader.exec_module(module)
    return subject_from_python(module.Model(), torch.ones(2), name="from a path")


def from_a_folder_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedSubject:
    (folder / "on_the_path.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("on_the_path")
    monkeypatch.delitem(sys.modules, "on_the_path")
    monkeypatch.setitem(sys.modules, "on_the_path", module)  # and is taken out at the end
    return subject_from_python(module.Model(), torch.ones(2), name="on the path")


def exported_with_names() -> LoadedSubject:
    class Named(nn.Module):
        def forward(self, first: dict[str, torch.Tensor], *, second: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"sum": first["a"] + second.cos(), "same": first["a"]}

    batch = torch.export.Dim("batch", min=2, max=16)
    args, kwargs = ({"a": torch.ones(4, 3)},), {"second": torch.ones(4, 3)}
    shapes = {"first": {"a": {0: batch}}, "second": {0: batch}}
    model = torch.export.export(Named(), args, kwargs, dynamic_shapes=shapes).module()
    return LoadedSubject("exported with names", model, args, kwargs)


def layers() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


MAKERS = (
    a_module, shared_memory, inputs, parametrized, functions,
    from_a_file, from_main, from_a_path, from_a_folder_on_the_path, exported_with_names,
    lambda: subject_from_python(Net().eval().forward, (images(), 3.0), name="a bound method"),
    lambda: subject_from_python(lambda x: (lambda y: half(y, by=4))(x), images(), name="a lambda"),
    lambda: subject_from_python(torch.export.export(Net().eval(), (images(), 2.0)), (images(), 2.0), name="exported"),
    lambda: subject_from_python(torch.fx.symbolic_trace(layers().eval()), images(), name="traced"),
    lambda: subject_from_python(Stateful(), torch.ones(2), name="stateful"),
    lambda: LoadedSubject("without tensors", len, ("four",), {}),
)  # fmt: skip


def make(maker: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> LoadedSubject:
    torch.manual_seed(0)
    given = {"folder": folder, "monkeypatch": monkeypatch}
    wanted = maker.__code__.co_varnames[: maker.__code__.co_argcount]
    return maker(**{name: given[name] for name in wanted})


def private(folder: Path, name: str) -> Path:
    directory = folder / name
    directory.mkdir(mode=0o700)
    return directory


def child(*arguments: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def same(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return bool(before.dtype == after.dtype and torch.equal(before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(same(value, after[key]) for key, value in before.items())
    if isinstance(before, (tuple, list)):
        return len(before) == len(after) and all(map(same, before, after))
    return bool(before == after)


def test_what_another_process_rebuilds_is_what_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directories, expected, here = [], [], []
    warnings.simplefilter("ignore")
    for number, maker in enumerate(MAKERS):
        subject = make(maker, tmp_path, monkeypatch)
        directories.append(private(tmp_path, str(number)))
        save_subject(subject, directories[-1])
        rebuilt = load_subject(directories[-1])
        expected.append(facts(subject))
        here.append(facts(rebuilt))

    child(str(TESTS / "transport_facts.py"), *map(str, directories), folder=tmp_path)

    different = []
    for directory, before, at_home in zip(directories, expected, here, strict=True):
        there = torch.load(directory / FACTS_FILE, weights_only=False)
        for tensor in before["tensors"].values():
            tensor.update(grad=False, is_leaf=True)  # no gradient travels, and with it no graph
        for after in (at_home, there):
            different += [(before["names"][0], part) for part in before if not same(before[part], after[part])]
    assert different == []


def test_text_of_code_in_no_file_comes_along(tmp_path: Path) -> None:
    directory = private(tmp_path, "subject")
    name = "<a cell of its own>"
    linecache.cache[name] = (len(SOURCE), None, SOURCE.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE, name, "exec"), namespace)
    save_subject(subject_from_python(namespace["Model"](), torch.ones(2)), directory)
    del linecache.cache[name]

    model = load_subject(directory).model

    assert type(model).forward.__code__.co_filename == name
    assert linecache.getline(name, SOURCE.splitlines().index("class Model(Block):") + 1) == "class Model(Block):\n"
    del linecache.cache[name]


def test_saving_changes_nothing_of_the_callers(tmp_path: Path) -> None:
    model, x = Net(), images().requires_grad_()
    model.first.register_forward_hook(lambda *_: None)
    model(x).sum().backward()

    def state() -> Any:
        tensors = [*model.parameters(), *model.buffers(), x]
        held = [(tensor.data_ptr(), tensor.stride(), tensor._version, id(tensor.grad)) for tensor in tensors]
        modes = [(module.training, list(module._forward_hooks)) for module in model.modules()]
        return held, modes, list(sys.path), cloudpickle.list_registry_pickle_by_value()

    before = state()
    save_subject(subject_from_python(model, x), private(tmp_path, "subject"))

    assert state() == before


class Keeps(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.blocks[1].table = {"a": [1, value]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


LOCKED = """
import threading
import torch
from torch import nn

LOCK = threading.Lock()

class Guarded(nn.Module):
    guard = threading.Lock()

    def __init__(self):
        super().__init__()

def locked(x):
    def inside():
        with LOCK:
            return x
    return inside()
"""


def of_main(name: str) -> Any:
    """What a script of its own defines: it travels by value."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(LOCKED, namespace)
    return namespace[name]


class Raises(nn.Module):
    def __getstate__(self) -> object:
        raise ValueError("not this one")


@contextlib.contextmanager
def hooks_on_all_modules() -> Iterator[None]:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    handle.remove()


@contextlib.contextmanager
def little_room() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1000))
        yield


def a_setting_with_a_lock() -> Any:
    lock = threading.Lock()
    return torch._inductor.config.patch({"post_grad_custom_pre_pass": lambda graph: lock})


def of_model(make: Any) -> Any:
    return lambda: subject_from_python(make(), torch.ones(2), name="it")


def of_function(count: int = 2, **keywords: Any) -> Any:
    return lambda: LoadedSubject("it", half, (torch.ones(count),), keywords)


@pytest.mark.parametrize(
    ("subject", "surroundings", "said"),
    [
        *(
            (of_model(make), contextlib.nullcontext, place)
            for make, place in (
                (lambda: Keeps(threading.Lock()), "model.blocks.1.table['a'][1] (lock)"),
                (lambda: Keeps(Path(__file__).open()), "model.blocks.1.table['a'][1] (TextIOWrapper)"),  # noqa: SIM115
                (lambda: nn.Sequential(nn.Identity(), Raises()), "model.1 (Raises)"),
                (lambda: of_main("Guarded")(), "something that the subject uses (lock)"),
                (lambda: of_main("locked"), "global LOCK of locked (lock)"),
                (lambda: functools.partial(half, by=threading.Lock()), "model.keywords['by'] (lock)"),
                (lambda: (lambda guard: lambda x: guard)(threading.Lock()), "variable guard of"),
            )
        ),
        (
            of_function(by={"lock": threading.Lock()}),
            contextlib.nullcontext,
            "its keyword inputs['by']['lock'] (lock) cannot",
        ),
        (of_function(), hooks_on_all_modules, "hooks on all modules are registered"),
        (of_function(1000), little_room, "its tensors take 3.91 KiB on disk, 1000 B are free in"),
        (
            of_function(),
            a_setting_with_a_lock,
            "the setting torch._inductor.config.post_grad_custom_pre_pass (lock) cannot",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_keeps_a_subject_at_home_is_named_with_its_place(
    subject: Any, surroundings: Any, said: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = private(tmp_path_factory.mktemp("work"), "subject")
    subject = subject()

    with surroundings(), pytest.raises(SubjectError, match="cannot hand it to another process: ") as caught:
        save_subject(subject, directory)

    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert cloudpickle.list_registry_pickle_by_value() == set()
    gc.collect()


class CannotBeRebuilt(nn.Module):
    def __setstate__(self, state: object) -> None:
        raise RuntimeError("only here\nand not there")


def test_a_function_that_dynamo_knows_is_found_again_and_not_made_anew(tmp_path: Path) -> None:
    model = nn.Conv2d(3, 4, 3)
    model.pool = nn.functional.max_pool2d  # made within another function of torch's

    save_subject(subject_from_python(model, torch.ones(1, 3, 4, 4)), tmp_path)

    assert load_subject(tmp_path).model.pool is nn.functional.max_pool2d


def test_what_cannot_be_rebuilt_is_one_sentence(tmp_path: Path) -> None:
    directory = private(tmp_path, "subject")
    save_subject(subject_from_python(CannotBeRebuilt(), torch.ones(2)), directory)
    with pytest.raises(SubjectError, match="cannot rebuild the model in another process: RuntimeError: only here;"):
        load_subject(directory)


def test_tensors_are_private_to_the_process_that_loads_them_and_a_kept_result_is_a_constant(tmp_path: Path) -> None:
    model = Stateful()
    save_subject(subject_from_python(model, torch.ones(2)), stateful := private(tmp_path, "stateful"))
    for copied in (load_subject(stateful).model, copy_model(model)):
        assert (copied.kept.requires_grad, copied.kept.tolist()) == (False, model.kept.tolist())

    directory = private(tmp_path, "subject")
    save_subject(a_module(), directory)
    first = load_subject(directory)
    with torch.no_grad():
        first.model.first.weight.zero_()

    assert load_subject(directory).model.first.weight.abs().sum() > 0


SETTINGS = """
import sys
from pathlib import Path
import torch
import torch._inductor.config
from layoutdoctor.subjects.transport import load_subject

load_subject(Path(sys.argv[1]))
print(torch.get_num_threads(), torch.get_default_dtype(), torch.get_default_device(), sys.getrecursionlimit())
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled)
print(torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
print(torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch._inductor.config.layout_optimization)
print(torch._inductor.config.post_grad_custom_pre_pass("graph"))
"""


SAVES = """
import sys
from pathlib import Path
import torch
import torch._inductor.config
from layoutdoctor.subjects.subject import LoadedSubject
from layoutdoctor.subjects.transport import save_subject

changes = {"layout_optimization": False, "post_grad_custom_pre_pass": lambda graph: f"my {graph}"}
with torch._inductor.config.patch(changes), torch.autocast("cpu", dtype=torch.float16):
    sys.setrecursionlimit(2345)
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    torch.backends.mkldnn.set_flags(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    save_subject(LoadedSubject("it", lambda x: x / 2, (torch.ones(2, device="cpu"),), {}), Path(sys.argv[1]))
"""


@pytest.mark.slow
def test_another_process_is_set_as_the_callers_is(tmp_path: Path) -> None:
    directory = private(tmp_path, "subject")
    child("-c", SAVES, str(directory), folder=tmp_path)

    printed = child("-c", SETTINGS, str(directory), folder=tmp_path).splitlines()

    assert printed == [
        "3 torch.float64 meta 2345",
        "high True False",
        "True True",
        "True torch.float16 False",
        "my graph",
    ]
