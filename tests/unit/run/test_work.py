"""The work in a forked process."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from layoutdoctor.run import work
from layoutdoctor.workers.messages import ClosedError, channel_pair


def test_a_start_makes_torchs_thread_pool_again_before_autograd_has_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    ours, theirs = channel_pair()
    theirs.close()
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    monkeypatch.setattr(work, "take_some_memory", lambda: seen.append("memory"))
    with pytest.raises(ClosedError):
        work._Worker(cast("Any", None), ours)._start(cast("Any", None), ours)
    assert seen == [torch.get_num_threads(), "memory"]
