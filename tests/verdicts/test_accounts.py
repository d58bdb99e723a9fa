"""Where a difference goes, on a recording of a real network whose story is known."""

from __future__ import annotations

import pytest
from kept_recordings import diagnosed, kept

from layoutdoctor.examination.account import account


def test_the_fire_module_loses_its_time_in_generated_kernels_and_not_in_conversions() -> None:
    diagnosis = diagnosed("fire_module.training")
    compiled, eager = diagnosis.trial("inductor"), diagnosis.trial("eager-channels-last")
    assert compiled is not None
    assert eager is not None

    found = account(compiled, eager)

    assert found is not None
    assert sum(row.seconds for row in found.rows) == pytest.approx(found.slower_seconds - found.faster_seconds)
    kernels = [row for row in found.rows if row.kind == "generated_kernel"]
    assert kernels[0] is found.rows[0]
    assert kernels[0].operations == ("relu", "max_pool2d")
    assert sum(row.seconds for row in kernels) > 0.8 * (found.slower_seconds - found.faster_seconds)
    assert sum(row.seconds for row in found.rows if row.kind == "conversion") < 0.1 * kernels[0].seconds
    recording = next(one for one in kept("fire_module.training") if one.name == "inductor")
    sources = recording.trial.graphs[0].kernel_sources
    assert "at::vec" in sources[kernels[0].slower_kernels[0]]  # vectorised, and slow all the same
    assert not any(row.kind == "not_aligned" for row in found.rows)
