"""The child's side: its way to the supervisor, what it answers, and what of an earlier process it takes over."""

from __future__ import annotations

import dataclasses
import os
import sys
import types
from datetime import datetime, timezone
from functools import reduce
from io import FileIO
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
import torch
from cured_models import Flat
from torch import nn

from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.diagnosis.records import Cure, Diagnosis, Failure, Graph, KernelSummary, Trial
from layoutdoctor.errors import DeviceLostError, SubjectError, UnsupportedTorchError
from layoutdoctor.examination.trust import graphs_without_seconds, kernels_without_seconds
from layoutdoctor.isolation.messages import (
    Began,
    Broken,
    Derived,
    Finished,
    Kept,
    KeptMore,
    Listener,
    Lost,
    MessageReader,
    Progress,
    Refused,
    Request,
    TrialMemo,
    TurnBoard,
)
from layoutdoctor.recording.saved import pack
from layoutdoctor.run import diagnosing, worker
from layoutdoctor.run.deriving import with_cures, with_switch
from layoutdoctor.run.diagnose import record_subject
from layoutdoctor.run.recorded import diagnose_recordings
from layoutdoctor.run.worker import Channel
from layoutdoctor.subjects.subject import subject_from_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from layoutdoctor.diagnosis.records import Configuration
    from layoutdoctor.isolation.messages import AnyMessage
    from layoutdoctor.recording.recording import Recording
    from layoutdoctor.subjects.subject import LoadedSubject

EAGER = choose_configurations("eager,eager-channels-last", "inference")
FAILURE = Failure(kind="run", message="the process died of signal 11", log="a stack")


class Net(nn.Module):
    """Two convolutions, and a count of how often its channels-last copies run."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3)
        self.other = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.other(torch.relu(self.conv(x)))


SUBJECT = subject_from_python(Net(), torch.randn(2, 4, 16, 16))


class Told(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[str | None, str, bool]] = []
        self.turns: list[str] = []
        self.kept: list[Kept] = []
        self.added: list[str] = []
        self.known = Kept()

    def began(self, configuration: str | None, stage: str, *, is_new: bool = True) -> None:
        self.begun.append((configuration, stage, is_new))

    def turn(self, configuration: str) -> None:
        self.turns.append(configuration)

    def keep(self, recording: Recording, memo: TrialMemo) -> None:
        self.known = self.known.with_trial(recording, memo)
        self.kept.append(self.known)

    def derived(self, configurations: tuple[Configuration, ...]) -> None:
        self.known = self.known.with_derived(configurations)
        self.added += [configuration.name for configuration in configurations]


FLAT = subject_from_python(Flat(), torch.randn(2, 4, 3, 8, 8))
REQUEST = Request(target="m.py", configurations=EAGER, budget_seconds=0.05)

DERIVING = msgspec.structs.replace(REQUEST, derives=True, times_here=True)


def diagnose(
    told: Told, subject: LoadedSubject = SUBJECT, request: Request = REQUEST, kept: Kept | None = None, **lost: Lost
) -> Diagnosis:
    """What another process makes of a request and of what is known here; as the supervisor makes it of its end."""
    told.known = kept or Kept()
    lost = {name.replace("_", "-"): how for name, how in lost.items()}
    request = msgspec.structs.replace(request, kept=told.known.without_profiles(), lost=lost)
    recordings = record_subject(subject, request, told)
    return diagnose_recordings(reduce(Kept.with_trial, recordings, told.known).recordings, ())


@pytest.fixture(scope="module")
def first() -> tuple[Diagnosis, Told]:
    told = Told()
    return diagnose(told), told


def test_each_stage_of_each_configuration_is_told(first: tuple[Diagnosis, Told]) -> None:
    _, told = first
    began = [(name, stage) for name, stage, _ in told.begun]

    assert began[:2] == [(None, "running the model once in eager mode"), (None, "computing the float64 reference")]
    for name in ("eager", "eager-channels-last"):
        assert [stage for other, stage in began if other == name] == ["prepare", "run", "profile", "measure"]
    assert [is_new for name, _, is_new in told.begun if name == "eager"] == [True, False, False, False]
    assert began[-2:] == [(None, "measure"), (None, "looking for findings")]
    assert set(told.turns) == {"eager", "eager-channels-last"}


def test_a_diagnosis_was_begun_when_its_first_process_began_it(first: tuple[Diagnosis, Told]) -> None:
    begun = datetime.strptime(first[0].created_at, "%Y-%m-%dT%H:%M:%S%z")

    assert abs((datetime.now(timezone.utc) - begun).total_seconds()) < 60


def test_each_trial_is_handed_over_with_what_its_record_lacks(first: tuple[Diagnosis, Told]) -> None:
    _, told = first

    assert [[recording.name for recording in kept.recordings] for kept in told.kept] == [
        ["eager"],
        ["eager", "eager-channels-last"],
    ]
    memo = told.kept[1].memos["eager"]
    assert memo.key is not None
    assert memo.key != told.kept[1].memos["eager-channels-last"].key
    assert memo.peak_memory_bytes
    assert told.kept[1].recordings[0].head.interrupted is not None


def seen(trial: Trial) -> tuple[tuple[Graph, ...], KernelSummary | None]:
    """Without times, which new rounds may contradict."""
    kernels = trial.kernels and kernels_without_seconds(trial.kernels)
    return graphs_without_seconds(trial.graphs), kernels


def test_what_is_done_is_timed_but_not_run_again(first: tuple[Diagnosis, Told]) -> None:
    whole, before = first
    told = Told()

    diagnosis = diagnose(told, kept=before.kept[0])

    assert [name for name, stage, _ in told.begun if stage == "profile"] == ["eager-channels-last"]
    assert diagnosis.created_at == whole.created_at
    assert [trial.status for trial in diagnosis.trials] == ["ok", "ok"]
    assert all(trial.measurement is not None for trial in diagnosis.trials)
    assert seen(diagnosis.trials[0]) == seen(whole.trials[0])
    assert diagnosis.comparison is not None
    measurement = diagnosis.trials[0].measurement
    assert measurement is not None
    assert measurement.peak_memory_bytes == before.kept[0].memos["eager"].peak_memory_bytes


def test_where_all_is_done_or_lost_there_is_only_timing(
    first: tuple[Diagnosis, Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosing, "compute_reference", None)  # nothing is left to compare with it
    told = Told()

    diagnosis = diagnose(told, kept=first[1].kept[1], eager_channels_last=Lost(status="crashed", failure=FAILURE))

    trial = diagnosis.trial("eager-channels-last")
    assert (trial.status, trial.failure) == ("crashed", FAILURE)
    assert seen(trial) == seen(first[0].trials[1])  # what was seen before it was lost stays
    assert "eager-channels-last" not in told.turns
    assert diagnosis.trials[0].measurement is not None


def test_all_may_be_lost() -> None:
    late = Lost(status="timed_out", failure=FAILURE)
    diagnosis = diagnose(Told(), eager=late, eager_channels_last=late)

    assert [trial.status for trial in diagnosis.trials] == ["timed_out", "timed_out"]
    assert diagnosis.comparison is None


def test_a_configuration_that_fails_the_second_time_has_failed(first: tuple[Diagnosis, Told]) -> None:
    class Fickle(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.conv.weight.is_contiguous():
                raise RuntimeError("not again")
            return super().forward(x)

    subject = dataclasses.replace(SUBJECT, model=Fickle())
    diagnosis = diagnose(Told(), subject, kept=first[1].kept[1])

    failure = diagnosis.trial("eager-channels-last").failure
    assert failure is not None
    assert failure.message == "RuntimeError: not again"
    assert diagnosis.trial("eager").measurement is not None


@pytest.mark.parametrize("may_restart", [True, False])
def test_a_lost_device_ends_the_process_or_all_that_follows(may_restart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Picky(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.conv.weight.is_contiguous() and not torch.is_inference_mode_enabled() and self.ready:
                raise RuntimeError("CUDA error: device-side assert triggered")
            return super().forward(x)

        ready = False

    monkeypatch.setattr(diagnosing, "why_unusable", lambda device: f"RuntimeError: CUDA error on {device}")
    subject = dataclasses.replace(SUBJECT, model=Picky())

    class Readying(Told):
        def began(self, configuration: str | None, stage: str, *, is_new: bool = True) -> None:
            Picky.ready = configuration is not None

    told = Readying()
    told.may_restart = may_restart
    message = (
        "RuntimeError: CUDA error: device-side assert triggered; the device could not be used in that process any "
        "more (RuntimeError: CUDA error on cpu)"
    )
    if may_restart:
        with pytest.raises(DeviceLostError) as caught:
            diagnose(told, subject)
        assert (caught.value.configuration, caught.value.stage, str(caught.value)) == ("eager", "run", message)
        assert caught.value.log is not None
    else:
        trials = diagnose(told, subject).trials
        assert [trial.status for trial in trials] == ["crashed", "failed"]
        assert trials[0].failure is not None
        assert trials[0].failure.message == message
        assert trials[1].failure is not None
        assert trials[1].failure.message.startswith("not run: eager made the device unusable in this process")


@pytest.fixture(scope="module")
def cured() -> tuple[Diagnosis, Told]:
    told = Told()
    told.may_restart = True  # what was handed over is not here any more
    return diagnose(told, FLAT, DERIVING), told


def test_the_best_is_tried_with_its_cure_in_the_same_rounds(cured: tuple[Diagnosis, Told]) -> None:
    diagnosis, told = cured
    (name,) = told.added

    assert name in ("eager+flat-conv3d", "eager-channels-last+flat-conv3d")
    assert [trial.name for trial in diagnosis.trials] == ["eager", "eager-channels-last", name]
    assert set(told.turns) == {"eager", "eager-channels-last", name}
    assert diagnosis.trials[2].measurement is not None
    assert diagnosis.trials[2].equivalence is not None
    assert diagnosis.trials[2].equivalence.status == "equal"
    began = [(configuration, stage) for configuration, stage, _ in told.begun]
    assert began.index(("eager-channels-last", "profile")) < began.index((name, "prepare"))
    assert began.index((name, "profile")) < began.index((None, "measure"))


def test_what_was_derived_by_an_earlier_process_is_not_derived_again(cured: tuple[Diagnosis, Told]) -> None:
    before, name = cured[1], cured[1].added[0]
    request = msgspec.structs.replace(DERIVING, configurations=(*EAGER, *before.known.derived))  # as it is sent then
    told = Told()

    diagnosis = diagnose(told, FLAT, request, kept=before.kept[1])

    assert told.added == []
    assert [trial.name for trial in diagnosis.trials] == ["eager", "eager-channels-last", name]
    assert [configuration for configuration, stage, _ in told.begun if stage == "profile"] == [name]
    assert diagnosis.trials[2].measurement is not None


def test_what_an_earlier_process_saw_speaks_for_a_cure(cured: tuple[Diagnosis, Told]) -> None:
    told = Told()

    diagnosis = diagnose(told, FLAT, DERIVING, kept=cured[1].kept[1])

    assert len(told.added) == 1
    assert diagnosis.trials[2].name == told.added[0]
    assert diagnosis.trials[2].measurement is not None


def test_configurations_that_were_named_have_no_others_made_of_them() -> None:
    told = Told()
    diagnosis = diagnose(told, FLAT)

    assert told.added == []
    assert [trial.name for trial in diagnosis.trials] == ["eager", "eager-channels-last"]


def test_a_static_diagnosis_goes_on_too() -> None:
    told = Told()
    configurations = choose_configurations("eager,inductor,inductor-layout-opt-off", "inference")
    request = msgspec.structs.replace(REQUEST, configurations=configurations, lower_for="cuda:90")
    reference = diagnose(told, request=msgspec.structs.replace(request, configurations=configurations[:2]))
    assert [len(kept.recordings) for kept in told.kept] == [1, 2]

    again = Told()
    lost = Lost(status="crashed", failure=FAILURE)
    diagnosis = diagnose(again, request=request, kept=told.kept[1], inductor_layout_opt_off=lost)

    assert [trial.status for trial in diagnosis.trials] == ["skipped", "ok", "crashed"]
    assert diagnosis.trials[:2] == reference.trials
    assert diagnosis.trials[2].is_static
    assert [name for name, _, _ in again.begun] == [None]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


@pytest.fixture
def channel(pipe: tuple[int, int]) -> Iterator[Channel]:
    memory = TurnBoard.make()
    made = Channel(pipe[1], TurnBoard(memory), [configuration.name for configuration in EAGER])
    os.close(memory)
    yield made
    os.close(made._descriptor)


def heard(reading: int) -> list[Any]:
    os.set_blocking(reading, False)
    return list(MessageReader().feed(os.read(reading, 10**6)))


def test_the_channel_says_what_it_is_told(
    pipe: tuple[int, int], channel: Channel, first: tuple[Diagnosis, Told]
) -> None:
    (recording,), memo = first[1].kept[0].recordings, first[1].kept[0].memos["eager"]

    channel.progress(Progress("eager: running", 1, 3))
    channel.began("eager", "run", is_new=False)
    channel.turn("eager-channels-last")
    channel._board.let_go_on()
    channel.keep(recording, memo)

    *others, more = heard(pipe[0])
    assert others == [Progress("eager: running", 1, 3), Began(configuration="eager", stage="run", is_new=False)]
    assert pack(more) == pack(KeptMore(recording=recording, memo=memo))
    assert (channel._board.read() or (None,))[0] == 1
    assert channel.may_restart
    assert channel._descriptor >= 300
    assert not os.get_inheritable(channel._descriptor)


def test_a_forked_copy_ends_instead_of_talking(pipe: tuple[int, int], channel: Channel) -> None:
    child = os.fork()
    if child == 0:
        channel.began("eager", "run")
        os._exit(0)  # not reached

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == worker.STATUS_FORKED
    channel.began(None, "load")
    assert len(heard(pipe[0])) == 1


def test_a_process_with_few_descriptors_keeps_the_low_number(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(fcntl, "fcntl", mock.Mock(side_effect=OSError(22, "Invalid argument")))

    assert worker._moved_up(pipe[1]) == pipe[1]
    assert not os.get_inheritable(pipe[1])
    os.close(pipe[1])


def test_what_is_derived_is_told_and_has_turns_of_its_own(pipe: tuple[int, int], channel: Channel) -> None:
    cured = (with_cures(EAGER[0], (Cure(name="flat-conv3d"),)), with_switch(EAGER[1]))

    channel.derived(cured)
    channel.turn("eager-channels-last+cudnn-benchmark")

    assert heard(pipe[0]) == [Derived(configurations=cured)]
    turn = channel._board.read()
    assert turn is not None
    assert turn[0] == 3


def answer(channel: Channel) -> AnyMessage:
    with FileIO(os.devnull) as stream:
        return worker._answer(REQUEST, lambda: SUBJECT, channel, stream)


def test_what_a_request_ends_in_is_told_and_a_bug_is_not_hidden(
    pipe: tuple[int, int], channel: Channel, monkeypatch: pytest.MonkeyPatch, first: tuple[Diagnosis, Told]
) -> None:
    engine = types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "layoutdoctor.run.diagnose", engine)
    recordings = first[1].kept[0].without_profiles().recordings
    engine.record_subject = mock.Mock(return_value=recordings)

    assert answer(channel) == Finished(recordings=recordings)
    assert engine.record_subject.call_args.args == (SUBJECT, REQUEST, channel)
    assert heard(pipe[0]) == [Began(configuration=None, stage="load")]
    for error, said in (
        (SubjectError("mend it"), Refused(kind="SubjectError", message="mend it")),
        (
            DeviceLostError("eager", "run", "CUDA error", "a stack"),
            Broken(configuration="eager", failure=Failure(kind="run", message="CUDA error", log="a stack")),
        ),
    ):
        engine.record_subject.side_effect = error
        assert answer(channel) == said
    engine.record_subject.side_effect = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        answer(channel)


def test_without_torch_it_says_what_to_install(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTorch:
        def find_spec(self, name: str, *rest: object) -> None:
            if name == "layoutdoctor.run.diagnose":
                raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.delitem(sys.modules, "layoutdoctor.run.diagnose", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])

    said = answer(channel)

    assert isinstance(said, Refused)
    assert said.kind == UnsupportedTorchError.__name__
