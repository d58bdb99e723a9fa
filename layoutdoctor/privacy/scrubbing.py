"""
``scrub``: a record without what says who ran it and where.

What goes, and what must stay readable, stands in ``docs/privacy.md``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from layoutdoctor.privacy.paths import MAY_HOLD_PATH, PathShortener
from layoutdoctor.privacy.surroundings import Surroundings, is_distinctive, known_surroundings
from layoutdoctor.privacy.tokens import HOST, TOKEN, without_secrets
from layoutdoctor.privacy.walking import rewrite_record

if TYPE_CHECKING:
    from typing import TypeVar

    import msgspec

    AnyRecord = TypeVar("AnyRecord", bound=msgspec.Struct)

_MOST_PASSES = 5
"""What one rule leaves, another one may know; most texts are done after the first pass, which changes nothing."""

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
        known = self._known.get(text)
        if known is None:
            known = self._known[text] = self._text(text)
        return known

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
        (re.compile(rf"(?<![A-Za-z0-9_<]){re.escape(name)}(?![A-Za-z0-9_>])"), replacement)
        for name, replacement in sorted(names, key=lambda entry: -len(entry[0]))
        if is_distinctive(name)
    )
