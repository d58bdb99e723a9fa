"""Profiles whose kernels take much longer than a call: their times are left out, counts and bytes stay."""

from __future__ import annotations

import msgspec
from builders import a_measurement
from recorded_builders import a_recording

from layoutdoctor.examination.examine import UNRELIABLE, diagnosis_of, examine
from layoutdoctor.run.recorded import diagnose_recordings


def test_kernels_that_take_half_as_long_again_as_a_call_have_no_times() -> None:
    recording = a_recording()
    whole = examine(recording).kernels
    assert whole is not None
    assert whole.seconds is not None

    for factor, is_reliable in ((1.4, True), (1.6, False)):
        trial = msgspec.structs.replace(recording.trial, measurement=a_measurement(whole.seconds / factor))
        timed = msgspec.structs.replace(recording, trial=trial)
        (seen,) = diagnosis_of([timed]).trials
        assert seen.kernels is not None
        assert (seen.kernels == whole) is is_reliable
        assert (UNRELIABLE in seen.notes) is not is_reliable
        assert (seen.kernels.count, seen.kernels.conversion_count) == (whole.count, whole.conversion_count)
        if not is_reliable:
            assert seen.kernels.seconds is None
            assert {finding.severity for finding in diagnose_recordings([timed]).findings} <= {"note"}
