"""The preparation of the compiler while the first order of a launcher is carried out."""

from __future__ import annotations

from typing import Any

import pytest

from layoutdoctor.capture import warming
from layoutdoctor.diagnosis.configurations import choose_configurations
from layoutdoctor.run import launcher
from layoutdoctor.workers.messages import Load, Request, channel_pair


@pytest.mark.parametrize(
    ("configurations", "changes", "builds"),
    [
        ("eager,eager-channels-last", {}, False),
        ("eager,inductor", {}, True),
        ("eager,inductor", {"lower_for": "cuda:90"}, False),
    ],
)
def test_the_header_of_kernels_is_built_only_for_a_diagnosis_that_builds_kernels(
    monkeypatch: pytest.MonkeyPatch, configurations: str, changes: dict[str, Any], builds: bool
) -> None:
    """Building it beside the turns of a diagnosis in eager mode made calls of 4 ms take 9 ms."""
    seen: list[bool] = []
    monkeypatch.setattr(launcher, "fork", lambda channel, order, serve: 1)
    monkeypatch.setattr(warming, "may_use_gpu", lambda: False)
    monkeypatch.setattr(warming, "warm_up_compiler", lambda *, builds: seen.append(builds))
    ours, theirs = channel_pair()
    request = Request(target="model.py", configurations=choose_configurations(configurations), **changes)
    theirs.send(Load(request=request, log="log"))

    assert launcher._prepare(ours) == [1]
    assert seen == [builds]
    ours.close()
    theirs.close()


def test_a_launcher_without_an_order_prepares_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr(launcher, "_WAIT_FOR_ORDER_SECONDS", 0.01)
    monkeypatch.setattr(warming, "may_use_gpu", lambda: False)
    monkeypatch.setattr(warming, "warm_up_compiler", lambda *, builds: seen.append(builds))
    ours, theirs = channel_pair()

    assert launcher._prepare(ours) == []
    assert seen == [True]
    ours.close()
    theirs.close()
