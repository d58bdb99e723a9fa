"""
Which findings came, went and stayed between two diagnoses, however their lines moved.

Faces ``model_comparison``; pure functions of records.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from layoutdoctor.comparison_records import FindingChange

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from layoutdoctor.comparison_records import Change
    from layoutdoctor.records import Diagnosis, Finding, Severity

SEVERITY_ORDER: tuple[Severity, ...] = ("error", "warning", "note")


class _Key(NamedTuple):
    code: str
    configuration: str | None
    module: str | None
    file: str | None


_Keyed = tuple[_Key, "Finding"]

_NAMES: tuple[Callable[[_Key], Hashable], ...] = (
    lambda key: key,
    lambda key: (key.code, key.configuration, key.module),
    lambda key: (key.code, key.configuration, key.file),
    lambda key: (key.code, key.configuration),
)
"""By what findings are matched, the closest first."""


def finding_changes(old: Diagnosis, new: Diagnosis) -> tuple[tuple[FindingChange, ...], tuple[FindingChange, ...]]:
    """
    The findings of both, each matched with one of the other where there is one.

    Those of one rule and configuration are matched by module and file, then by either, then any with any: a finding
    that stands for several places names the costliest of them, and which one that is changes from run to run. The line
    has no part in it, since it moves with every edit above, nor has the folder; and the file that was diagnosed is the
    same file in both, also under another name. Of several findings at one module the number counts.

    Args:
        old: The earlier diagnosis.
        new: The later one.

    Returns:
        Those of which there are more or fewer, and those that stayed; the most severe first.
    """
    before, after = ([(_key_of(finding, one), finding) for finding in one.findings] for one in (old, new))
    groups: dict[_Key, tuple[list[Finding], list[Finding]]] = defaultdict(lambda: ([], []))
    for name_of in _NAMES:
        before, after, matched = _matched(before, after, name_of)
        for key, once, now in matched:
            groups[_at_module(key)][0].append(once)
            groups[_at_module(key)][1].append(now)
    for age, left in enumerate((before, after)):
        for key, finding in left:
            groups[_at_module(key)][age].append(finding)
    changes = sorted(
        (_change_of(key, once, now) for key, (once, now) in groups.items()),
        key=lambda change: (SEVERITY_ORDER.index(change.severity), change.code, change.configuration or ""),
    )
    return (
        tuple(change for change in changes if change.change != "same"),
        tuple(change for change in changes if change.change == "same"),
    )


def _matched(
    old: list[_Keyed], new: list[_Keyed], name_of: Callable[[_Key], Hashable]
) -> tuple[list[_Keyed], list[_Keyed], list[tuple[_Key, Finding, Finding]]]:
    """What is left of both, in order, and the pairs under the new one's key."""
    waiting: dict[Hashable, list[_Keyed]] = defaultdict(list)
    for entry in old:
        waiting[name_of(entry[0])].append(entry)
    left, matched = [], []
    for key, finding in new:
        same = waiting[name_of(key)]
        if same:
            matched.append((key, same.pop(0)[1], finding))
        else:
            left.append((key, finding))
    taken = {id(once) for _, once, _ in matched}
    return [entry for entry in old if id(entry[1]) not in taken], left, matched


def _at_module(key: _Key) -> _Key:
    return key._replace(file=None)


def _key_of(finding: Finding, diagnosis: Diagnosis) -> _Key:
    file = _base_name(finding.location.file) if finding.location is not None else None
    if file is not None and file == _base_name(diagnosis.subject.name.partition(":")[0]):
        file = ""  # the diagnosed file itself, whatever it is called
    return _Key(finding.code, finding.configuration, finding.module, file)


def _base_name(path: str) -> str:
    return PurePath(path.replace("\\", "/")).name


def _change_of(key: _Key, old: Sequence[Finding], new: Sequence[Finding]) -> FindingChange:
    first = (new or old)[0]
    before, after = _most_severe(old), _most_severe(new)
    return FindingChange(
        change=_change_of_number(len(old), len(new)),
        code=key.code,
        rule=first.rule,
        severity=after or before or first.severity,
        configuration=key.configuration,
        module=key.module,
        old_module=old[0].module if old else None,
        message=first.message,
        old_count=len(old),
        new_count=len(new),
        place=str(first.location) if first.location is not None else None,
        old_severity=before,
        new_severity=after,
        old_seconds=_sum_known(old),
        new_seconds=_sum_known(new),
        suggestion=first.suggestion,
        is_accepted=bool(new) and all(finding.accepted is not None for finding in new),
    )


def _change_of_number(old: int, new: int) -> Change:
    if old == new:
        return "same"
    if not old or not new:
        return "came" if new else "went"
    return "more" if new > old else "fewer"


def _most_severe(findings: Sequence[Finding]) -> Severity | None:
    return min((finding.severity for finding in findings), key=SEVERITY_ORDER.index, default=None)


def _sum_known(findings: Sequence[Finding]) -> float | None:
    seconds = [finding.seconds for finding in findings]
    known = [second for second in seconds if second is not None]
    return sum(known) if known and len(known) == len(seconds) else None
