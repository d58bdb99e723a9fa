"""
``scrub``: a record without what says who ran it and where. ``docs/privacy.md`` lists what goes and what stays.

Every string of a record is looked at, whatever its field is called.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from layoutdoctor.privacy.paths import (
    PATH,
    SECRET_NAME,
    PathShortener,
    Surroundings,
    is_common,
    known_surroundings,
    listed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    Rewrite = Callable[[str, str], str]
    """From a string and its place (``"Finding.message"``) to the string that takes its place."""

AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)

TOKEN, EMAIL, ADDRESS, HOST = "<token>", "<email>", "<ip>", "<host>"
_PLACEHOLDER = "(?:path|home|user|host|token|email|ip|mac|set)"
_MOST_PASSES = 5
"""A text left by one rule may be known to another one; most texts are done after the first pass."""
_SHORTEST_NAME = 4
"""Shorter names of users and hosts are parts of other words too often."""
_SETTING_PART = re.compile(r"[\s,;:=+|]+")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?[kmg]?(?:ib|b|s|ms|us)?(?:-\d+)*", re.IGNORECASE)


def scrub(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    A record without home directories, user and host names, environment values, secrets, addresses and absolute paths.

    Scrubbing twice is scrubbing once. Numbers, codes, layouts and the words of fixed lists are never touched.

    Args:
        surroundings: Those of this process if None.
    """
    return rewrite_record(record, _Scrubber(surroundings or known_surroundings()).rewrite)


class _Scrubber:
    def __init__(self, surroundings: Surroundings) -> None:
        self._paths = PathShortener(surroundings)
        names = [*((name, HOST) for name in surroundings.hosts), (surroundings.user or "", "<user>")]
        self._rules: list[tuple[re.Pattern[str], str]] = [
            (re.compile(re.escape(secret)), TOKEN) for secret in surroundings.secrets
        ]
        # As whole words, the longest first: a host is often called after its user.
        self._names = [
            (re.compile(rf"(?<![A-Za-z0-9_])(?!(?<=<){_PLACEHOLDER}>){re.escape(name)}(?![A-Za-z0-9_])"), replacement)
            for name, replacement in sorted(names, key=lambda entry: -len(entry[0]))
            if len(name) >= _SHORTEST_NAME and not is_common(name)
        ]
        self._text = functools.cache(self._scrubbed)

    def rewrite(self, text: str, place: str) -> str:
        return _setting(text) if place == "Environment.settings" else self._text(text)

    def _scrubbed(self, text: str) -> str:
        for _ in range(_MOST_PASSES):
            new = text
            for pattern, replacement in self._rules:
                new = pattern.sub(replacement, new)
            if _MAY_HOLD_SECRET.search(new):
                for secret, taker in _SECRETS:
                    new = secret.sub(taker, new)
            new = self._paths.in_text(new)
            for pattern, replacement in self._names:
                new = pattern.sub(replacement, new)
            if new == text:
                break
            text = new
        return text


def _setting(value: str) -> str:
    parts = [part for part in _SETTING_PART.split(value.strip().lower()) if part]
    known = all(part in listed("setting_words") or _NUMBER.fullmatch(part) for part in parts)
    return value if known and len(value) <= 200 else "<set>"


# ---------------------------------------------------------------------------------------------- the walk
def rewrite_record(record: AnyRecord, rewrite: Rewrite) -> AnyRecord:
    """The record with every string rewritten; a part without changed strings stays the same object."""
    new: AnyRecord = _rewritten(record, "", rewrite)
    return new


def _rewritten(value: object, place: str, rewrite: Rewrite) -> Any:
    if isinstance(value, str):
        new = rewrite(value, place)
        return value if new == value else new
    if isinstance(value, (tuple, list)):
        items = [_rewritten(item, place, rewrite) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    if isinstance(value, dict):
        return _rewritten_dict(value, place, rewrite)
    changed = {}
    for name, inner in text_fields(type(value)):  # type: ignore[arg-type]
        old = getattr(value, name)
        new = _rewritten(old, inner, rewrite)
        if new is not old:
            changed[name] = new
    if not changed:
        return value
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **changed)
    return dataclasses.replace(value, **changed)  # type: ignore[type-var]


def _rewritten_dict(value: dict[Any, Any], place: str, rewrite: Rewrite) -> dict[Any, Any]:
    new: dict[Any, Any] = {}
    for key, item in value.items():
        new_key = _rewritten(key, f"{place} key", rewrite)
        if new_key in new:  # two names that differed in their removed parts; neither entry may be lost
            new_key = f"{new_key} ({len(new)})"
        new[new_key] = _rewritten(item, place, rewrite)
    return value if all(a is b and new[b] is value[a] for a, b in zip(value, new, strict=True)) else new


def records_in(value: object) -> Iterator[msgspec.Struct]:
    """The record and every record in it that can hold text."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name, _ in text_fields(type(value)):
            yield from records_in(getattr(value, name))
    elif isinstance(value, (tuple, list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from records_in(item)


@functools.cache
def text_fields(kind: Hashable) -> tuple[tuple[str, str], ...]:
    """The fields of a record, or of a dataclass in a recording, that can hold text: each with its place."""
    assert isinstance(kind, type)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif issubclass(kind, msgspec.Struct):
        names = [field.name for field in msgspec.structs.fields(kind) if _may_hold_text(field.type)]
    else:
        names = []
    return tuple((name, f"{kind.__name__}.{name}") for name in names)


def _may_hold_text(kind: Any) -> bool:
    if isinstance(kind, type) and (
        kind in (str, object) or issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)
    ):
        return True
    return kind is Any or (get_origin(kind) is not Literal and any(map(_may_hold_text, get_args(kind))))


# ---------------------------------------------------------------------------------------------- secrets and addresses
_SECRET_WORD = r"(?:password|passwd|passphrase|pwd|secret|credentials?)"
_KEY_WORD = r"(?:(?:api|access|secret|private|auth|account|signing|session|encryption)[_-]?key(?:[_-]?id)?)"
_TOKEN_WORD = r"(?:(?:auth|access|api|bearer|refresh|session|security|hf|github|gh|gitlab|wandb|login|id)[_-]?)?token"
_WORD = f"(?:{_SECRET_WORD}|{_KEY_WORD}|{_TOKEN_WORD})"
_VALUE = r"([\"'])?(?(2)([^\"'\n]+)|([^\s\"'`<>;,&()\[\]{}]+)(?![(\[]))"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_PRIVATE_IPV4 = rf"(?:192\.168|172\.(?:1[6-9]|2\d|3[01])|169\.254)\.{_OCTET}\.{_OCTET}"
_END = r"(?!\w|\.\w)"

_HARMLESS = re.compile(r"(?i)none|null|true|false|[\d.,]+|self\..*|<.*|\.\.\.|\*+|x+")
_NAME_LIKE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)*")
_CERTAIN = re.compile(rf"(?i)pass|pwd|secret|(?-i:{SECRET_NAME})")


def _assigned(match: re.Match[str]) -> str:
    value = match[3] or match[4]
    # A tensor is called token too: token=hidden.mean is code, token=hunter2 is none.
    is_code = match[2] is None and _NAME_LIKE.fullmatch(value) and _CERTAIN.search(match[1]) is None
    return match.group() if is_code or _HARMLESS.fullmatch(value) else f"{match[1]}{match[2] or ''}{TOKEN}"


def _bucket(match: re.Match[str]) -> str:
    name = match.group().split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return f"{match[1]}://{PATH}/{name}" if re.fullmatch(r"[\w.+=-]+\.\w{1,12}", name) else f"{match[1]}://{PATH}"


_MAY_HOLD_SECRET = re.compile(
    r"[@=%]|://|::|: |\d[.:]\w+[.:]\w|[\w.-]{13}|(?i:pass|pwd|key|secret|token|bearer|cookie|credential)"
)
_SECRETS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            r"""
            -----BEGIN\ [A-Z0-9 ]+-----.*?(?:-----END\ [A-Z0-9 ]+-----|\Z)            # PEM blocks, also one that is cut
            | (?<![A-Za-z0-9_])(?:
                gh[pousr]_(?=\w*\d)[A-Za-z0-9]{12,} | github_pat_\w{12,} | glpat-[\w-]{12,}   # GitHub, GitLab
                | hf_(?=[A-Za-z]*[\dA-Z])[A-Za-z0-9]{12,}                                       # Hugging Face
                | (?:api_org|sk|pk|rk)[-_](?:proj|live|test|ant|or)[-_][\w-]{8,} | sk-(?=[\w-]*\d)[\w-]{12,}
                | (?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,} | AIza[\w-]{20,} | ya29\.[\w-]{10,}     # AWS, Google
                | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,}                                       # Slack
                | eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?                                          # JSON web tokens
                | npm_(?=[A-Za-z]*\d)[A-Za-z0-9]{12,} | pypi-(?=[\w-]*[A-Z])[\w-]{12,} | nvapi-[\w-]{12,}
                | SG\.[\w-]{16,}\.[\w-]{16,} | dop_v1_[0-9a-f]{16,} | dckr_pat_[\w-]{12,}
                | ssh-(?:rsa|dss|ed25519)\ AAAA[\w+/=]+
              )
            """,
            re.VERBOSE | re.DOTALL,
        ),
        TOKEN,
    ),
    (
        re.compile(
            r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|token|digest)\s+)?|\bbearer\s+)"
            r"(?!<|(?:basic|bearer|token|digest)\s)[\w.~+/=-]{6,}"
        ),
        rf"\g<1>{TOKEN}",
    ),
    (
        re.compile(r"(?i)(wandb[^\n]{0,60}?|api[_ -]?key[^\n]{0,20}?)(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])"),
        rf"\g<1>{TOKEN}",
    ),
    (
        re.compile(rf"(?<![A-Za-z0-9])((?:[A-Z0-9]{{1,40}}_){{0,6}}(?i:{_WORD})(?:_[A-Z]+)*[\"']?\s*[=:]\s*){_VALUE}"),
        _assigned,
    ),
    (re.compile(rf"(?i)(?<!\w)(--?{_WORD}\s+)(?![<-])[^\s\"']+"), rf"\g<1>{TOKEN}"),
    (
        re.compile(
            rf"(?<![\w$.-])((?:[A-Z0-9]+_)*[A-Z0-9]*?{SECRET_NAME}[A-Z0-9]*(?:_[A-Z0-9]+)*\s*=(?!=)\s*)"
            r"([\"'])?(?(2)([^\"'\n]+)|([^\s\"'<>;,&()]+))"
        ),
        _assigned,
    ),
    (re.compile(r"(?i)(\b(?:set-)?cookie2?[\"']?\s*:\s*[\"']?)(?!\s*<)[^\n\"']+"), rf"\g<1>{TOKEN}"),
    (re.compile(r"(?<![\w.@/-])[\w.-]+@[\w.-]+:(?=[/~<])"), f"<user>@{HOST}:"),
    (re.compile(r"(?i)(?:%2f[\w.~+-]+)+%2f([\w.~+-]+)"), rf"{PATH}/\g<1>"),
    (re.compile(r"(?<=://)[^\s/@\"'<>]*@"), ""),
    (
        re.compile(
            r"\b(s3[an]?|gs|gcs|az|abfss?|adl|wasbs?|hdfs|dbfs|ssh|sftp|scp|smb|nfs|git\+ssh|oss|cos)://(?!<path>)"
            r"[^\s\"'`<>)\]]*"
        ),
        _bucket,
    ),
    (
        re.compile(
            r"(?<=\?)(?=[^\s\"'<>]{0,120}(?i:sig|token|key|credential|secret|auth|pass)[^\s\"'<>=]*=)[^\s\"'<>)]+"
        ),
        TOKEN,
    ),
    (
        re.compile(
            r"(?<=://)(?<!file://)(?:[A-Za-z0-9-]+|(?:[A-Za-z0-9-]+\.)+"
            r"(?:local|internal|corp|lan|intranet|intra|home|localdomain))(?=[:/\s\"'?]|$)"
        ),
        HOST,
    ),
    (  # "x@self.weight.T" in a line of code is a matrix product
        re.compile(
            r"(?<![\w.+%/-])[\w.+%-]+@(?!self\.)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
            r"\.(?!(?:weight|bias|data|grad|mT|mH|shape|transpose|contiguous|view|permute|reshape|flatten)\b)"
            r"[A-Za-z]{2,24}\b(?!\()"
        ),
        EMAIL,
    ),
    # Another address without a port or a word before it may be a version, or a module in a Sequential.
    (re.compile(rf"(?<![\w.])(?:{_PRIVATE_IPV4}|{_IPV4}(?=:\d)){_END}"), ADDRESS),
    (
        re.compile(
            r"(?i)((?:@|://|\b(?:host|ip|addr(?:ess)?|server|peer|gateway|listen\w*|connect\w*|ssh|master_addr|inet|node))"
            rf"(?:\s+(?:to|from|at|on|is|of))?[\s=:\"'(\[]*){_IPV4}{_END}"
        ),
        rf"\g<1>{ADDRESS}",
    ),
    (re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"), "<mac>"),
    (
        re.compile(
            r"(?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]+:){7})(?i:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3})"
            r"(?::[0-9a-fA-F]{0,4}){1,8}(?:%\w+)?(?![\w:])"
        ),
        ADDRESS,
    ),
)
