"""Describes the end of a process and its last activity, from its exit code and its output."""

from __future__ import annotations

import re
import signal

_SIGNAL_WORDS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "aborted",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "floating-point exception",
    signal.SIGILL: "illegal instruction",
    signal.SIGKILL: "killed, as the system does when memory runs out",
    signal.SIGXCPU: "its limit of processor time was reached",
}


_STACK = re.compile(r"^(Fatal Python error: |Current thread 0x|Thread 0x)")


_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)')


def how_it_ended(returncode: int) -> str:
    """
    Describes the end of a process: ``the process died of signal 11 (SIGSEGV, segmentation fault)``.

    Args:
        returncode: Exit status, or the negative number of the signal, as in ``subprocess``.
    """
    if returncode >= 0:
        return f"the process ended with exit status {returncode}, as after os._exit()"
    names = {number.value: number for number in signal.Signals}
    if -returncode not in names:
        return f"the process died of signal {-returncode}"
    number = names[-returncode]
    words = _SIGNAL_WORDS.get(number)
    return f"the process died of signal {number.value} ({number.name}{', ' + words if words else ''})"


def last_seen(log: str, file: str) -> str:
    """
    Describes a process's last activity: ``; it was at net.py:12, in forward`` or ``; it printed last: 3``, or nothing.

    Args:
        log: Output of the process, with faulthandler's stacks at the end.
        file: Name of the user's file, without its folder.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    stack = next((number for number, line in enumerate(lines) if _STACK.match(line)), len(lines))
    now = next((number for number in range(stack, len(lines)) if lines[number].startswith("Current thread")), stack)
    for frame in (match for line in lines[now:] if (match := _FRAME.match(line))):
        if frame[1].rpartition("/")[2] == file:
            return f"; it was at {file}:{frame[2]}, in {frame[3]}"
    return f"; it printed last: {lines[stack - 1].strip()}" if stack else ""


def what_matters(log: str, count: int) -> list[str]:
    """Selects up to ``count`` lines of a process's output: the first lines of its stacks; without stacks, the last."""
    lines = log.splitlines()
    stack = next((number for number, line in enumerate(lines) if _STACK.match(line)), max(len(lines) - count, 0))
    return lines[stack : stack + count]
