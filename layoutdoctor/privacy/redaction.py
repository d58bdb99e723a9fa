"""
``redact``: the user's own names become pseudonyms, numbered in the order in which they appear.

A number says nothing about its name, where a hash could be guessed back with a list of likely names. One name has one
pseudonym throughout a record, so conversions, nodes and findings still point at each other and rules find the same.
Kept is what is known to be public: words, names and files of torch, Python and layoutdoctor.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import Conversion, Kernel, Total
from layoutdoctor.privacy.paths import listed
from layoutdoctor.privacy.scrubbing import PLACEHOLDER, records_in, rewrite_record, scrub

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from layoutdoctor.privacy.paths import Surroundings
    from layoutdoctor.privacy.scrubbing import AnyRecord

_FILE_SUFFIX = (
    r"(?:pyx?|ipynb|json|gz|csv|sqlite3?|db|pt2?|pth|ckpt|onnx|safetensors|bin|npz|npy|cpp|cuh?|hpp|cc|so|txt|log|md|"
    r"html?|xml|ya?ml|toml|sarif|zip|tar|nsys-rep|pb|pkl|sh)"
)
_FILE = re.compile(rf"(?!self\.)(?:<[\w-]+>/)?[\w.+/\\-]*?[\w+-]((?:\.{_FILE_SUFFIX})+)")
# Words, and what is joined from them: module paths, files, operators, ratios, hyphenated words.
_RUN = re.compile(r"(?:<path(?:-\d+)?>/)?\w+(?:(?:::|[./\\+-])\w+)*")
_CONTAINER = re.compile(r"(_(?:modules|parameters|buffers)\[['\"])([^'\"]+)(['\"]\])")
_PSEUDONYM = re.compile(r"\b(?:module|file|class|name|code)_\d+")
_SCOPE = re.compile(r"::|\.")

# Nothing of the user's stands here: versions, devices and settings (which scrub has seen to), dates, codes, layouts.
_KEPT = frozenset(
    f"Environment.{name}"
    for name in (
        "torch python platform triton cuda driver cudnn onednn onednn_isa compiler device_name clock_limits settings"
    ).split()
) | {
    "Environment.settings key",
    "Diagnosis.created_at",
    "Diagnosis.layoutdoctor_version",
    "Finding.code",
    "Finding.rule",
    "TracedModel.text",  # it has names of torch only
}
_KERNELS = frozenset(("Kernel.name", "Conversion.kernel", "Buffer.kernel", "Graph.kernel_names")) | {
    "AccountRow.slower_kernels",
    "AccountRow.faster_kernels",
}
_LIBRARY_TEXTS = frozenset(("Kernel.problem", "Kernel.implementation"))
_UNKNOWN_LIBRARIES = (None, "custom")
_DEEPEST = 50
"""Parts of a module path in a sentence; longer texts with dots are no such path."""


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    A scrubbed record in which the user's own names are pseudonyms as well.

    Args:
        record: A diagnosis, or any other record.
        surroundings: What is known of this machine; None to ask it.
    """
    record = scrub(record, surroundings)
    return rewrite_record(record, _Redactor(record).rewrite)


class _Redactor:
    """Pseudonyms of one record: which names are whose is read from the whole record first."""

    def __init__(self, record: msgspec.Struct) -> None:
        self._names: dict[str, str] = {}
        """Names as they stand in sentences, with what takes their place there."""
        self._files: dict[str, str] = {}
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}
        self._taken: set[str] = set()
        self._public_texts: set[str] = set()
        self._module_totals: set[str] = set()
        self._known: dict[tuple[str, Callable[[str], str]], str] = {}
        for part in records_in(record):
            self._note_public(part)
        rewrite_record(record, self._collect)

    def _note_public(self, record: msgspec.Struct) -> None:
        """Kernel names of libraries, and totals that are called after a module."""
        if isinstance(record, Kernel) and record.library not in _UNKNOWN_LIBRARIES:
            called = f"{record.name} {record.implementation}"  # as an account names it
            known = (record.name, record.problem, record.implementation, called)
            self._public_texts.update(text for text in known if text)
        elif isinstance(record, Conversion) and record.owner == "library" and record.kernel:
            self._public_texts.add(record.kernel)
        elif isinstance(record, Total):
            if record.kind == "module":
                self._module_totals.add(record.name)
            elif record.library not in _UNKNOWN_LIBRARIES:
                self._public_texts.add(record.name)

    def _collect(self, text: str, place: str) -> str:
        """Remembers the names of modules, files and classes: sentences may speak of them before their own fields do."""
        self._taken.update(_PSEUDONYM.findall(text))
        if _is_module(place) or (place == "Total.name" and text in self._module_totals):
            self._names.setdefault(text, "")
            for part in text.split("."):
                self._names.setdefault(part, "")
        elif place == "Subject.model":
            self._names.setdefault(text, "")
        elif place == "SourceLocation.file":
            # A sentence says "model.py" of what the record knows as "models/model.py"; the first such file is meant.
            self._files.setdefault(_file_name(text), text)
        return text

    def rewrite(self, text: str, place: str) -> str:
        if place in _KEPT or place.startswith("Layout."):
            return text
        rewriter = self._rewriter(text, place)
        if (text, rewriter) not in self._known:
            self._known[text, rewriter] = rewriter(text)
        return self._known[text, rewriter]

    def _rewriter(self, text: str, place: str) -> Callable[[str], str]:
        if place == "SourceLocation.file":
            return self._file
        if _is_module(place) or (place == "Total.name" and text in self._module_totals):
            return self._module
        if place == "Graph.code_fingerprint":
            return self._code
        if place == "Subject.model":
            return self._class
        if text in self._public_texts and (place in _KERNELS or place in _LIBRARY_TEXTS or place == "Total.name"):
            return str
        return self._text

    def _code(self, text: str) -> str:
        return self._pseudonym("code", text)

    def _class(self, name: str) -> str:
        return name if is_public_class(name) else self._pseudonym("class", name)

    def _pseudonym(self, kind: str, name: str) -> str:
        if name in self._taken and name.startswith(f"{kind}_"):
            return name  # it was redacted before, or is called so: no other name gets this number
        key = (kind, name)
        while key not in self._pseudonyms:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            pseudonym = f"{kind}_{self._numbers[kind]}"
            if pseudonym not in self._taken:
                self._pseudonyms[key] = pseudonym
        return self._pseudonyms[key]

    def _module(self, path: str) -> str:
        return ".".join(self._module_part(part) for part in path.split("."))

    def _module_part(self, part: str) -> str:
        is_torchs = part.isdigit() or part in _PARAMETER_PARTS or is_public_class(part)  # an index, weight, Conv2d_26
        if not part or is_torchs or PLACEHOLDER.fullmatch(part):
            return part
        if re.fullmatch(r"(?:module|class)_\d+(?:_\d+)?", part):
            return part  # redacted before, or called so; nothing else gets that number
        numbered = re.fullmatch(r"([A-Z]\w*?)(_\d+)", part)  # a trace names modules by class and number
        if numbered:
            return f"{self._pseudonym('class', numbered[1])}{numbered[2]}"
        return self._pseudonym("module", part)

    def _file(self, path: str) -> str:
        if is_public_file(path) or not path:
            return path
        if re.fullmatch(r"(?:<[\w-]+>/)?file_\d+(?:\.\w+)*", path):
            return _file_name(path)  # redacted before, or called so; nothing else gets that number
        suffix = re.search(rf"(?:\.{_FILE_SUFFIX})+$", path)
        return self._pseudonym("file", self._files.get(path, path)) + (suffix.group() if suffix else "")

    def _text(self, text: str) -> str:
        if "['" in text or '["' in text:
            text = _CONTAINER.sub(lambda match: match[1] + self._module(match[2]) + match[3], text)
        pieces, end = [], 0
        for match in PLACEHOLDER.finditer(text):
            if text[match.end() : match.end() + 1] == "/":
                continue  # it stands for the folder of a file, which is replaced as one
            pieces += [_RUN.sub(self._run, text[end : match.start()]), match.group()]
            end = match.end()
        pieces.append(_RUN.sub(self._run, text[end:]))
        return "".join(pieces)

    def _run(self, match: re.Match[str]) -> str:
        run = match.group()
        if run in self._names:
            return self._named(run)
        if _FILE.fullmatch(run):
            return self._file(run)
        if "/" in run or "\\" in run or "-" in run or "+" in run:
            return re.sub(r"[^/\\+-]+", lambda part: self._dotted(part.group()), run)
        return self._dotted(run)

    def _named(self, name: str) -> str:
        """A module or class that a sentence speaks of; where it is called like a common word, the word may be meant."""
        if "." not in name and name.islower() and all(is_public_word(part) for part in name.split("_")):
            return name
        if not self._names[name]:
            is_class = ("class", name) in self._pseudonyms
            self._names[name] = self._pseudonym("class", name) if is_class else self._module(name)
        return self._names[name]

    def _dotted(self, run: str) -> str:
        if run in self._names:
            return self._named(run)
        separators, parts = _SCOPE.findall(run), _SCOPE.split(run)
        start = 1 if len(parts) > 1 and parts[0] in PUBLIC_SCOPES else 0
        new = parts[:start]
        for end in range(min(len(parts) - 1, _DEEPEST), start + 1, -1):  # the longest module path in front
            if ".".join(parts[start:end]) in self._names:
                new += self._module(".".join(parts[start:end])).split(".")
                start = end
                break
        new += [self._word(part) for part in parts[start:]]
        return "".join(part + separator for part, separator in zip(new, [*separators, ""], strict=True))

    def _word(self, word: str) -> str:
        if word in self._names:
            return self._named(word)
        if is_public_class(word) or word in self._taken:
            return word
        return "_".join(part if is_public_word(part) else self._pseudonym("name", part) for part in word.split("_"))


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _is_module(place: str) -> bool:
    return place.endswith((".module", ".modules", ".parameter"))


# ---------------------------------------------------------------------------------------------- what is public
# First part of names of operators, C++ code and Python modules that everybody has.
PUBLIC_SCOPES = frozenset(
    """
    aten prims prim torch torchvision torchaudio quantized mkldnn mkldnn_prepacked onednn inductor c10d
    _c10d_functional c10 c10_cuda profiler cuda hip autograd triton higher_order rngprims prepacked static sparse
    symm_mem extern_kernels at std cub thrust cudnn cublas cutlass cute ck ck_tile miopen rocprim hipcub rocblas
    hipblaslt nccl cask cask_trt xmma flash flash_attn xformers aiter vllm flashinfer fbgemm bitsandbytes apex
    tensorrt_llm at_cuda_detail cutensor dnnl torchdynamo functorch numpy np builtins operator _operator math nn
    """.split()
)
PUBLIC_PACKAGES = frozenset(
    """
    torch torchvision torchaudio torchgen torchao functorch triton timm transformers diffusers accelerate
    safetensors numpy scipy networkx sympy PIL einops tqdm lightning pytorch_lightning xformers flash_attn aiter
    vllm apex layoutdoctor lib asyncio concurrent importlib multiprocessing
    """.split()
)
# Parts of parameter and buffer names that torch gives.
_PARAMETER_PARTS = frozenset(
    "weight bias running_mean running_var num_batches_tracked in_proj_weight in_proj_bias".split()
)
_DOCUMENTATION = re.compile(r'"""(?:.|\n)*?"""|(?m:#.*$)')
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]+")
_CAMEL_PART = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z][a-z]+\d*")
_NUMBER = re.compile(r"\d+(?:x\d+)*(?:[A-Za-z]{1,4})?")
_TENSOR_FORMAT = re.compile(
    r"[a-lA-LNCDHWOIGncdhwoig]{1,7}(?:\d{1,3}[a-lnoigNOIG]){1,4}|[NCDHWOIG]{3,6}|[ncdhwoig]{3,6}"
)
_NAMED_TYPE = re.compile(r"[a-z]{1,2}(?:f|fn|fnuz)?\d{1,3}|[su]?int\d{1,2}|b?float\d{1,3}|sm_?\d{2,3}a?|gfx\d{2,4}\w?")


@functools.cache
def own_words() -> frozenset[str]:
    """
    The words of layoutdoctor's own code and sentences: what stands in its published source is no secret of a user.

    Documentation is left out: its examples speak of models. Empty where the source is not there to read, as in a
    frozen program: then more is replaced.
    """
    words: set[str] = set()
    for path in Path(__file__).parents[1].rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        words.update(_WORD.findall(_DOCUMENTATION.sub("", text)))
    return frozenset(word.lower() for word in words)


@functools.cache
def _known_words() -> frozenset[str]:
    python = {part.lower() for name in (*keyword.kwlist, *dir(builtins)) for part in name.split("_")}
    scopes = {part for name in PUBLIC_SCOPES for part in name.split("_")}
    return listed("words") | own_words() | python | scopes


def is_public_word(word: str) -> bool:
    """Whether one word, without separators, may be kept: a known one, a number with its unit, a dtype, a format."""
    if len(word) <= 2 or _NUMBER.fullmatch(word) or _NAMED_TYPE.fullmatch(word) or _TENSOR_FORMAT.fullmatch(word):
        return True
    if word in listed("module_classes") or _is_known(word):
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
    name = path.replace("\\", "/").removeprefix("site-packages/").removeprefix("dist-packages/")
    return path.startswith("<frozen") or ("/" in name and name.split("/", 1)[0] in PUBLIC_PACKAGES)
