"""
Mends the inside of a JSON string: quotes, backslashes, control characters and bytes that do not belong there.

Faces ``json_mending``; no torch.
"""

from __future__ import annotations

import re

QUOTE = "an unescaped quote"
CONTROL = "a control character"
NOT_UTF8 = "bytes that are no UTF-8"
BACKSLASH = "a backslash that escapes nothing"
HALF_PAIR = "half of a surrogate pair"

_HEX = rb"[0-9a-fA-F]"
_PLAIN = re.compile(rb"[ !#-\[\]-\x7f]*")
_TROUBLE = re.compile(
    rb"(?P<pair>\\u[dD][89abAB]" + _HEX + rb"{2}\\u[dD][c-fC-F]" + _HEX + rb"{2})"
    rb"|(?P<half>\\u[dD][89a-fA-F]" + _HEX + rb"{2})"
    rb'|(?P<escape>\\(?:["\\/bfnrt]|u' + _HEX + rb"{4}))"
    rb'|(?P<backslash>\\)|(?P<quote>")|(?P<control>[\x00-\x1f])'
)
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_FIELD = re.compile(rb'[,{][ \t\r\n]*"[^"\\]{1,100}"[ \t\r\n]*:|"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp)"[ \t\r\n]*:')
_QUOTED_WORDS = re.compile(rb'[^"]*(?:"(?=[\w<%./-])[^"]*(?<=[\w>%./-])"[^"]*)*')
_DRIVE = re.compile(rb"[A-Za-z]:\\")
_KIND_OF_GROUP = {"half": HALF_PAIR, "backslash": BACKSLASH, "quote": QUOTE, "control": CONTROL}
_SHORT_ESCAPES = {b"\n": rb"\n", b"\t": rb"\t", b"\r": rb"\r"}


def mended_string(content: bytes) -> tuple[bytes, tuple[str, ...]]:
    """
    A string's content as JSON.

    Args:
        content: What stands between the quotes.

    Returns:
        The content, the same where nothing is wrong with it, and the kinds of damage that were mended, each once.
    """
    if _PLAIN.fullmatch(content):
        return content, ()
    kinds: dict[str, None] = {}
    try:
        content.decode()
    except UnicodeDecodeError:
        content = content.decode("utf-8", "replace").encode()
        kinds[NOT_UTF8] = None
    groups = {match.lastgroup for match in _TROUBLE.finditer(content)}
    kinds.update((kind, None) for group, kind in _KIND_OF_GROUP.items() if group in groups)
    # What escapes nothing in one place was not written by a writer of JSON: "C:\Users\new" holds no line break.
    is_path = BACKSLASH in kinds and b"\\\\" not in content and b'\\"' not in content

    def written(match: re.Match[bytes]) -> bytes:
        token, group = match[0], match.lastgroup
        if is_path and token[:1] == b"\\":
            return token.replace(b"\\", rb"\\")
        if group in ("pair", "escape"):
            return token
        if group == "half":
            return rb"\ufffd"
        if group == "control":
            return _SHORT_ESCAPES.get(token, b"\\u%04x" % token[0])
        return b"\\" + token

    return (_TROUBLE.sub(written, content), tuple(kinds)) if kinds else (content, ())


def unescaped_quote_count(content: bytes) -> int:
    """
    How many quotes in a string's content no backslash escapes.

    Args:
        content: What stands between the quotes.
    """
    return _ESCAPED.sub(b"", content).count(b'"') if b'"' in content else 0


def looks_like_fields(content: bytes) -> bool:
    """
    Whether a string that holds quotes may as well be a part of an event: keys and values.

    Args:
        content: What stands between the quotes.
    """
    return _FIELD.search(content) is not None


def has_quoted_words(content: bytes) -> bool:
    """
    Whether the quotes in a string come in pairs with a word in each, as in ``f("a", "b")``.

    Args:
        content: What stands between the quotes.
    """
    return _QUOTED_WORDS.fullmatch(_ESCAPED.sub(b"", content)) is not None


def looks_like_path(content: bytes) -> bool:
    """
    Whether a string was written without escaping its backslashes, as a path of Windows, and has no escaped quote.

    Args:
        content: What stands between the quotes.
    """
    is_path = _DRIVE.match(content) is not None or BACKSLASH in mended_string(content)[1]
    return is_path and b'\\"' not in content
