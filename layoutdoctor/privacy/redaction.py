"""
Replaces the user's own names in a record by pseudonyms, and leaves out free text.

What happens to a text depends on its field. Names of modules, files, classes, operators, nodes, kernels and
configurations are replaced, each by one pseudonym in the whole record, so that conversions, nodes and findings still
refer to each other. Layouts, sizes, versions, fixed words, and names of torch and of known libraries are kept. Any
other text is left out, including the text of fields that are added later. A pseudonym has a number and no hash, because
a list of likely names could show the name behind a hash.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis import Conversion, Finding, Kernel, Total
from layoutdoctor.diagnosis.configurations import AHEAD_OF_TIME, BUILTIN_CONFIGURATIONS
from layoutdoctor.privacy.scrubbing import records_in, rewrite_record, scrub

if TYPE_CHECKING:
    import msgspec

    from layoutdoctor.privacy.paths import Surroundings
    from layoutdoctor.privacy.scrubbing import AnyRecord

LEFT_OUT = "<left out>"

_FIELDS = {
    "kept": r"""
        Diagnosis.(layoutdoctor_version|created_at|stage_seconds#key) Environment.(?!command).* EnvironmentDifference.*
        Subject.(device|target|parameter_formats#key) InputTensor.dtype Layout.format Failure.kind
        Cure.(name|answers|dtype) Configuration.(compile_arguments|inductor_options|library_switches)#key
        Decision.rule FxNode.(op|dtype)
        Conversion.(port|dtype|target_dtype) Buffer.dtype Kernel.library Total.library
        Equivalence.reference TracedModel.text TracedTensor.dtype GraphDecision.rule (Finding|FindingChange).code
        Compared(Trace|Model).created_at ComparedModel.(mode|device) (Trace|Model)Comparison.layoutdoctor_version
        Policy.(torch|device|device_name) ScannedFile.(torch|device_name) Scan.layoutdoctor_version""",
    "option": r"Configuration.(compile_arguments|inductor_options)",
    "rule": r"(Finding|FindingChange).rule",
    "module": r"\w+.module Cure.modules GradientLayout.parameter",
    "file": r"""
        SourceLocation.file (Subject|ComparedTrace|ComparedModel|ScannedFile).name Policy.model FailedTarget.target
        #key""",
    "class": r"Subject.model",
    "code": r"Graph.code_fingerprint",
    "name": r"""
        InputTensor.name FxNode.(name|inputs) Convolution.node Decision.deciding_nodes Graph.(name|output_names)
        Buffer.(name|origins|reads|source_node|alias_of) BufferRead.name LayoutBreaker.(node|conversions)
        Conversion.(id|node|graph|required_by|value|source_value|step) Kernel.(node|graph) DecisionChange.graph
        RedundantPair.(first|second|also|graph)""",
    "size": r"\w+.(shape|stride|shapes|weight_shape|tensor_shape)",
    "operator": r"FxNode.(target|called) \w+.op \w+.operations \w+.between",
    "kernel": r"""
        Kernel.(name|problem|implementation) Conversion.kernel Buffer.kernel Graph.(kernel_names|kernel_sources#key)
        AccountRow.(slower|faster)_kernels""",
    "configuration": r"""
        Configuration.name (Finding|FindingChange|Recommendation|WithoutFreezing).configuration
        (Trial|ComparedTrial).same_as Comparison.(baseline|fastest) Ratio.name Account.(slower|faster)
        Policy.(baseline|everywhere) Case.use TrialChange.name ComparedModel.(baseline|recommended)""",
    "total": r"(Total|TotalChange).name Scan.totals#key",
    "evidence": r"Finding.evidence",
    "code to paste": r"(Recommendation|WithoutFreezing|Cure|Policy).how",
    "command": r"Environment.command",
}
"""
Patterns of the fields that hold each kind of text; all other fields hold free text. ``FIELD#key`` means the keys of a
mapping. ``#key`` alone means the keys of a mapping outside a record: the names of targets.
"""
_KIND_OF = {kind: re.compile("|".join(fields.split())) for kind, fields in _FIELDS.items()}


@functools.cache
def _kind_of(place: str) -> str:
    """Returns the kind of text at a place (``"Finding.rule"``): empty for free text, ``module`` outside a record."""
    field = place.replace(" ", "#")
    return next((kind for kind, fields in _KIND_OF.items() if fields.fullmatch(field)), "") if place else "module"


_PSEUDONYM = re.compile(r"(?:module|file|class|name|code|kernel|configuration)_\d+")
_OF_TORCH = re.compile(
    r"(?:torch\.ops\.)?(?:aten|prims?|quantized|quantized_decomposed|mkldnn|onednn|inductor)(?:::|\.)[\w.:]+"
    r"|(?:torch(?!\.ops\.)|_?operator|builtins|math)\.[\w.]+"
)
_PARTS = re.compile(r"(::|[.:])")
_PARAMETERS = frozenset("weight bias running_mean running_var num_batches_tracked default out".split())
_FILE_OF_TORCH = re.compile(r"(?:site|dist)-packages/torch/.*|lib/python[\d.]+/.*|<frozen .*")
_SUFFIX = re.compile(r"(?:\.(?:py|ipynb|json|jsonl|gz|csv|txt|log|sqlite|parquet|pt2|recording|zip|tar))+$")
_SIZE = re.compile(r"(?:[su]\d+|[\d+*/() -]|FloorDiv|Mod|Max|Min|,)+")
_GENERATED = re.compile(r"(?:triton_[a-z]{2,8}_fused_|cpp_fused_)")
_FIXED_TOTAL = re.compile(r"ProfilerStep#\d+|LD\d{3}|[\dx]*|rule|aside|kernel|operation|module|shape|step|device")
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_BUILTIN = frozenset(one.name for one in BUILTIN_CONFIGURATIONS) | {"recorded", "the new one", "the old one"}
_DERIVED = re.compile(r"(?:\+[a-z][a-z0-9-]*)*")
_UNKNOWN_LIBRARIES = (None, "custom", "inductor")


def redact(record: AnyRecord, surroundings: Surroundings | None = None) -> AnyRecord:
    """
    Scrubs a record, replaces the user's own names by pseudonyms, and leaves out free text.

    Args:
        surroundings: The names and folders to remove; None for the surroundings of this process.
    """
    record = scrub(record, surroundings)
    return rewrite_record(record, _Redactor(record).rewrite)


class _Redactor:
    """Replaces the names in one record; first reads the whole record to find the names that are not the user's."""

    def __init__(self, record: object) -> None:
        self._pseudonyms: dict[tuple[str, str], str] = {}
        self._numbers: dict[str, int] = {}
        self._taken: set[str] = set()
        self._public: set[str] = set()
        self._operators: set[str] = set()
        self._modules: set[str] = set()
        self._takers: dict[str, Callable[[str], str]] = {
            "class": functools.partial(self._pseudonym, "class"),
            "code": functools.partial(self._pseudonym, "code"),
            "name": functools.partial(self._pseudonym, "name"),
            "option": lambda value: value if value in _MODES else LEFT_OUT,
            "rule": lambda name: name if name in self._public else self._pseudonym("name", name),
            "module": self._module,
            "file": self._file,
            "size": lambda size: size if _SIZE.fullmatch(size) else self._pseudonym("name", size),
            "operator": self._operator,
            "kernel": self._kernel,
            "configuration": self._configuration,
            "total": self._total,
            "evidence": self._evidence,
            "code to paste": lambda _: f"# {LEFT_OUT}",
            "command": lambda _: f"layoutdoctor {LEFT_OUT}",
        }
        for part in records_in(record):
            self._note_public(part)
        rewrite_record(record, self._note)

    def _note_public(self, record: msgspec.Struct) -> None:
        """Notes names that are kept (kernels of libraries, built-in rules), and names of totals that are modules."""
        if isinstance(record, Kernel) and record.library not in _UNKNOWN_LIBRARIES:
            self._public |= {record.name, record.problem or "", record.implementation or ""}
            self._public.add(f"{record.name} {record.implementation}")  # the kernel's name in an account
        elif isinstance(record, Conversion) and record.owner == "library":
            self._public.add(record.kernel or "")
        elif isinstance(record, Finding) and re.fullmatch(r"LD\d{3}", record.code):
            self._public.add(record.rule)
        elif isinstance(record, Total) and record.kind == "module":
            self._modules.add(record.name)
        elif isinstance(record, Total) and record.library not in _UNKNOWN_LIBRARIES:
            self._public.add(record.name)

    def _note(self, text: str, place: str) -> str:
        self._taken.update(part for part in _PARTS.split(text) if _PSEUDONYM.fullmatch(part))
        if _OF_TORCH.fullmatch(text) and _kind_of(place) == "operator":
            self._operators.update(_PARTS.split(text))
        return text

    def rewrite(self, text: str, place: str) -> str:
        """Returns the replacement of a text; its place is a field such as ``"Finding.rule"``."""
        kind = _kind_of(place)
        if not text or kind == "kept" or text == LEFT_OUT:
            return text
        return self._takers[kind](text) if kind in self._takers else LEFT_OUT

    def _pseudonym(self, kind: str, name: str) -> str:
        if name in self._taken:
            return name  # a pseudonym of an earlier redaction, or a name that looks like one: it is kept
        key = (kind, name)
        while key not in self._pseudonyms:
            self._numbers[kind] = self._numbers.get(kind, 0) + 1
            pseudonym = f"{kind}_{self._numbers[kind]}"
            if pseudonym not in self._taken:
                self._pseudonyms[key] = pseudonym
        return self._pseudonyms[key]

    def _module(self, path: str) -> str:
        parts = path.split(".")
        return ".".join(
            part if part.isdecimal() or part in _PARAMETERS or not part else self._pseudonym("module", part)
            for part in parts
        )

    def _file(self, path: str) -> str:
        """Replaces a file's name. Folders are ignored: ``model.py`` and ``models/model.py`` get the same pseudonym."""
        name = path.replace("\\", "/").rsplit("/", 1)[-1]
        suffix = _SUFFIX.search(name)
        end = suffix.group() if suffix is not None else ""
        if _FILE_OF_TORCH.fullmatch(path) or name.removesuffix(end) in self._taken:
            return path
        return f"{self._pseudonym('file', name)}{end}"

    def _operator(self, target: str) -> str:
        if _OF_TORCH.fullmatch(target) or target in self._operators:
            return target
        parts = _PARTS.split(target)
        kept = (*_PARAMETERS, "::", ".", ":", "")
        return "".join(one if one in kept or one.isdecimal() else self._pseudonym("name", one) for one in parts)

    def _kernel(self, name: str) -> str:
        if name in self._public:
            return name
        generated = _GENERATED.match(name)
        if generated is None:
            return self._pseudonym("kernel", name)
        rest = name[generated.end() :]
        return generated.group() + (rest if rest in self._taken else self._pseudonym("kernel", name))

    def _configuration(self, name: str) -> str:
        first, plus, rest = name.removeprefix(AHEAD_OF_TIME).partition("+")
        is_own = first in _BUILTIN and _DERIVED.fullmatch(plus + rest)
        return name if is_own else self._pseudonym("configuration", name)

    def _total(self, name: str) -> str:
        if _FIXED_TOTAL.fullmatch(name) or name in self._public or _OF_TORCH.fullmatch(name):
            return name
        return self._module(name) if name in self._modules else self._operator(name)

    def _evidence(self, text: str) -> str:
        """Replaces a name that has a pseudonym, keeps a public name, leaves out any other text, such as a figure."""
        for kind in ("name", "kernel"):
            if (kind, text) in self._pseudonyms:
                return self._kernel(text) if kind == "kernel" else self._pseudonyms[kind, text]
        is_known = text in self._public or text in self._taken or self._configuration(text) == text
        return text if is_known else LEFT_OUT
