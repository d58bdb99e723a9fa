from __future__ import annotations

import msgspec
from builders import Told, a_failed_trial, a_trial, finder

from layoutdoctor.diagnosis.records import SourceLocation, Trial
from layoutdoctor.rules.source import LD507

findings = finder(LD507.check)

REFUSED = "RuntimeError: view size is not compatible with input tensor's size and stride"
LINE = SourceLocation(file="net.py", line=10, code="return self.head(x.view(2, -1))")


def refused(name: str, message: str = REFUSED, location: SourceLocation | None = LINE) -> Trial:
    trial = a_failed_trial(name, message)
    assert trial.failure is not None
    return msgspec.structs.replace(trial, failure=msgspec.structs.replace(trial.failure, location=location))


def test_what_is_no_finding() -> None:
    assert findings(a_trial(), a_failed_trial("eager", "RuntimeError: boom")) == []


def test_what_it_says(told: Told) -> None:
    told("One configuration", findings(a_trial(), refused("eager-channels-last")))
    told("Several, without a line", findings(*(refused(name, location=None) for name in ("a", "b", "c", "d"))))
    traced = "TorchRuntimeError: Cannot view a tensor with shape torch.Size([2, 8, 6, 6])"
    assert len(findings(a_trial(), refused("inductor-channels-last", traced))) == 1
