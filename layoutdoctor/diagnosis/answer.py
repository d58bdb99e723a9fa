"""The conclusions from the trials: ratios of times, accounts of time differences, findings and the recommendation."""

from __future__ import annotations

from typing import Literal

from layoutdoctor.diagnosis.layout import Layout
from layoutdoctor.diagnosis.record import Count, Factor, Integer, Magnitude, Moment, NonNegativeSeconds, Record
from layoutdoctor.diagnosis.subject import SourceLocation

Verdict = Literal["faster", "slower", "equal", "inconclusive"]
Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
"""All severities, the most severe first."""
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
    The ratio of the baseline's time to a configuration's time; above 1, the configuration is faster.

    Attributes:
        low: Lower end of the 95 % interval of the ratio.
        median: Median ratio of the further starts, or of the rounds if there are fewer than two further starts. With
            exactly two, the process that compiled the configuration counts as a third start.
        verdict: ``faster`` or ``slower`` if the whole interval is above or below 1 by more than 1 %; ``equal`` if it is
            within 3 % of 1; otherwise ``inconclusive``. A very wide interval is always ``inconclusive``, and so is any
            interval if other programs took most cores.
        round_count: Number of rounds in which both configuration and baseline were timed, without further starts.
        start_ratios: The ratio of each further start, in order; empty if the median is over the rounds.
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
    The comparison of all trials with the baseline.

    Attributes:
        baseline: Name of the configuration that the ratios refer to.
        ratios: The ratio of each measured trial other than the baseline.
        fastest: Names of the fastest configuration and of all configurations within 3 % of its ratio. Configurations
            with wrong outputs are left out. The recommended configuration comes first, even if it is slower.
        other_cores: Average number of cores that other programs used while the configurations were timed; None if the
            system does not say.
    """

    baseline: str
    ratios: tuple[Ratio, ...]
    fastest: tuple[str, ...]
    other_cores: Magnitude | None = None


class AccountRow(Record, frozen=True, kw_only=True):
    """
    The contribution of one group of operations to the difference of two times.

    Attributes:
        kind: The reason for the difference. ``conversion``: layout conversions; ``generated_kernel``: a slower
            generated kernel; ``layout``: another layout; ``implementation``: other code of a library;
            ``missing_fusion``: operations that only the faster side fuses; ``operation``: the same operation takes
            longer; ``data_movement``: a cat, copy or fill; ``not_aligned``: operations without a counterpart;
            ``small``: many small rows; ``around_kernels``: time within library calls, outside their kernels;
            ``between_kernels``: time in which no kernel runs; ``outside_kernels``: the rest of the measured difference.
        seconds: The group's part of the difference; negative if the group takes less time in the slower configuration.
        slower_seconds: The time of the group in the slower configuration; None for ``outside_kernels``.
        operations: The operations, by the names that the user's line uses.
        module: Path of the nn.Module of the group's longest kernel.
        slower_kernels: Names of the group's kernels in the slower configuration, each with the library's name of its
            code if known. The longest kernel of each operation comes first.
        slower_layout: Layout in the slower configuration: of the first tensor that a library operation reads, or of the
            largest tensor that a generated kernel writes.
        tensor_bytes: Bytes of 4-D and 5-D tensors, except weights, that the group's operations read and write in the
            slower configuration; None if not known, and with a generated kernel.
        count: Number of places in the model whose equal groups of operations the row adds up.
        detail: Further facts, in words.
        source: Source of the slower configuration's longest generated kernel; None if ``count`` > 1 or ``seconds`` < 0.
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
    The parts of the difference between the times of two configurations, operation by operation.

    Attributes:
        slower: The slower configuration; in a comparison of two diagnoses, with ``(old)`` or ``(new)`` after it.
        slower_seconds: Time of a call in the slower configuration.
        rows: The parts, the largest first and the rest last; their ``seconds`` sum to the measured difference.
    """

    slower: str
    faster: str
    slower_seconds: NonNegativeSeconds
    faster_seconds: NonNegativeSeconds
    rows: tuple[AccountRow, ...]


class Finding(Record, frozen=True, kw_only=True):
    """
    A problem, or a fact worth knowing, that a rule reports.

    Attributes:
        code: The rule's code, such as ``LD101``.
        rule: The rule's name, such as ``round-trip-conversion``.
        severity: ``error`` for wrong results, or a measured loss with a verified cure; ``warning`` for a loss; ``note``
            for a fact worth knowing.
        configuration: Name of the trial that the finding is about; None if it is about the whole diagnosis.
        seconds: The known part of the cost, per iteration or recorded run; some of it may be estimated from bytes.
        evidence: Ids of conversions, names of nodes, or figures on which the message is based.
        accepted: Reason why the finding is accepted, from the file given with ``--accepted``; empty if the file has no
            reason. None if the finding is not accepted.
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
    The best configuration without frozen weights, if the recommended configuration freezes the weights.

    Attributes:
        configuration: Name of the configuration: the baseline if no other configuration is more than 3 % faster.
        speedup: The configuration's ratio to the baseline; None for the baseline.
        how: Lines to paste, also for the baseline.
    """

    configuration: str
    speedup: Ratio | None
    how: str | None


class Recommendation(Record, frozen=True, kw_only=True):
    """
    The configuration that a user should use.

    Attributes:
        configuration: Name of the configuration to use. It is the baseline if no configuration is certainly faster.
            None if all measured configurations have wrong outputs.
        speedup: The configuration's ratio to the baseline; None for the baseline.
        how: Lines to paste; None for the baseline.
        verified: Whether further starts confirmed the recommendation: there are two or more, their verdict is
            ``faster``, and the outputs equal the reference.
        without_freezing: The best configuration without frozen weights; None if the recommended one does not freeze
            the weights.
    """

    configuration: str | None
    speedup: Ratio | None = None
    how: str | None = None
    verified: bool = False
    without_freezing: WithoutFreezing | None = None
