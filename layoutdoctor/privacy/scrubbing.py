"""
``scrub``: a record without what says who ran it and where. What goes, and what stays, stands in ``docs/privacy.md``.

The walk over every string of a record, whatever its fields are called; secrets and addresses by their shape; and the
values of settings.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from layoutdoctor.privacy.paths import (
    MAY_HOLD_PATH,
    SECRET_NAME,
    PathShortener,
    Surroundings,
    is_distinctive,
    known_surroundings,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Rewrite = Callable[[str, str], str]
    """From a string and its place (``"Finding.message"``; a dict's keys end in ``" key"``) to what takes its place."""

AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)

_MOST_PASSES = 5
"""What one rule leaves, another one may know; most texts are done after the first pass, which changes nothing."""

_PLACEHOLDER_WORD = r"(?:path(?:-\d+)?|home|user|host|token|email|ip|mac|set)"
PLACEHOLDER = re.compile(f"<{_PLACEHOLDER_WORD}>")
SET = "<set>"
SETTINGS = "Environment.settings"

# What settings that bear on layouts are set to: numbers, and these words.
_OPTION_WORDS = frozenset(
    """
    true false on off yes no none null default auto all any highest high medium low enabled disabled enable disable
    granularity fine core thread tile socket compact scatter balanced explicit verbose noverbose respect norespect
    warnings nowarnings duplicates noduplicates reset noreset permute offset proclist master close spread
    sse41 avx avx2 avx2_vnni avx2_vnni_2 avx512 avx512_core avx512_core_vnni avx512_core_bf16 avx512_core_fp16
    avx512_core_amx avx512_core_amx_fp16 avx10_1_512 avx10_1_512_amx avx10_1_512_amx_fp16 avx10_2 vsx zvector sve sve256
    neon capability ieee tf32 bf16 fp16 fp32 float32 bfloat16 float16 nhwc nchw channels_last contiguous
    expandable_segments max_split_size_mb garbage_collection_threshold roundup_power2_divisions backend native
    cudamallocasync
    inductor eager aten triton cutlass cpp max-autotune reduce-overhead max-autotune-no-cudagraphs
    """.split()
)
_OPTION_PART = re.compile(r"[\s,;:=+|]+")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?[kmg]?(?:ib|b|s|ms|us)?(?:-\d+)*", re.IGNORECASE)


def scrub(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    A record without home directories, user and host names, environment values, secrets, addresses and absolute paths.

    Scrubbing twice is scrubbing once. Numbers, codes, layouts and the words of fixed lists are never touched.

    Args:
        record: A diagnosis, or any other record.
        surroundings: What is known of this machine; None to ask it.
    """
    return rewrite_record(record, _Scrubber(surroundings or known_surroundings()).rewrite)


class _Scrubber:
    """Rewrites the strings of one record; each distinct one once."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._paths = PathShortener(surroundings)
        self._secrets = surroundings.secrets
        self._names = _patterns_of_names(surroundings)
        self._known: dict[str, str] = {}

    def rewrite(self, text: str, place: str) -> str:
        if place == SETTINGS:
            return _setting(text)
        if text not in self._known:
            self._known[text] = self._text(text)
        return self._known[text]

    def _text(self, text: str) -> str:
        for _ in range(_MOST_PASSES):
            new = self._once(text)
            if new == text:
                break
            text = new
        return text

    def _once(self, text: str) -> str:
        for secret in self._secrets:
            if secret in text:
                text = text.replace(secret, TOKEN)
        text = without_secrets(text)
        if MAY_HOLD_PATH.search(text):
            text = self._paths.in_text(text)
        for pattern, replacement in self._names:
            text = pattern.sub(replacement, text)
        return text


def _setting(value: str) -> str:
    parts = [part for part in _OPTION_PART.split(value.strip().lower()) if part]
    known = all(part in _OPTION_WORDS or _NUMBER.fullmatch(part) for part in parts)
    return value if known and len(value) <= 200 else SET


def _patterns_of_names(surroundings: Surroundings) -> tuple[tuple[re.Pattern[str], str], ...]:
    """User and host names as whole words, the longest first: a host is often called after its user."""
    names = [(name, HOST) for name in surroundings.hosts]
    if surroundings.user is not None:
        names.append((surroundings.user, "<user>"))
    return tuple(
        (re.compile(rf"(?<![A-Za-z0-9_])(?!(?<=<){_PLACEHOLDER_WORD}>){re.escape(name)}(?![A-Za-z0-9_])"), replacement)
        for name, replacement in sorted(names, key=lambda entry: -len(entry[0]))
        if is_distinctive(name)
    )


# ---------------------------------------------------------------------------------------------- the walk
_INTEGERS = frozenset((int,))
_WITHOUT_TEXT = frozenset((bool, int, float, type(None), Ellipsis))


def rewrite_record(record: AnyRecord, rewrite: Rewrite) -> AnyRecord:
    """The record with every string rewritten; what holds no changed string stays the same object."""
    changed: dict[str, object] = {}
    for name, place in text_fields(type(record)):
        old = getattr(record, name)
        if old is not None:
            new = _rewritten(old, place, rewrite)
            if new is not old:
                changed[name] = new
    return msgspec.structs.replace(record, **changed) if changed else record


def _rewritten(value: object, place: str, rewrite: Rewrite) -> object:
    if isinstance(value, str):
        new = rewrite(value, place)
        return value if new == value else new
    if value is None:
        return value
    if isinstance(value, (tuple, list)):
        kinds = set(map(type, value))
        if kinds <= _INTEGERS:
            return value  # most are: the sizes of a layout
        read = _reader_of_strings(kinds.pop()) if len(kinds) == 1 else None
        if read is not None:
            items = _rewritten_rows(value, read, rewrite)
        else:
            items = [_rewritten(item, place, rewrite) for item in value]
        return type(value)(items) if any(map(operator.is_not, items, value)) else value
    if isinstance(value, msgspec.Struct):
        return rewrite_record(value, rewrite)
    if isinstance(value, dict):
        return _rewritten_dict(value, place, rewrite)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # of a recording: events, lines of a log
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        rewritten = {name: _rewritten(old, f"{place}.{name}", rewrite) for name, old in fields.items()}
        changed = {name: item for name, item in rewritten.items() if item is not fields[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def _rewritten_rows(
    records: Sequence[msgspec.Struct], read: Callable[[msgspec.Struct], object], rewrite: Rewrite
) -> list[object]:
    """Thousands of kernels differ in numbers and hold a few hundred combinations of strings: each of those once."""
    changes: dict[object, dict[str, object]] = {}
    items: list[object] = []
    for record in records:
        strings = read(record)
        if strings not in changes:
            new = rewrite_record(record, rewrite)
            pairs = {name: (getattr(record, name), getattr(new, name)) for name, _ in text_fields(type(record))}
            changes[strings] = {name: after for name, (before, after) in pairs.items() if after is not before}
        changed = changes[strings]
        items.append(msgspec.structs.replace(record, **changed) if changed else record)
    return items


def _rewritten_dict(value: dict[object, object], place: str, rewrite: Rewrite) -> dict[object, object]:
    new: dict[object, object] = {}
    for key, item in value.items():
        new_key = _rewritten(key, f"{place} key", rewrite)
        if new_key in new:  # two names that differed in what was removed; neither entry may be lost
            new_key = f"{new_key} ({len(new)})"
        new[new_key] = _rewritten(item, place, rewrite)
    same = all(a is b and new[b] is value[a] for a, b in zip(value, new, strict=True))
    return value if same else new


def records_in(value: object) -> Iterator[msgspec.Struct]:
    """The record and every record in it, in the order of their fields; likewise of what a field holds."""
    if isinstance(value, msgspec.Struct):
        yield value
        for name, _ in text_fields(type(value)):
            yield from records_in(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for item in value:
            if not isinstance(item, str):
                yield from records_in(item)
    elif isinstance(value, dict):
        yield from records_in(tuple(value.values()))


@functools.cache
def text_fields(record_type: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The fields of a record that can hold free text, themselves or within: each with its place."""
    return tuple(
        (field.name, f"{record_type.__name__}.{field.name}")
        for field in msgspec.structs.fields(record_type)
        if _may_hold_text(field.type)
    )


@functools.cache
def _reader_of_strings(kind: type[object]) -> Callable[[msgspec.Struct], object] | None:
    """What reads all text of a record of this type at once; None where a field holds more than a string or None."""
    if not issubclass(kind, msgspec.Struct):
        return None
    names = [name for name, _ in text_fields(kind)]
    kinds = {one for field in msgspec.structs.fields(kind) if field.name in names for one in _alternatives(field.type)}
    return operator.attrgetter(*names) if names and kinds <= {str, type(None)} else None


def _may_hold_text(kind: object) -> bool:
    return any(
        any(map(_may_hold_text, get_args(one)))
        if get_origin(one) in (tuple, list)
        else get_origin(one) is not Literal and one not in _WITHOUT_TEXT
        for one in _alternatives(kind)
    )


def _alternatives(kind: object) -> tuple[object, ...]:
    """The types of a union, without what describes them; of any other type, itself."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _alternatives(get_args(kind)[0])
    if origin in (Union, types.UnionType):
        return tuple(one for member in get_args(kind) for one in _alternatives(member))
    return (kind,)


# ---------------------------------------------------------------------------------------------- secrets and addresses
TOKEN = "<token>"
EMAIL = "<email>"
ADDRESS = "<ip>"
HOST = "<host>"

_BY_SHAPE = re.compile(
    r"""
    -----BEGIN\ [A-Z0-9 ]+-----.*?(?:-----END\ [A-Z0-9 ]+-----|\Z)                # PEM blocks, also one that is cut
    | (?<![A-Za-z0-9_])(?:
        gh[pousr]_(?=\w*\d)[A-Za-z0-9]{12,} | github_pat_\w{12,} | glpat-[\w-]{12,}   # GitHub, GitLab
        | hf_(?=[A-Za-z]*[\dA-Z])[A-Za-z0-9]{12,}                                       # Hugging Face
        | (?:api_org|sk|pk|rk)[-_](?:proj|live|test|ant|or)[-_][\w-]{8,} | sk-(?=[\w-]*\d)[\w-]{12,}   # OpenAI, Stripe
        | (?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,} | AIza[\w-]{20,} | ya29\.[\w-]{10,}     # AWS, Google
        | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,}                                       # Slack
        | eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?                                          # JSON web tokens
        | npm_(?=[A-Za-z]*\d)[A-Za-z0-9]{12,} | pypi-(?=[\w-]*[A-Z])[\w-]{12,} | nvapi-[\w-]{12,}
        | SG\.[\w-]{16,}\.[\w-]{16,} | dop_v1_[0-9a-f]{16,} | dckr_pat_[\w-]{12,}
        | ssh-(?:rsa|dss|ed25519)\ AAAA[\w+/=]+
      )
    """,
    re.VERBOSE | re.DOTALL,
)
_AUTHORIZATION = re.compile(
    r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?(?:(?:basic|bearer|token|digest)\s+)?|\bbearer\s+)(?!<|(?:basic|bearer|token|digest)\s)[\w.~+/=-]{6,}"
)
_SECRET_WORD = r"(?:password|passwd|passphrase|pwd|secret|credentials?)"
_KEY_WORD = r"(?:(?:api|access|secret|private|auth|account|signing|session|encryption)[_-]?key(?:[_-]?id)?)"
_TOKEN_WORD = r"(?:(?:auth|access|api|bearer|refresh|session|security|hf|github|gh|gitlab|wandb|login|id)[_-]?)?token"
_ASSIGNED = re.compile(
    rf"""
    (?<![A-Za-z0-9])((?:[A-Z0-9]{{1,40}}_){{0,6}}(?i:{_SECRET_WORD}|{_KEY_WORD}|{_TOKEN_WORD})(?:_[A-Z]+)*
     [\"']?\s*(?:=|:)\s*)
    ([\"'])?(?(2)([^\"'\n]+)|([^\s\"'`<>;,&()\[\]{{}}]+)(?![(\[]))
    """,
    re.VERBOSE,
)
_OPTION = re.compile(rf"(?i)(?<!\w)(--?(?:{_SECRET_WORD}|{_KEY_WORD}|{_TOKEN_WORD})\s+)(?![<-])[^\s\"']+")
_VARIABLE = re.compile(
    rf"(?<![\w$.-])((?:[A-Z0-9]+_)*[A-Z0-9]*?{SECRET_NAME}[A-Z0-9]*(?:_[A-Z0-9]+)*\s*=(?!=)\s*)"
    r"([\"'])?(?(2)([^\"'\n]+)|([^\s\"'<>;,&()]+))"
)
_COOKIE = re.compile(r"(?i)(\b(?:set-)?cookie2?[\"']?\s*:\s*[\"']?)(?!\s*<)[^\n\"']+")
_LOGIN = re.compile(r"(?<!\S)(-u|-U|--user|--proxy-user)([\s=]+)[^\s:]+:\S+")
_PASSWORD_OPTION = re.compile(r"\b(sshpass\s+-p\s*|mysql\w*\s(?:[^\n]*\s)?-p)(?!<)[^\s\"']+")
_REMOTE = re.compile(r"(?<![\w.@/-])[\w.-]+@[\w.-]+:(?=[/~<])")
_ENCODED_PATH = re.compile(r"(?i)(?:%2f[\w.~+-]+){2,}")
_WANDB = re.compile(r"(?i)(wandb[^\n]{0,60}?|api[_ -]?key[^\n]{0,20}?)(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])")
_WHO = re.compile(r"(?<![\w$])(USER|USERNAME|LOGNAME|SUDO_USER|HOSTNAME|COMPUTERNAME|USERDOMAIN)(\s*=\s*)(?!<)[^\s;,]+")

_USER_INFORMATION = re.compile(r"(?<=://)[^\s/@\"'<>]*@")
_CLOUD = re.compile(
    r"\b(s3[an]?|gs|gcs|az|abfss?|adl|wasbs?|hdfs|dbfs|ssh|sftp|scp|smb|nfs|git\+ssh|oss|cos)://(?!<path>)"
    r"[^\s\"'`<>)\]]*"
)
_SIGNED = re.compile(
    r"(?<=\?)(?=[^\s\"'<>]{0,120}(?i:sig|token|key|credential|secret|auth|pass)[^\s\"'<>=]*=)[^\s\"'<>)]+"
)
_INNER_HOST = re.compile(
    r"(?<=://)(?<!file://)(?:[A-Za-z0-9-]+|(?:[A-Za-z0-9-]+\.)+(?:local|internal|corp|lan|intranet|intra|home|localdomain))"
    r"(?=[:/\s\"'?]|$)"
)
# "x@self.weight.T" in a line of code is a matrix product.
_EMAIL = re.compile(
    r"(?<![\w.+%/-])[\w.+%-]+@(?!self\.)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*"
    r"\.(?!(?:weight|bias|data|grad|mT|mH|shape|transpose|contiguous|view|permute|reshape|flatten)\b)[A-Za-z]{2,24}\b(?!\()"
)
_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.])({_OCTET})\.({_OCTET})\.{_OCTET}\.{_OCTET}(:\d{{1,5}})?(?![\w]|\.\w)")
_HOST_WORD = re.compile(
    r"(?i)(?:@|://|\b(?:host|ip|addr(?:ess)?|server|peer|gateway|listen\w*|connect\w*|ssh|master_addr|inet|node))"
    r"(?:\s+(?:to|from|at|on|is|of))?[\s=:\"'(\[]*$"
)
_VERSION_WORD = re.compile(
    r"(?i)(?:==|[<>~!]=|-|version|release|\bv|cudnn|cuda|nccl|cublas|curand|cufft|cusparse|cusolver|nvrtc|driver|"
    r"onednn|mkl|rocm|miopen|torch|triton|python|kernel|gcc)[\s:=v]*$"
)
_IPV6 = re.compile(
    r"(?<![\w:.])(?=[0-9a-fA-F:]*::|(?:[0-9a-fA-F]+:){7})(?:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3})"
    r"(?::[0-9a-fA-F]{0,4}){1,8}(?:%\w+)?(?![\w:])",
    re.IGNORECASE,
)
_HARDWARE_ADDRESS = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")

_MAY_HOLD_SECRET = re.compile(
    r"@|://|-----BEGIN|\d\.\d+\.\d+\.\d|[0-9a-fA-F]{2}:[0-9a-fA-F]{2}:|(?i:fe80|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):|"
    r"(?i:passw|passphrase|pwd|secret|credential|token|key|"
    r"bearer|authorization|gh[pousr]_|github_|glpat-|hf_|sk[-_]|pk_|rk_|akia|asia|aroa|aida|aiza|ya29|xox|xapp|eyJ|npm_|pypi-|"
    r"nvapi|sg\.|dop_v1|dckr|ssh|wandb|api_org|user|logname|hostname|computername|cookie|%2f|mysql)|(?<!\S)-[uU]\s|"
    rf"{SECRET_NAME}[A-Z0-9_]*\s*="
)
"""Whether a text can hold any of it; most texts of a record cannot."""

_HARMLESS = re.compile(r"(?i)none|null|true|false|[\d.,]+|self\..*|<.*|\.\.\.|\*+|x+")
_NAME_LIKE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)*")


def without_secrets(text: str) -> str:
    """The text without keys, passwords, e-mail and network addresses."""
    if _MAY_HOLD_SECRET.search(text) is None:
        return text
    text = _BY_SHAPE.sub(TOKEN, text)
    text = _AUTHORIZATION.sub(rf"\g<1>{TOKEN}", text)
    text = _WANDB.sub(rf"\g<1>{TOKEN}", text)
    text = _ASSIGNED.sub(_assigned, text)
    text = _OPTION.sub(rf"\g<1>{TOKEN}", text)
    text = _VARIABLE.sub(_assigned, text)
    text = _COOKIE.sub(rf"\g<1>{TOKEN}", text)
    text = _LOGIN.sub(rf"\g<1>\g<2>{TOKEN}", text)
    text = _PASSWORD_OPTION.sub(rf"\g<1>{TOKEN}", text)
    text = _REMOTE.sub(f"<user>@{HOST}:", text)
    text = _ENCODED_PATH.sub(lambda match: f"<path>/{re.split('(?i)%2f', match[0])[-1]}", text)
    text = _WHO.sub(lambda match: f"{match[1]}{match[2]}<{'host' if match[1][0] in 'HC' else 'user'}>", text)
    return _without_addresses(text)


def _assigned(match: re.Match[str]) -> str:
    value = match[3] or match[4]
    if _HARMLESS.fullmatch(value):
        return match.group()
    # A tensor is called token too: token=hidden.mean is code, token=hunter2 is none.
    is_certain = re.search(rf"(?i)pass|pwd|secret|(?-i:{SECRET_NAME})", match[1])
    if match[2] is None and _NAME_LIKE.fullmatch(value) and is_certain is None:
        return match.group()
    return f"{match[1]}{match[2] or ''}{TOKEN}"


def _without_addresses(text: str) -> str:
    if "://" in text:
        text = _USER_INFORMATION.sub("", text)
        text = _CLOUD.sub(_cloud, text)
        text = _SIGNED.sub(TOKEN, text)
        text = _INNER_HOST.sub(HOST, text)
    if "@" in text:
        text = _EMAIL.sub(EMAIL, text)
    if text.count(".") > 2:
        text = _IPV4.sub(_ipv4, text)
    if text.count(":") > 1:
        text = _HARDWARE_ADDRESS.sub("<mac>", text)
        text = _IPV6.sub(ADDRESS, text)
    return text


def _cloud(match: re.Match[str]) -> str:
    name = match.group().split("?")[0].rstrip("/").rsplit("/", 1)[-1]
    return f"{match[1]}://<path>/{name}" if re.fullmatch(r"[\w.+=-]+\.\w{1,12}", name) else f"{match[1]}://<path>"


def _ipv4(match: re.Match[str]) -> str:
    """An address by its range, port or the words before it; else it may be a version, or a module in a Sequential."""
    first, second = int(match[1]), int(match[2])
    before = match.string[max(0, match.start() - 40) : match.start()]
    is_whole = match.group() == match.string
    if match[3] is None and _HOST_WORD.search(before) is None:
        private = (
            (first, second) == (192, 168)
            or (first == 172 and 16 <= second <= 31)
            or (first, second) == (169, 254)
            or (first in (10, 100, 127) and not is_whole)
        )
        if not private or _VERSION_WORD.search(before):
            return match.group()
    return f"{ADDRESS}{match[3] or ''}"
