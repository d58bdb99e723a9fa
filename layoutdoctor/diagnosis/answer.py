"""Ratios, accounts, findings and the recommendation that follow from the trials."""

from __future__ import annotations

from typing import Literal

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.record import Count, Factor, Integer, Magnitude, Moment, NonNegativeSeconds, Record
from layoutdoctor.diagnosis.subject import SourceLocation

Verdict = Literal["faster", "slower", "equal", "inconclusive"]
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""The most severe first."""
AccountKind = (
    Literal["conversion", "generated_kernel", "layout", "implementation", "missing_fusion"]
    | Literal["operation", "data_movement", "not_aligned", "small"]
    | Literal["around_kernels", "between_kernels", "outside_kernels"]
)
FASTER: Verdict = "faster"
SLOWER: Verdict = "slower"
EQUAL: Verdict = "equal"
INCONCLUSIVE: Verdict = "inconclusive"


class Ratio(Record, frozen=True, kw_only=True):
    """
    How many times faster than the baseline a configuration is: the baseline's time over the configuration's.

    Attributes:
        low: Lower end of the 95 % interval.
        median: Median over the further starts if there are two or more, else over the rounds; above 1 is faster.
        verdict: ``faster`` and ``slower``: the interval is beyond 1 by 1 %. ``equal``: it lies within 3 % of 1.
            ``inconclusive``: the rest.
        round_count: Rounds of the process that compiled the configuration.
        start_ratios: The ratio of each further start, in order; empty if the ratio is that of the rounds.
    """

    name: str
    low: Factor
    median: Factor
    high: Factor
    verdict: Verdict
    round_count: Count = 0
    start_ratios: tuple[Factor, ...] = ()


class Comparison(Record, frozen=True, kw_only=True):
    """
    All trials against the baseline.

    Attributes:
        baseline: Name of the configuration that the ratios refer to.
        ratios: One per measured trial other than the baseline.
        fastest: The fastest configuration with right outputs and those within 3 % of it; the recommended one first.
        other_cores: Cores that other programs used while the configurations were timed, on average; None if the system
            does not say.
    """

    baseline: str
    ratios: tuple[Ratio, ...]
    fastest: tuple[str, ...]
    other_cores: Magnitude | None = None


class AccountRow(Record, frozen=True, kw_only=True):
    """
    What one group of operations contributes to a difference.

    Attributes:
        kind: ``conversion``; ``generated_kernel``, a slower one; ``layout``: another one; ``implementation``: another
            code of a library; ``missing_fusion``; ``operation``: the same; ``data_movement``: a cat, copy or fill;
            ``not_aligned``: without a counterpart; ``small``: many small rows; ``around_kernels``: within calls of a
            library, outside its kernels; ``between_kernels``: no kernel runs; ``outside_kernels``: the rest of the
            measured difference.
        seconds: How much of the difference it is; negative where it is faster on the slower side.
        slower_seconds: The time of the group in the slower configuration; None if that is no sum of kernels.
        operations: The operations, as the user's line calls them.
        module: Path of the nn.Module; of several the one that takes most.
        slower_kernels: Names of its kernels in the slower one, dearest first, with the library's code where known.
        slower_layout: Of what it reads first, or a generated kernel writes, in the slower one.
        tensor_bytes: Of the activations that library operations read and write in the slower one.
        count: The number of places with equal operations that are added up.
        detail: Further facts, in words.
        source: Of the generated kernel that takes most in the slower one.
    """

    kind: AccountKind
    seconds: Moment
    slower_seconds: NonNegativeSeconds | None = None
    faster_seconds: NonNegativeSeconds | None = None
    operations: tuple[str, ...] = ()
    backward: bool = False
    module: str | None = None
    locations: tuple[SourceLocation, ...] = ()
    slower_kernels: tuple[str, ...] = ()
    faster_kernels: tuple[str, ...] = ()
    slower_layout: Layout | None = None
    faster_layout: Layout | None = None
    tensor_bytes: Integer | None = None
    count: Count = 1
    detail: str | None = None
    source: str | None = None


class Account(Record, frozen=True, kw_only=True):
    """
    Where the difference between two configurations goes, operation by operation.

    Attributes:
        slower: The slower configuration; of two traces ``the new one`` or ``the old one``.
        slower_seconds: Time of a call; of a trace its kernel time, per step if the comparison is.
        rows: The largest contribution first, the named rest last; their ``seconds`` sum to the measured difference.
    """

    slower: str
    faster: str
    slower_seconds: NonNegativeSeconds
    faster_seconds: NonNegativeSeconds
    rows: tuple[AccountRow, ...]


class Finding(Record, frozen=True, kw_only=True):
    """
    What a rule reports.

    Attributes:
        code: The rule's code, such as ``LD101``.
        rule: The rule's name, such as ``round-trip-conversion``.
        severity: ``error`` a measured loss with a verified cure, ``warning`` a loss, ``note`` worth knowing.
        configuration: The trial it is about; None if it is about the whole diagnosis.
        seconds: The measured cost per iteration.
        evidence: Ids of conversions, node names or figures the message rests on.
        accepted: Why it is accepted, by the file given with ``--accepted``; empty if no reason is written there,
            None if it is not accepted.
    """

    code: str
    rule: str
    severity: Severity
    configuration: str | None
    message: str
    suggestion: str | None = None
    location: SourceLocation | None = None
    module: str | None = None
    seconds: NonNegativeSeconds | None = None
    bytes_moved: Count | None = None
    evidence: tuple[str, ...] = ()
    accepted: str | None = None


class WithoutFreezing(Record, frozen=True, kw_only=True):
    """
    The best configuration that leaves the weights free to change, if the recommended one freezes them.

    Attributes:
        configuration: The baseline if no other one is faster.
        speedup: As in ``Recommendation``; None for the baseline.
    """

    configuration: str
    speedup: Ratio | None
    how: str | None


class Recommendation(Record, frozen=True, kw_only=True):
    """
    What to do.

    Attributes:
        configuration: The configuration to use: the baseline if nothing is faster; None if nothing with right outputs
            was measured.
        speedup: Its ratio to the baseline; None for the baseline.
        how: Lines to paste; None for the baseline.
        verified: Whether further starts agreed: there were two or more, the ratio over them is ``faster``, and the
            outputs equal the reference.
        without_freezing: The best without frozen weights; None if the recommended configuration freezes none.
    """

    configuration: str | None
    speedup: Ratio | None = None
    how: str | None = None
    verified: bool = False
    without_freezing: WithoutFreezing | None = None
