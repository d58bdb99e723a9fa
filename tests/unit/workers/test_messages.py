"""The channel between two processes over a real socket pair, and every message that goes over it."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, get_args

import pytest
from builders import a_configuration, a_graph, a_subject, a_trial, an_environment
from loops import for_each
from recorded_builders import a_recording

from layoutdoctor.diagnosis.layout import strided_layout
from layoutdoctor.diagnosis.records import Cure, Equivalence, Failure, GradientLayout
from layoutdoctor.examination.applying import Call
from layoutdoctor.recording.saved import pack
from layoutdoctor.workers import messages
from layoutdoctor.workers.messages import (
    MOST_MESSAGE_BYTES,
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
    Opened,
    Order,
    Prepared,
    Profile,
    Profiled,
    Progress,
    Proposal,
    Ready,
    Referred,
    Refused,
    Request,
    Scouted,
    Turn,
    Turned,
    WarmUp,
    channel_pair,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUEST = Request(
    target="model.py", inputs=("f32[1]",), configurations=(a_configuration(),), budget_seconds=3.0, is_timed=False
)
LOADED = Loaded(
    subject=a_subject(),
    environment=an_environment(),
    parameter_ranks=(1, 4),
    call=Call("model(x)", {"x": 4}),
    no_fork="2 more threads run",
)
PROPOSAL = Proposal(cure=Cure(name="flat-conv3d", modules=("a", "b")), bytes_moved=9)
FAILURE = Failure(kind="run", message="RuntimeError: boom", log="one\ntwo")
LAYOUT = strided_layout((2, 3), (1, 2))

ORDERS = [
    Load(request=REQUEST, log="a", scouts=True),
    Begin(role="worker", configuration=a_configuration(), path="p", log="l", here=True),
    Compile(),
    Fork(log="l", here=True, keeps_memory=False),
    Check(path=None),
    WarmUp(),
    Turn(calls=3, settles=False),
    Profile(trace_file="t"),
    Bandwidth(),
]
ANSWERS = [
    Opened(pid=3),
    Ended(pid=3, returncode=-11),
    LOADED,
    Scouted(has_convolution=False, notes=("a note",), loaded=LOADED),
    Referred(notes=("a note",)),
    Prepared(key="k"),
    Compiled(
        trial=a_trial(kernels=None, graphs=(a_graph(),)),
        code="c",
        compile_seconds=2.0,
        proposals=(PROPOSAL,),
        no_fork="no",
    ),
    Checked(
        equivalence=Equivalence(status="equal"),
        gradient_layouts=(GradientLayout(parameter="w", layout=LAYOUT, gradient=LAYOUT),),
        graphs=(a_graph(),),
        proposals=(PROPOSAL,),
        recompile_count=1,
        recompile_reasons=("why",),
    ),
    Ready(call_seconds=1e-3),
    Turned(seconds=(1e-3, 2e-3), cpu_seconds=0.5),
    Profiled(iterations=a_recording().iterations, peak_memory_bytes=7),
    Copied(bytes_per_second=None),
    Failed(failure=FAILURE, proposals=(PROPOSAL,)),
    Refused(kind="UsageError", message="cannot"),
    Progress(stage="compiling", done=20, left_seconds=4.0),
]


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


@pytest.fixture
def raw() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel, and a plain socket at the other end."""
    ours, theirs = channel_pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def test_the_lists_here_hold_every_order_and_every_answer() -> None:
    assert {type(order) for order in ORDERS} == set(get_args(Order))
    assert {type(answer) for answer in ANSWERS} == set(get_args(Answer))


@for_each("message", [*ORDERS, *ANSWERS])
def test_what_is_sent_is_what_arrives(message: Order | Answer) -> None:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    with contextlib.closing(ours), contextlib.closing(other):
        ours.send(message)
        got, descriptor = other.receive(5.0)

    assert descriptor is None
    assert type(got) is type(message)
    assert pack(got) == pack(message)


def test_messages_arrive_in_order_and_both_ways(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    ours.send(Turn(calls=1))
    ours.send(Turn(calls=2))
    theirs.send(Ready(call_seconds=1.0))

    assert [theirs.receive(5.0)[0], theirs.receive(5.0)[0]] == [Turn(calls=1), Turn(calls=2)]
    assert ours.receive(5.0)[0] == Ready(call_seconds=1.0)


def test_a_message_cut_into_single_bytes_is_read_whole(raw: tuple[Channel, socket.socket]) -> None:
    channel, other = raw
    data = framed(pack(Referred(notes=("a" * 300,))))
    pid = os.fork()
    if not pid:
        for byte in data:
            other.send(bytes([byte]))
        os._exit(0)
    got, _ = channel.receive(30.0)
    os.waitpid(pid, 0)

    assert got == Referred(notes=("a" * 300,))


def test_a_message_larger_than_the_sockets_buffer_arrives(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    large = Referred(notes=("x" * 5_000_000,))
    pid = os.fork()
    if not pid:
        theirs.adopt()
        theirs.send(large)
        os._exit(0)
    got, _ = ours.receive(30.0)
    os.waitpid(pid, 0)

    assert got == large


def test_a_descriptor_travels_beside_its_message(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    reading, writing = os.pipe()
    ours.send(Opened(pid=7), writing)
    os.close(writing)
    message, descriptor = theirs.receive(5.0)
    assert descriptor is not None
    os.write(descriptor, b"through")
    os.close(descriptor)

    assert message == Opened(pid=7)
    assert os.read(reading, 100) == b"through"
    assert os.read(reading, 100) == b""  # no copy of the writing end is left open
    os.close(reading)
    ours.send(WarmUp())
    assert theirs.receive(5.0) == (WarmUp(), None)


def test_a_socket_that_travelled_is_a_channel(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    inner, passed = channel_pair()
    ours.send(Opened(pid=7), passed.fileno())
    passed.close()
    _, descriptor = theirs.receive(5.0)
    assert descriptor is not None
    other = Channel.of_descriptor(descriptor)
    inner.send(WarmUp())

    assert other.receive(5.0)[0] == WarmUp()
    inner.close()
    with pytest.raises(ClosedError, match="it has ended"):
        other.receive(5.0)
    other.close()


def test_an_end_that_was_closed_is_an_error_for_the_other_one(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    theirs.close()

    with pytest.raises(ClosedError, match="it has ended"):
        ours.receive(5.0)
    with pytest.raises(ClosedError, match="Broken pipe"):
        ours.send(Compile())


def test_nothing_within_the_time_is_a_timeout_and_the_next_message_still_arrives(
    pair: tuple[Channel, Channel],
) -> None:
    ours, theirs = pair
    with pytest.raises(TimeoutError):
        ours.receive(1e-3)
    theirs.send(WarmUp())

    assert ours.receive(5.0)[0] == WarmUp()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x00\x00", "it ended in the middle of a message"),
        (framed(pack(WarmUp()))[:-1], "it ended in the middle of a message"),
        ((MOST_MESSAGE_BYTES + 1).to_bytes(4, "big"), "it sent what is no message"),
        (b"a warning\n", "it sent what is no message"),
        (framed(b"\xc1\xc1\xc1"), "MessagePack data is malformed"),
        (framed(b"\x80"), "missing required field `type`"),
        (framed(b"\x81\xa4type\xa4Rude"), "Invalid value 'Rude'"),
        (framed(b"\x81\xa4type\xa4Turn"), "missing required field `calls`"),
    ],
)
def test_what_is_no_message_is_the_end_of_the_conversation(
    raw: tuple[Channel, socket.socket], data: bytes, words: str
) -> None:
    channel, other = raw
    other.sendall(data)
    other.shutdown(socket.SHUT_WR)

    with pytest.raises(ClosedError, match=words):
        channel.receive(5.0)


def test_a_copy_of_the_process_that_writes_ends_and_the_other_end_reads_nothing(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    pid = os.fork()
    if not pid:
        ours.send(WarmUp())
        os._exit(0)  # not reached
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == STATUS_FORKED
    with pytest.raises(TimeoutError):
        theirs.receive(1e-3)


def test_a_process_that_was_forked_by_us_adopts_its_channel(pair: tuple[Channel, Channel]) -> None:
    ours, theirs = pair
    pid = os.fork()
    if not pid:
        ours.adopt()
        ours.send(WarmUp())
        os._exit(0)
    os.waitpid(pid, 0)

    assert theirs.receive(5.0)[0] == WarmUp()


def test_the_socket_has_a_high_number_that_programs_do_not_inherit(pair: tuple[Channel, Channel]) -> None:
    for channel in pair:
        assert channel.fileno() >= 300
        assert not os.get_inheritable(channel.fileno())


def test_where_no_high_number_is_to_be_had_the_socket_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_HIGH_DESCRIPTOR", 2**30)
    ours, theirs = channel_pair()
    other = Channel(theirs)
    ours.send(Compile())

    assert other.receive(5.0)[0] == Compile()
    assert not os.get_inheritable(other.fileno())
    ours.close()
    other.close()


def test_a_trace_is_kept_under_the_name_of_its_configuration_if_a_directory_was_given() -> None:
    assert Request().trace_file("inductor+flat-conv3d") is None
    assert Request(trace_directory="/t").trace_file("eager") == "/t/eager.json.gz"
