"""The work in a forked process, and why it failed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, cast
from unittest import mock

import pytest
import torch

from layoutdoctor.run import work
from layoutdoctor.run.trial import failure_of, in_words
from layoutdoctor.workers.messages import ClosedError, channel_pair

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_start_makes_torchs_thread_pool_again_and_puts_its_inputs_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool is made before autograd has threads; the inputs move between two random amounts of memory."""
    seen: list[object] = []
    carried_out = mock.Mock()
    carried_out.step.take_own_inputs = lambda: seen.append("inputs")
    ours, theirs = channel_pair()
    theirs.close()
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(work, "take_some_memory", lambda: seen.append("memory"))
    with pytest.raises(ClosedError):
        work._Worker(carried_out, ours)._start(cast("Any", None), ours)
    assert seen == [torch.get_num_threads(), "memory", "inputs", "memory"]


def test_why_a_configuration_failed_is_said_in_one_line() -> None:
    of_dynamo = RuntimeError("Unsupported call\n  Explanation: it cannot be traced\n  Hint: none")
    of_a_backend = RuntimeError("backend='inductor' raised:\nImportError: c5.main.so: file too short\n\nSet TORCH_LOGS")

    assert in_words(ValueError("no such thing\nin two lines")) == "ValueError: no such thing"
    assert in_words(of_dynamo) == "RuntimeError: Unsupported call; Explanation: it cannot be traced"
    assert in_words(of_a_backend) == (
        "RuntimeError: backend='inductor' raised: ImportError: c5.main.so: file too short; an interrupted compile "
        "left this file in Inductor's cache: delete the file"
    )
    of_the_compiler = RuntimeError(
        "CppCompileError: C++ compile error\n\nOutput:\nIn a.h:8,\nb.h:15:10: fatal error: cuda.h: No"
    )
    assert in_words(of_the_compiler) == (
        "RuntimeError: CppCompileError: C++ compile error; fatal error: cuda.h: No; "
        "AOTInductor needs a CUDA toolkit: set CUDA_HOME to one"
    )

    of_a_full_disk = RuntimeError("CppCompileError: C++ compile error\n\na.h:8: error: No space left on device")
    assert in_words(of_a_full_disk) == (
        "RuntimeError: CppCompileError: C++ compile error; error: No space left on device; "
        "set TMPDIR, or TORCHINDUCTOR_CACHE_DIR, to a folder with room"
    )
    assert in_words(OSError(errno.ENOSPC, "No space left on device")).endswith(
        "; set TMPDIR, or TORCHINDUCTOR_CACHE_DIR, to a folder with room"
    )
    of_anothers_cache = type("InductorError", (RuntimeError,), {})("PermissionError: [Errno 13] Permission denied: 'a'")
    assert in_words(of_anothers_cache).endswith("'a'; set TORCHINDUCTOR_CACHE_DIR to a folder that you may write")
    assert in_words(PermissionError(errno.EACCES, "Permission denied", "data")).endswith("Permission denied: 'data'")


def test_a_failure_names_the_cause_that_there_is_an_answer_to() -> None:
    def of(call: Callable[[], object]) -> str | None:
        with pytest.raises(Exception) as caught:  # noqa: PT011 (whatever torch raises)
            call()
        return failure_of(caught.value, "run").cause

    def view(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1)

    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert of(lambda: view(image)) == "refused_view"
    assert of(lambda: torch.compile(view, backend="eager", fullgraph=True)(image)) == "refused_view"
    assert of(lambda: torch.empty(2**46)) == "out_of_memory"
    assert of(lambda: image @ torch.ones(3)) is None
