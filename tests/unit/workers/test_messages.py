"""The channel between two processes over a real socket pair, and every message that goes over it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, get_args

import pytest
from builders import a_configuration, a_graph, a_subject, a_trial, an_environment, as_observed
from recorded_builders import a_recording

from layoutdoctor.diagnosis.lack import Lack
from layoutdoctor.diagnosis.subject import Cure
from layoutdoctor.diagnosis.trial import Failure
from layoutdoctor.examination.advice.applying import ModelCall
from layoutdoctor.recording.saved import pack
from layoutdoctor.workers.messages import (
    STATUS_FORKED,
    Answer,
    Bandwidth,
    Begin,
    Channel,
    Check,
    Checked,
    ClosedError,
    Compile,
    Compiled,
    Copied,
    Ended,
    Failed,
    Fork,
    Load,
    Loaded,
    MeasuredMemory,
    MeasureMemory,
    Opened,
    Order,
    Prepared,
    Profiled,
    ProfileIteration,
    Proposal,
    Ran,
    Ready,
    Refused,
    Request,
    Turn,
    Turned,
    WarmUp,
    channel_pair,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

PROPOSAL = Proposal(cure=Cure(name="flat-conv3d", modules=("a", "b")), bytes_moved=9)
ORDERS = [
    Load(
        request=Request(target="m.py", inputs=("f32[1]",), configurations=(a_configuration(),)), log="a", reference="r"
    ),
    Begin(configuration=a_configuration(), is_again=True, log="l"),
    Compile(),
    Fork(log="l"),
    Check(path=None),
    WarmUp(),
    Turn(calls=3),
    ProfileIteration(calls=2, trace_file="t"),
    MeasureMemory(),
    Bandwidth(),
]
ANSWERS = [
    Ended(pid=3, returncode=-11),
    Loaded(
        subject=a_subject(), environment=an_environment(), parameter_ranks=(1, 4), call=ModelCall("model(x)", {"x": 4})
    ),
    Ran(notes=("a note",), may_convolve=False),
    Prepared(key="k"),
    Compiled(trial=as_observed(a_trial(graphs=(a_graph(),))), code="c", compile_seconds=2.0, proposals=(PROPOSAL,)),
    Checked(trial=as_observed(a_trial()), proposals=(PROPOSAL,)),
    Ready(call_seconds=1e-3),
    Turned(seconds=(1e-3, 2e-3), cpu_seconds=0.5),
    Profiled(iterations=a_recording().iterations[:1], lacks=(Lack(part="kernels", reason="r"),)),
    MeasuredMemory(peak_memory_bytes=7),
    Copied(bytes_per_second=None),
    Failed(failure=Failure(kind="run", message="RuntimeError: boom", log="one\ntwo"), proposals=(PROPOSAL,)),
    Refused(kind="UsageError", message="cannot"),
]
LARGE = Ran(notes=("x" * 5_000_000,))


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, other = channel_pair()
    yield ours, other
    ours.close()
    other.close()


def test_the_lists_here_hold_every_order_and_every_answer() -> None:
    assert {type(order) for order in ORDERS} == set(get_args(Order))
    assert {*map(type, ANSWERS), Opened} == set(get_args(Answer))


def test_what_is_sent_is_what_arrives_in_order_and_both_ways(pair: tuple[Channel, Channel]) -> None:
    for one, other in (pair, pair[::-1]):
        for message in (*ORDERS, *ANSWERS):
            one.send(message)
        for message in (*ORDERS, *ANSWERS):
            got, descriptor = other.receive(5.0)
            assert (type(got), pack(got), descriptor) == (type(message), pack(message), None)


def test_a_socket_travels_beside_its_message_and_is_a_channel(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    inner, passed = channel_pair()
    ours.send(Opened(pid=7), passed.fileno())
    passed.close()
    ours.send(Compile())
    message, descriptor = theirs.receive(5.0)
    assert message == Opened(pid=7)
    assert descriptor is not None
    other = Channel(descriptor)
    inner.send(WarmUp())

    assert not os.get_inheritable(other.fileno())
    assert other.receive(5.0)[0] == WarmUp()
    assert theirs.receive(5.0) == (Compile(), None)
    inner.close()  # no copy of that end is left open
    with pytest.raises(ClosedError, match="it has ended"):
        other.receive(5.0)
    with pytest.raises(ClosedError, match="Broken pipe"):
        other.send(Compile())
    other.close()


def test_nothing_within_the_time_is_a_timeout_and_the_next_message_still_arrives(
    pair: tuple[Channel, Channel],
) -> None:
    ours, theirs = pair
    with pytest.raises(TimeoutError):
        ours.receive(1e-3)
    theirs.send(Compile())

    assert ours.receive(5.0)[0] == Compile()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00", "it has ended"),
        (b"\x00\x00\x00\x09half", "it has ended"),
        (b"a warning\n", "it sent bytes that are not a message"),
        (b"\xff" * 64, "it sent bytes that are not a message"),
        (b"\x00\x00\x00\x03\xc1\xc1\xc1", "it sent bytes that are not a message"),
        (b"\x00\x00\x00\x0b\x81\xa4type\xa4Rude", "it sent bytes that are not a message"),
    ],
)
def test_what_is_no_message_is_the_end_of_the_conversation(data: bytes, words: str) -> None:
    channel, other = channel_pair()
    os.write(other.fileno(), data)
    other.close()

    with pytest.raises(ClosedError, match=words):
        channel.receive(5.0)
    channel.close()


def test_a_copy_of_the_process_that_writes_ends_unless_it_was_forked_by_us(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    statuses = []
    for adopts in (False, True):
        pid = os.fork()
        if not pid:
            if adopts:
                ours.adopt()
            ours.send(LARGE)
            os._exit(0)
        if adopts:
            assert theirs.receive(30.0)[0] == LARGE
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        with pytest.raises(TimeoutError):
            theirs.receive(1e-3)

    assert statuses == [STATUS_FORKED, 0]
