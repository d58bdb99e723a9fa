from __future__ import annotations

from layoutdoctor.run.trial import in_words


def test_why_a_configuration_failed_is_said_in_one_line() -> None:
    of_dynamo = RuntimeError("Unsupported call\n  Explanation: it cannot be traced\n  Hint: none")
    of_a_backend = RuntimeError("backend='inductor' raised:\nImportError: c5.main.so: file too short\n\nSet TORCH_LOGS")

    assert in_words(ValueError("no such thing\nin two lines")) == "ValueError: no such thing"
    assert in_words(of_dynamo) == "RuntimeError: Unsupported call; Explanation: it cannot be traced"
    assert in_words(of_a_backend) == (
        "RuntimeError: backend='inductor' raised: ImportError: c5.main.so: file too short; a compile that was ended "
        "has left this file in Inductor's cache: delete it"
    )
