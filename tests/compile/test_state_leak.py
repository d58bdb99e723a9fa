"""
Nothing of the process is another than before ``diagnose()``: not after a result, not after a failure at any stage.

``process_state`` compares, and knows nothing of what layoutdoctor keeps. What stays by torch's design, and is not
counted: Inductor's cache directory (shared by all processes of a user; a diagnosis adds kernels by their source and no
graphs), and Inductor's worker processes and threads, which the first compile of any process starts: here the caller has
compiled before, so that not one more may be there.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch._inductor.config as inductor_config
from live_trials import diagnosed_here
from loops import for_each
from process_state import differences, snapshot
from torch import nn
from torch._inductor.graph import GraphLowering

import layoutdoctor
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.errors import LayoutDoctorError
from layoutdoctor.isolation.messages import Request
from layoutdoctor.rules.base import Rule
from layoutdoctor.subjects.load import load_target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from layoutdoctor.diagnosis.records import Diagnosis, Mode
    from layoutdoctor.isolation.messages import Progress

CASEBOOK = Path(__file__).parent.parent / "casebook"
CASES = tuple(path.name[:2] for path in sorted(CASEBOOK.glob("[0-9]*.py")))
MODES: tuple[Mode, ...] = ("inference", "training")
EAGER = "eager eager-channels-last"


class Tripwire:
    """Counts the calls of the model, and raises or does mischief at one of them."""

    def __init__(self) -> None:
        self.calls = 0
        self.at = 0
        self.act: Callable[[], object] = lambda: None

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.at or self.at < 0:
            self.act()


TRIPWIRE = Tripwire()


class Net(nn.Module):
    """Convolutions in both formats, running statistics, hooks, tied weights, dropout and a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(0.1)
        self.second = nn.Conv2d(8, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.third = nn.Conv2d(8, 8, 3, padding=1)
        self.third.weight = self.second.weight
        self.seen: dict[str, list[int]] = {"shapes": []}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.seen["shapes"].append(x.shape[0])
            TRIPWIRE()
        return self.third(self.dropout(self.second(torch.relu(self.norm(self.first(x))))))


def callers() -> tuple[Net, torch.Tensor]:
    """A model and an input as a caller has them in the middle of work: with gradients, hooks and modes."""
    model, x = Net(), torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    model(x).sum().backward()
    model.norm.eval()
    model.first.weight.requires_grad_(requires_grad=False)
    model.first.register_forward_hook(lambda *_: None)
    model.first.register_forward_pre_hook(lambda *_: None)
    model.second.register_full_backward_hook(lambda *_: None)
    model.register_state_dict_pre_hook(lambda *_: None)
    model.register_load_state_dict_post_hook(lambda *_: None)
    model.second.weight.register_hook(lambda gradient: gradient)
    return model, x


def diagnose_in_eager(model: Any, x: torch.Tensor, **options: Any) -> Diagnosis:
    return layoutdoctor.diagnose(model, x, **{"configurations": "eager", "timer": at_once, **options})


def diagnose_while(act: Callable[[], object], at: int) -> None:
    """A diagnosis of a model that does this at one of its calls; afterwards nothing is another."""
    model, x = callers()
    TRIPWIRE.calls, TRIPWIRE.at, TRIPWIRE.act = 0, at, act
    with nothing_changes(model, x), contextlib.suppress(LayoutDoctorError, KeyboardInterrupt):
        diagnose_in_eager(model, x)


def at_once(step: Callable[[], None], calls: int) -> tuple[float, ...]:
    """A timer that calls once and makes up the rest: the rounds are soon over."""
    step()
    return (1e-3,) * calls


@pytest.fixture(autouse=True)
def _own_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A temporary folder that nobody else writes to, and Inductor's cache where it always is."""
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or torch._inductor.runtime.cache_dir_utils.default_cache_dir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", cache)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    TRIPWIRE.__init__()  # type: ignore[misc]
    yield
    TRIPWIRE.__init__()  # type: ignore[misc]


@pytest.fixture(scope="module")
def _compiled_before() -> None:
    """The caller has compiled and profiled in this process: what torch prepares at the first time is prepared."""
    model, x = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Sigmoid()), torch.randn(1, 3, 8, 8)
    with inductor_config.patch(fx_graph_cache=False), torch.profiler.profile():
        compiled = torch.compile(model)
        compiled(x).sum().backward()
        with torch.no_grad():
            compiled(x)
    layoutdoctor.diagnose(model, x, configurations="inductor", target="cuda:90", isolate=False)
    torch._dynamo.reset()


@contextlib.contextmanager
def nothing_changes(model: Any = None, inputs: Any = (), *, walk: bool = False) -> Iterator[None]:
    before = snapshot(model=model, inputs=inputs, walk=walk)
    yield
    changed = differences(before, snapshot(model=model, inputs=inputs, walk=walk))
    assert not changed, "\n".join(changed)


def diagnose(mode: Mode, configurations: str, target: str | None = None, **keywords: Any) -> Diagnosis:
    model, x = callers()
    with nothing_changes(model, x, walk="inductor" in configurations):
        return layoutdoctor.diagnose(
            model,
            x,
            mode=mode,
            configurations=configurations.split(),
            target=target,
            timer=None if target else at_once,
            isolate=False,
            **keywords,
        )


# After a result


@pytest.mark.parametrize("mode", MODES)
def test_eager_configurations_leave_everything_as_it_was(mode: Mode) -> None:
    diagnosis = diagnose(mode, EAGER)

    assert [trial.status for trial in diagnosis.trials] == ["ok", "ok"]


@pytest.mark.compile
@pytest.mark.usefixtures("_compiled_before")
@pytest.mark.parametrize("mode", MODES)
def test_compiled_configurations_leave_everything_as_it_was(mode: Mode) -> None:
    with inductor_config.patch(fx_graph_cache=True):  # what is saved there, or found, is not noted in this process
        diagnosis = diagnose(mode, "inductor-channels-last")

    assert [trial.status for trial in diagnosis.trials] == ["ok"]


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_before")
@pytest.mark.parametrize("mode", MODES)
def test_lowering_for_a_gpu_that_is_not_there_leaves_everything_as_it_was(mode: Mode) -> None:
    diagnosis = diagnose(mode, "inductor inductor-channels-last", target="cuda:90")

    assert [trial.status for trial in diagnosis.trials] == ["ok", "ok"]


def leave_a_case_alone(
    case: str, mode: Mode, configurations: str, target: str | None = None, *, walk: bool = True
) -> None:
    (path,) = CASEBOOK.glob(f"{case}_*.py")
    subject = load_target(str(path))
    with nothing_changes(subject.model, (subject.args, subject.kwargs), walk=walk):
        diagnosed_here(
            subject,
            Request(
                mode=mode,
                configurations=choose_configurations(configurations.split(), mode),
                lower_for=target,
                budget_seconds=0.1,
            ),
            timer=None if target else at_once,
        )


@for_each(("case", "mode"), itertools.product(CASES[1:3], MODES))
def test_a_case_of_the_casebook_leaves_everything_as_it_was(case: str, mode: Mode) -> None:
    leave_a_case_alone(case, mode, EAGER, walk=False)


@pytest.mark.compile
@pytest.mark.usefixtures("_compiled_before")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_casebook_leaves_everything_as_it_was(case: str, mode: Mode) -> None:
    leave_a_case_alone(case, mode, f"{EAGER} inductor")
    leave_a_case_alone(case, mode, "inductor", target="cuda:90")


# After failures


def raising(error: type[BaseException]) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error("planted")

    return fail


@pytest.mark.parametrize(("error", "mode"), [(RuntimeError, "training"), (KeyboardInterrupt, "inference")])
def test_a_model_that_raises_at_any_of_its_calls(error: type[BaseException], mode: Mode) -> None:
    model, x = callers()
    run = functools.partial(diagnose_in_eager, model, x, mode=mode)
    TRIPWIRE.calls = 0
    run()
    count = min(TRIPWIRE.calls, 14)  # rehearsal, reference, run, profile, eager graph, memory, warm-up, rounds
    outcomes = []
    TRIPWIRE.act = raising(error)
    with nothing_changes(model, x):
        for TRIPWIRE.at in range(1, count + 1):
            TRIPWIRE.calls = 0
            try:
                outcomes.append(run().trials[0].status)
            except (LayoutDoctorError, KeyboardInterrupt) as failure:
                outcomes.append(type(failure).__name__)

    assert len(outcomes) >= 10
    if error is KeyboardInterrupt:
        assert set(outcomes) == {"KeyboardInterrupt"}
    else:
        assert outcomes[0] == "SubjectError"
        assert {"failed", "ok"} <= set(outcomes)  # without its kernel list the trial is still one


@for_each(("call", "error"), [(1, RuntimeError), (2, KeyboardInterrupt), (3, RuntimeError), (4, KeyboardInterrupt)])
def test_a_progress_callback_that_raises(call: int, error: type[BaseException]) -> None:
    done = []

    def progress(step: Progress) -> None:
        done.append(step)
        if len(done) == call:
            raise error("planted")

    with pytest.raises(error, match="planted"):
        diagnose("inference", "eager", progress=progress)


@for_each("error", [RuntimeError, KeyboardInterrupt])
def test_a_timer_that_raises(error: type[BaseException]) -> None:
    model, x = callers()
    expected = pytest.raises(error) if error is KeyboardInterrupt else contextlib.nullcontext()
    with nothing_changes(model, x), expected:
        diagnose_in_eager(model, x, timer=raising(error))


@for_each("error", [RuntimeError, KeyboardInterrupt])
def test_a_rule_that_raises(error: type[BaseException]) -> None:
    rule = Rule("LD999", "planted", "a rule that raises", "note", raising(error))
    with contextlib.suppress(error, LayoutDoctorError):
        diagnose("inference", "eager", rules=[rule])


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_before")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["codegen", "run", "compile_to_module"])
def test_a_compile_that_raises(monkeypatch: pytest.MonkeyPatch, where: str, error: type[BaseException]) -> None:
    monkeypatch.setattr(GraphLowering, where, raising(error))
    expected = pytest.raises(error) if error is KeyboardInterrupt else contextlib.nullcontext()
    statuses: list[str] = []
    with expected:
        statuses = [trial.status for trial in diagnose("training", "inductor").trials]

    assert statuses == ([] if error is KeyboardInterrupt else ["failed"])


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_before")
def test_a_compiled_model_that_raises_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.output_code.CompiledFxGraph, "__call__", raising(RuntimeError))
    with inductor_config.patch(cpp_wrapper=False):
        diagnosis = diagnose("inference", "inductor")

    assert [trial.status for trial in diagnosis.trials] == ["failed"]


@pytest.mark.parametrize("name", ["record_iteration", "named_kernels", "verbose_onednn"])
def test_a_profile_that_raises(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(layoutdoctor.measure.profiling, name, raising(RuntimeError))
    diagnosis = diagnose("inference", "eager")

    assert [trial.status for trial in diagnosis.trials] == ["ok"]


# Models that change the process themselves


def mode_that_stays() -> None:
    torch.overrides.BaseTorchFunctionMode().__enter__()


def change_the_process() -> None:
    """What no model should do, all at once; every line shows in the table if it is not put back."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    torch.set_num_threads(torch.get_num_threads() % 2 + 1)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.set_printoptions(precision=2)
    torch.set_warn_always(True)
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.benchmark
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark_limit = 3
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.mkldnn.set_flags(False)
    torch.autograd.set_detect_anomaly(True)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    torch.compiler.set_stance("force_eager")
    mode_that_stays()
    torch._logging.set_logs(dynamo=logging.DEBUG, graph_breaks=True)
    inductor_config.layout_optimization = not inductor_config.layout_optimization
    dynamo_config.recompile_limit = 3
    os.environ["LAYOUTDOCTOR_TEST_VALUE"] = "1"
    os.environ.pop("HOME", None)
    os.chdir("/")
    signal.signal(signal.SIGUSR1, lambda *_: None)
    sys.path.insert(0, "/nowhere")
    sys.argv.append("more")
    sys.path = [*sys.path]
    sys.setrecursionlimit(sys.getrecursionlimit() + 1000)
    sys.stdout = sys.stderr
    gc.disable()
    warnings.simplefilter("ignore")
    warnings.showwarning = lambda *_: None
    logging.getLogger().setLevel(logging.CRITICAL)
    logging.getLogger().addHandler(logging.NullHandler())
    logging.getLogger("torch").propagate = not logging.getLogger("torch").propagate
    logging.getLogger("torch").disabled = True
    logging.disable(logging.ERROR)


@for_each("error", [None, RuntimeError, KeyboardInterrupt])
def test_a_model_that_changes_everything_in_reach(error: type[BaseException] | None) -> None:
    changed: list[str] = []

    def change() -> None:
        before = snapshot(walk=False)
        change_the_process()
        changed.extend(differences(before, snapshot(walk=False)))
        if error is not None:
            raise error

    diagnose_while(change, at=1)

    assert len(changed) > 55, "the table does not see what was changed"


def test_a_model_that_sets_the_default_dtype_and_device() -> None:
    def change() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")

    diagnose_while(change, at=1)

    assert torch.ones(1).device.type == "cpu"


@for_each("number", [0, 1, 2])
def test_a_model_that_closes_a_standard_stream(number: int) -> None:
    diagnose_while(lambda: os.close(number), at=2)


def test_the_callers_modes_hold_while_it_works_and_afterwards() -> None:
    model, x = callers()
    with torch.autocast("cpu"), torch.inference_mode(), torch.device("cpu"), warnings.catch_warnings():
        warnings.simplefilter("always")
        with nothing_changes(model, x):
            diagnose_in_eager(model, x)
        assert torch.is_inference_mode_enabled()


def test_the_callers_profiler_goes_on() -> None:
    model, x = Net(), torch.randn(2, 4, 8, 8)
    with torch.profiler.profile() as profiler:
        torch.cos(x)
        with nothing_changes(model, x):
            diagnosis = diagnose_in_eager(model, x)
        torch.sin(x)

    assert [trial.status for trial in diagnosis.trials] == ["ok"]
    assert {"aten::cos", "aten::sin"} <= {event.key for event in profiler.key_averages()}


def test_another_thread_than_the_first_may_diagnose() -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            diagnose("inference", "eager")
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, name="MainThread")
    thread.start()
    thread.join()

    assert failures == []
