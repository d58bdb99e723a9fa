"""
``redact``: the user's own names become pseudonyms, numbered in the order in which they appear.

A number says nothing about its name, while a hash could be guessed back with a list of likely names. One name has one
pseudonym throughout a record, so conversions, nodes and findings still point at each other and rules find the same.
Words, names and files of torch, Python and layoutdoctor are public and stay.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.conversion import Conversion
from layoutdoctor.diagnosis.kernel import Kernel, Total
from layoutdoctor.privacy.paths import listed
from layoutdoctor.privacy.scrubbing import records_in, rewrite_record, scrub

if TYPE_CHECKING:
    import msgspec

    from layoutdoctor.privacy.paths import Surroundings
    from layoutdoctor.privacy.scrubbing import AnyRecord

_FILE_SUFFIX = (
    r"(?:pyx?|ipynb|json|gz|csv|sqlite3?|db|pt2?|pth|ckpt|onnx|safetensors|bin|npz|npy|cpp|cuh?|hpp|cc|so|txt|log|md|"
    r"html?|xml|ya?ml|toml|sarif|zip|tar|nsys-rep|pb|pkl|sh)"
)
_SUFFIXES = re.compile(rf"(?:\.{_FILE_SUFFIX})+$")
_FILE = re.compile(rf"(?!self\.)(?:<path>/)?[\w.+/\\-]*?[\w+-]((?:\.{_FILE_SUFFIX})+)")
# Words, and names joined from them: module paths, files, operators, ratios, hyphenated words.
_RUN = re.compile(r"(?:<path>/)?\w+(?:(?:::|[./\\+-])\w+)*")
_PSEUDONYM = re.compile(r"\b(?:module|file|class|name|code)_\d+")
_SCOPE = re.compile(r"::|\.")

# Versions, devices and settings (which scrub has seen to), dates, codes and layouts: no names of the user's.
_KEPT = re.compile(
    r"Environment\.(?!command)|Layout\.|Diagnosis\.(?:created_at|layoutdoctor_version)|Finding\.(?:code|rule)"
    r"|TracedModel\.text"  # torch's own text, with names of torch only
)
_OF_A_LIBRARY = re.compile(
    r"Kernel\.(?:name|problem|implementation)|Conversion\.kernel|Buffer\.kernel|Graph\.kernel_names|Total\.name"
    r"|AccountRow\.(?:slower|faster)_kernels"
)
_UNKNOWN_LIBRARIES = (None, "custom")
_DEEPEST = 50
"""Parts of a module path in a sentence; longer texts with dots are no such path."""


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    A scrubbed record in which the user's own names are pseudonyms as well.

    Args:
        surroundings: Those of this process if None.
    """
    record = scrub(record, surroundings)
    return rewrite_record(record, _Redactor(record).rewrite)


class _Redactor:
    """The pseudonyms of one record, which is read as a whole first: a sentence may name a module before its field."""

    def __init__(self, record: object) -> None:
        self._names: set[str] = set()
        """Modules and classes, which sentences may speak of."""
        self._files: dict[str, str] = {}
        """Path by file name: a sentence says "model.py" of "models/model.py"."""
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}
        self._taken: set[str] = set()
        self._public: set[str] = set()
        self._module_totals: set[str] = set()
        self._word = functools.cache(self._word_uncached)
        self._text = functools.cache(lambda text: _RUN.sub(self._run, text))
        for part in records_in(record):
            self._note_public(part)
        rewrite_record(record, self._collect)

    def _note_public(self, record: msgspec.Struct) -> None:
        """Kernel names of libraries, and totals that are called after a module."""
        if isinstance(record, Kernel) and record.library not in _UNKNOWN_LIBRARIES:
            self._public |= {record.name, record.problem or "", record.implementation or ""}
            self._public.add(f"{record.name} {record.implementation}")  # as an account names it
        elif isinstance(record, Conversion) and record.owner == "library":
            self._public.add(record.kernel or "")
        elif isinstance(record, Total) and record.kind == "module":
            self._module_totals.add(record.name)
        elif isinstance(record, Total) and record.library not in _UNKNOWN_LIBRARIES:
            self._public.add(record.name)

    def _collect(self, text: str, place: str) -> str:
        self._taken.update(_PSEUDONYM.findall(text))
        if self._is_module(text, place):
            self._names.update((text, *text.split(".")))
        elif place == "Subject.model":
            self._names.add(text)
        elif place == "SourceLocation.file":
            self._files.setdefault(text.replace("\\", "/").rsplit("/", 1)[-1], text)
        return text

    def _is_module(self, text: str, place: str) -> bool:
        is_total = place == "Total.name" and text in self._module_totals
        return is_total or place.endswith((".module", ".modules", ".parameter"))

    def rewrite(self, text: str, place: str) -> str:
        if _KEPT.match(place) or (text in self._public and _OF_A_LIBRARY.fullmatch(place)):
            return text
        if self._is_module(text, place):
            return self._module(text)
        if place == "SourceLocation.file":
            return self._file(text)
        if place == "Graph.code_fingerprint":
            return self._pseudonym("code", text)
        return self._class(text) if place == "Subject.model" else self._text(text)

    def _pseudonym(self, kind: str, name: str) -> str:
        if name in self._taken:
            return name  # redacted before, or called so by the user: no other name gets its number
        key = (kind, name)
        while key not in self._pseudonyms:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            pseudonym = f"{kind}_{self._numbers[kind]}"
            if pseudonym not in self._taken:
                self._pseudonyms[key] = pseudonym
        return self._pseudonyms[key]

    def _class(self, name: str) -> str:
        return name if is_public_class(name) else self._pseudonym("class", name)

    def _module(self, path: str) -> str:
        return ".".join(map(self._module_part, path.split(".")))

    def _module_part(self, part: str) -> str:
        if not part or part.isdigit() or part in _PARAMETER_PARTS or is_public_class(part):
            return part  # an index, weight, Conv2d_26
        numbered = re.fullmatch(r"([A-Z]\w*?|class_\d+)(_\d+)", part)  # a trace names modules by class and number
        if numbered:
            return f"{self._pseudonym('class', numbered[1])}{numbered[2]}"
        return self._pseudonym("module", part)

    def _file(self, path: str) -> str:
        name = path.removeprefix("<path>/")
        suffix = _SUFFIXES.search(path)
        if not path or is_public_file(path) or name.split(".")[0] in self._taken:
            return name if suffix else path
        return self._pseudonym("file", self._files.get(path, path)) + (suffix.group() if suffix else "")

    def _run(self, match: re.Match[str]) -> str:
        run = match.group()
        if run in self._names:
            return self._named(run)
        if _FILE.fullmatch(run):
            return self._file(run)
        return re.sub(r"[^/\\+-]+", lambda part: self._dotted(part.group()), run)

    def _named(self, name: str) -> str:
        """A module or class that a sentence speaks of; if it is called like a common word, the word may be meant."""
        if "." not in name and name.islower() and all(map(is_public_word, name.split("_"))):
            return name
        return self._class(name) if ("class", name) in self._pseudonyms else self._module(name)

    def _dotted(self, run: str) -> str:
        if run in self._names:
            return self._named(run)
        separators, parts = _SCOPE.findall(run), _SCOPE.split(run)
        start = 1 if len(parts) > 1 and parts[0] in listed("public_scopes") else 0
        new = parts[:start]
        for end in range(min(len(parts) - 1, _DEEPEST), start + 1, -1):  # the longest module path in front
            if ".".join(parts[start:end]) in self._names:
                new += self._module(".".join(parts[start:end])).split(".")
                start = end
                break
        new += map(self._word, parts[start:])
        return "".join(part + separator for part, separator in zip(new, [*separators, ""], strict=True))

    def _word_uncached(self, word: str) -> str:
        if word in self._names:
            return self._named(word)
        if is_public_class(word) or word in self._taken:
            return word
        return "_".join(part if is_public_word(part) else self._pseudonym("name", part) for part in word.split("_"))


# ---------------------------------------------------------------------------------------------- public words
_PARAMETER_PARTS = frozenset(
    "weight bias running_mean running_var num_batches_tracked in_proj_weight in_proj_bias".split()
)
_DOCUMENTATION = re.compile(r'"""(?:.|\n)*?"""|(?m:#.*$)')
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_CAMEL_PART = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z][a-z]+\d*")
_PLAIN = re.compile(
    r".{0,2}|\d+(?:x\d+)*(?:[A-Za-z]{1,4})?"  # numbers, also with a unit
    r"|[a-lA-LNCDHWOIGncdhwoig]{1,7}(?:\d{1,3}[a-lnoigNOIG]){1,4}|[NCDHWOIG]{3,6}|[ncdhwoig]{3,6}"  # formats of tensors
    r"|[a-z]{1,2}(?:f|fn|fnuz)?\d{1,3}|[su]?int\d{1,2}|b?float\d{1,3}|sm_?\d{2,3}a?|gfx\d{2,4}\w?"  # types
)


@functools.cache
def _known_words() -> frozenset[str]:
    """Words of torch, of Python and of layoutdoctor's own code without its documentation, which speaks of models."""
    words = {part for name in (*keyword.kwlist, *dir(builtins)) for part in name.split("_")}
    for path in Path(__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        words.update(_WORD.findall(_DOCUMENTATION.sub("", text)))
    words.update(part for name in listed("public_scopes") for part in name.split("_"))
    return listed("words") | {word.lower() for word in words}


def is_public_word(word: str) -> bool:
    """Whether one word, without separators, may be kept: a known one, a number with its unit, a dtype, a format."""
    if _PLAIN.fullmatch(word) or word in listed("module_classes") or _is_known(word):
        return True
    parts = _CAMEL_PART.findall(word)
    return len(parts) > 1 and "".join(parts) == word and all(map(_is_known, parts))


def _is_known(word: str) -> bool:
    lower = word.lower()
    return lower in _known_words() or lower.rstrip("0123456789") in _known_words()


def is_public_class(name: str) -> bool:
    """Whether a module's class is one of torch's own, also with the number that a trace adds: ``Conv2d_26``."""
    return re.sub(r"_\d+$", "", name) in listed("module_classes")


def is_public_file(path: str) -> bool:
    """Whether a file, as ``scrub`` leaves its path, belongs to Python or to a package that everybody has."""
    name = re.sub(r"^(?:site|dist)-packages/", "", path.replace("\\", "/"))
    return path.startswith("<frozen") or ("/" in name and name.split("/", 1)[0] in listed("public_packages"))
