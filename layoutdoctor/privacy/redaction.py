"""
``redact``: the user's own names become pseudonyms, numbered in the order in which they appear.

A number says nothing about its name, where a hash could be guessed back with a list of likely names. One name has one
pseudonym throughout a record, so conversions, nodes and findings still point at each other and rules find the same.
Kept is what is known to be public: words, names and files of torch, Python and layoutdoctor; the lists stand below.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.diagnosis.records import Conversion, Kernel, Total
from layoutdoctor.privacy.scrubbing import records_in, rewrite_record, scrub

if TYPE_CHECKING:
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
_PLACEHOLDER = re.compile(r"<(?:path(?:-\d+)?|home|user|host|token|email|ip|mac|set)>")
_CONTAINER = re.compile(r"(_(?:modules|parameters|buffers)\[['\"])([^'\"]+)(['\"]\])")
_PSEUDONYM = re.compile(r"\b(?:module|file|class|name|code)_\d+")
_SCOPE = re.compile(r"::|\.")

# Nothing of the user's stands here: versions, devices and settings (which scrub has seen to), dates, codes, layouts.
_KEPT = frozenset(
    f"Environment.{name}"
    for name in "torch python platform triton cuda cudnn onednn onednn_isa compiler device_name settings".split()
) | {
    "Environment.settings key",
    "Diagnosis.created_at",
    "Diagnosis.layoutdoctor_version",
    "Finding.code",
    "Finding.rule",
}
_KERNELS = frozenset(("Kernel.name", "Conversion.kernel", "Buffer.kernel", "Graph.kernel_names"))
_LIBRARY_TEXTS = frozenset(("Kernel.problem", "Kernel.implementation"))
_OPAQUE = frozenset(("Graph.code_fingerprint",))
_CLASSES = frozenset(("Subject.model",))
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
        self._known: dict[tuple[str, str], str] = {}
        for part in records_in(record):
            self._note_public(part)
        rewrite_record(record, self._collect)

    def _note_public(self, record: msgspec.Struct) -> None:
        """Kernel names of libraries, and totals that are called after a module."""
        if isinstance(record, Kernel) and record.library not in _UNKNOWN_LIBRARIES:
            self._public_texts.update(text for text in (record.name, record.problem, record.implementation) if text)
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
        elif place in _CLASSES:
            self._names.setdefault(text, "")
        elif place == "SourceLocation.file":
            # A sentence says "model.py" of what the record knows as "models/model.py"; the first such file is meant.
            self._files.setdefault(_file_name(text), text)
        return text

    def rewrite(self, text: str, place: str) -> str:
        if place in _KEPT or place.startswith("Layout."):
            return text
        key = (text, self._kind(text, place))
        if key not in self._known:
            self._known[key] = self._rewritten(*key)
        return self._known[key]

    def _kind(self, text: str, place: str) -> str:
        if place == "SourceLocation.file":
            return "file"
        if _is_module(place) or (place == "Total.name" and text in self._module_totals):
            return "module"
        if place in _OPAQUE:
            return "code"
        if place in _CLASSES:
            return "class"
        if text in self._public_texts and (place in _KERNELS or place in _LIBRARY_TEXTS or place == "Total.name"):
            return "public"
        return "text"

    def _rewritten(self, text: str, kind: str) -> str:
        if kind == "public":
            return text
        if kind == "file":
            return self._file(text)
        if kind == "module":
            return self._module(text)
        if kind == "class":
            return text if is_public_class(text) else self._pseudonym("class", text)
        if kind == "code":
            return self._pseudonym("code", text)
        return self._text(text)

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
        if not part or is_public_parameter_part(part) or _PLACEHOLDER.fullmatch(part):
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
        for match in _PLACEHOLDER.finditer(text):
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
    return place.endswith((".module", ".parameter"))


# ---------------------------------------------------------------------------------------------- what is public
# What else stands in messages of compilers, drivers and libraries.
_FURTHER_WORDS = frozenset(
    """
    errno warp warps rotary paged kvcache routing comms traits params rmsnorm quant fatal abort aborted killed recent
    signal segmentation fault illegal address access denied refused connection closed capacity gib mib kib free
    reserved fragmentation tried allocate branch branches deep network networks veto vetoes undefined symbol
    linker header compilation terminated ptxas nvcc clang gcc llvm mlir ptx cubin hip blk uni jit brg brgemm conv
    fwd bwd dgrad wgrad gemm acl ref rnn ncsp nspc simple winograd wino xbyak amx vnni nchw nhwc ncdhw ndhwc krsc
    kcrs half float double bfloat fp8 tf32 fused poi red per tem unrolled elementwise
    """.split()
)
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
    return WORDS | _FURTHER_WORDS | own_words() | python | {part for name in PUBLIC_SCOPES for part in name.split("_")}


def is_public_word(word: str) -> bool:
    """Whether one word, without separators, may be kept: a known one, a number with its unit, a dtype, a format."""
    if len(word) <= 2 or _NUMBER.fullmatch(word) or _NAMED_TYPE.fullmatch(word) or _TENSOR_FORMAT.fullmatch(word):
        return True
    if word in MODULE_CLASSES or _is_known(word):
        return True
    parts = _CAMEL_PART.findall(word)
    return len(parts) > 1 and "".join(parts) == word and all(map(_is_known, parts))


def _is_known(word: str) -> bool:
    lower = word.lower()
    return lower in _known_words() or lower.rstrip("0123456789") in _known_words()


def is_public_class(name: str) -> bool:
    """Whether a module's class is one of torch's own, also with the number that a trace adds: ``Conv2d_26``."""
    return re.sub(r"_\d+$", "", name) in MODULE_CLASSES


def is_public_file(path: str) -> bool:
    """Whether a file, as ``scrub`` leaves its path, belongs to Python or to a package that everybody has."""
    name = path.replace("\\", "/").removeprefix("site-packages/").removeprefix("dist-packages/")
    return path.startswith("<frozen") or ("/" in name and name.split("/", 1)[0] in PUBLIC_PACKAGES)


def is_public_parameter_part(part: str) -> bool:
    """Whether one part of a module's or parameter's path is torch's: an index, ``weight``, ``Conv2d_26``."""
    return part.isdigit() or part in _PARAMETER_PARTS or is_public_class(part)


# Parts of torch's operator names, words of its messages, and the classes of ``torch.nn``: made from torch 2.13.
WORDS = frozenset(
    """
    abi able about above abs absolute abstract accelerator accept acceptable accepts access accessed accessing
    according accumulate accumulated accumulator accurate acl acos acosh across activation active actual actually
    adagrad adam adamw adaptive add addbmm addcdiv addcmul added adding addition additional additionally addmm
    addmv addr adds addstatvalue adjoint affect affine after again against airy algorithm algorithms alias aliases
    aliasing aligned alignment all allclose allgather alloc allocated allocation allow allowed allowing allows
    allreduce alltoall along alpha already also although always amax ambiguous amin aminmax amount amp analysis
    and angle annotation annotations anomaly another any anything api appear appears append application applied
    applies apply applying appropriate arange arbitrary arccos arccosh arcsin arcsinh arctan arctan2 arctanh are
    aren arg argmax argmin args argsort argument arguments argwhere arithmetic around array artifact artifacts
    arxiv asarray asin asinh assert assign assigned associated assume assumed assumes assuming async atan atan2
    atanh aten atleast attempt attempted attempting attempts attention attr attribute attributes attrs auto
    autocast autograd autogradadd autogradallnonzero autogradallzero autogradanynonzero autogradzero autoload
    automatic automatically autotune autotuning available avg avoid avoids awaitable awaits aware axis back backed
    backend backends backward backwards bad baddbmm bag bailout bailouttemplate barrier bartlett base based basic
    batch batched because become becomes been before beginning behavior being below benchmark benchmarking
    bernoulli bessel best better between bf16 bfloat16 bias bicubic2d bilinear bilinear2d bin binary bincount
    binomial bit bits16 bits1x8 bits2x4 bits4x2 bits8 bitwise blackman blob block blocks bmm body bool boolean
    both bound boundaries boundary bounds break breaks broadcast broadcasting broadcastmkldnntensors
    broadcastsizes bsc bsr bucketize buffer buffers bug build building builds built builtin builtins but byte
    bytecode bytes c2c c2r cache cached cachemask caches caching calculate calculated calculation call callable
    callables callback called caller callers calling calls can cannot canonical capability capitalize capture
    captured captures cartesian case cases cast cat cauchy cause causes cbrt ccol cdata cdist cdouble ceil cell
    celu center certain cfloat chain chalf change changed changes changing channel channels char chebyshev check
    checked checking checkpoint checks child children choice choices cholesky choose chr chunk chunksizes circular
    clamp class classes classproperty clean clear clip clone closure cls coalesce coalesced code codegen col
    col2im collapse collect collected collecting collection collections collective collectives column combination
    combinations combine combined come command comment commit common compare compared comparing comparison
    compatibility compatible compilation compile compiled compiler compiles compiling complete complex complex128
    complex32 complex64 compleximplicit components compress compressed computation compute computed computes
    computing concat concatenate concrete cond condition conditions config configs configuration configurations
    confirmed conj consecutive consider considered consistent consists const constant constantchunk
    constantmkldnntensor constants constrain constraint constraints construct constructed construction constructor
    consumed contain contained container containing contains content contents context contexts contiguous control
    controls conv conv1d conv2d conv3d convenience convention conversion convert converted converting converts
    convolution coo copied copies copy copying copysign core corrcoef correct correctly correctness correspond
    corresponding corresponds cos cosh cosine cost could count counter counts cov cpp cpu create created creates
    creating creation cross crow csc cslt csr ctc cts ctx ctypes cuda cuda12 cudagraph cudnn cufft cummax
    cummaxmin cummin cumprod cumsum cumulative cupti current currently custom cutlass cxx11 data dataclasses
    datapipe dead debug debugging decide decisions decomp decompose decomposition decorator decrement deepcopy def
    default defaults deferred define defined defines definition deg2rad degrees delattr delete delitem denormal
    dense dep depend dependencies dependency dependent depending depends deploy deprecated deps depth depthwise
    depthwise2d depthwise3d dequantize derive derived described describes description desired det detach detailed
    details detect detected detection determine determined determines deterministic device devices diag diagflat
    diagonal dict dictionaries dictionary did diff difference different differentiable differentiablegraph differs
    digamma dilated2d dilated3d dilation dim dimension dimensional dimensions dimi dims dimv dir direct directly
    directory dirichlet disable disabled disk dispatch dist distance distributed distributions div divide
    divisible divmod dlpack doc docs docstr documentation does doesn doing don done dot dotted double down
    downstream draw dropout dropout1d dropout2d dropout3d dsmm dsplit dstack dtensor dtype dtypes dual due dummy
    duplicate during dyn dynamic dynamically dynamo e2m1fn e4m3fn e4m3fnuz e5m2 e5m2fnuz e8m0fnu each eager
    eagerly easier easily edges eff effect effects efficient efficientzerotensor eig eigh eigvals eigvalsh einsum
    either element elements elemt else elu embed embedding emit emits empty enable enabled enables enabling
    encoder encountered end endif endswith engine enough ensure ensures entire entirely entr entries entropy entry
    enum enumname enumvalue env environment epilogue equal equivalent erf erfc erfcx erfinv error errors estimate
    estimated etc euclidean evaluate evaluated evaluation even event events every exact exact1d exact2d exact3d
    exactly example examples except exception exchange execute executed executing execution exist existing exists
    exit exp exp2 expand expanded expandtabs expect expected expects expensive experimental expit explicit
    explicitly expm1 exponential export expr expression expressions extend extension extern external extra extract
    extracts eye fabs factor factorial factory fail failed failing fails failure fake fall fallback fallbackgraph
    falling falls false fast faster fbgemm feature features few fft fft2 fftfreq fftn fftshift field fields file
    filename files fill filled filter filtering final finally find fine finfo finite first fix fixed flag flags
    flash flat flatten flattened flip fliplr flipud float float16 float32 float4 float64 float8 floatimplicit
    floating floatlist floor floordiv flow flush fmax fmin fmod fold follow followed following follows foo foobar
    for force foreach fork form format forward found fp16 fp32 frac fractional frame frames free freeze fresh
    frexp frobenius from frombuffer full fullprec fully func function functional functionality functionalization
    functionalize functions functools functorch further fuse fused fusedconcat fusion fusiongroup future futures
    fwd gamma gammainc gammaincc gammaln gather gaussian gcd gelu gemm general generally generate generated
    generates generating generation generator generic geometric geqrf ger get getattr getattribute getitem gets
    getstate github give given gives glob global globals glu going good got gpu grad gradient gradients grads
    graph graphs greater grid group grouped groups gru guaranteed guard guards gumbel had half hamming handle
    handled handler handles handling hann happen happens hardshrink hardsigmoid hardswish hardtanh has hash have
    having head heaviside help helper helpful helps here hermite heuristic heuristics hex hfft hfft2 hfftn hidden
    high higher hinge hint hints histc histogram histogramdd hit hold holds hook hooks host hot householder how
    however hsmm hsplit hspmm hstack https hub huber hypot i0e i1e iadd iand identical identifier identify
    identity idiv idx ifft ifft2 ifftn ifftshift ifloordiv ifthenelse igamma igammac ignore ignored
    ignoredpythonop ignoring ihfft ihfft2 ihfftn iinfo ilshift im2col imag image immediately immutable imod impl
    implement implementation implementations implemented implements implicit import important importlib improve
    imul include included includes including incompatible incorrect increase increasing increment independent
    index indexed indexing indicate indicates indicating indices individual inductor inf infer inference inferred
    infinitely info information init initial initialization initialize initialized inline inlined inner inplace
    input inputs insert inserted inside inspect install installed instance instances instead instruction
    instructions int int1 int16 int2 int3 int32 int4 int4mm int4pack int5 int6 int64 int7 int8 int8pack integer
    integers intended interface interleave intermediate intermediates internal internally internals interop
    interpolate intimplicit intlist into ints inv invalid inverse invert invocation invoked ior iota ipow ipu
    irecv irfft irfft2 irfftn irshift isalnum isalpha isclose isdecimal isdigit isend isfinite isidentifier isin
    isinf islower isn isnan isneginf isnot isnumeric isposinf isprintable isreal isspace issue issues istft
    istitle isub isupper ite item items itemsize iter iterable iterate iteration iterations iterator itruediv its
    itself ivalue ixor jagged jit join joint just jvp kaiser keep keeps kept kernel kernels key keys keyword know
    known kron kthvalue kwarg kwargs laguerre lambda lanczos2d lapack large larger largest last later layer layers
    layout lazily lazy lcm ldexp ldl lead leading leaf leaky learnable least leaves left legacy legendre legit len
    length lengths lerp less let lets level lgamma lib libraries library lift like likely limit limited linalg
    line linear linear1d linspace list lists live ljust load loaded loader loading loads lobpcg local location log
    log10 log1p log2 logaddexp logaddexp2 logcumsumexp logdet logging logic logical logit logits logs logsigmoid
    logspace logsumexp long longer look looking looks lookup loop loops loss loss2d low lower lowering lowrank
    lshift lstm lstrip lstsq made maia main maintain maintaining make makes making management manager managers
    manages managing manual manually many map map2 mapped mapping maps margin mark marked mask masked match
    matched matches matching materialize math mathremainder matmul matrix max maximum may mean means mechanism
    median mem memory merge meshgrid message messages meta metadata meth method methods mha might migration min
    minimal minimum miopen mirror mish mismatch missing mix mixed mkl mkldnn mkldnnclamp mkldnnhardsigmoid
    mkldnnhardswish mkldnnhardtanh mkldnnlayernorm mkldnnscalarmul mmbatchside mmtreereduce mod mode model models
    modes modf modified modifies modify module modulecontainerindex modules monitor monitored more most move
    moveaxis movedim moving mps mse msort mtia much mul multi multigammaln multilabel multinomial multiple
    multiplication multiply multiprocessing must mutable mutate mutated mutates mutating mutation mutations
    mvlgamma name named names namespace nan nanmean nanmedian nanquantile nansum narrow native nbytes ncf ndim
    ndimension ndtr ndtri nearest nearest1d nearest2d nearest3d necessary need needed needs neg negative neither
    nelement nested nesting network never new newaxis newly next nextafter nll nnpack nnz node nodes noise non
    none nonzero nor norm norm1d norm2d norm3d normal normalization normalize normalized not note notes nothing
    now nowait nuclear num number numbers numel numerical numpy numtotensor obj object objects obs occur occurred
    occurs oct off offset offsets often old once one onednnfusiongroup onednnfusionguard ones ongoing only onto
    opaque open openmp operand operands operation operations operator operators ops optim optimal optimization
    optimizations optimize optimized option optional optionally options ord order ordered ordering orgqr origin
    original ormqr other otherwise our out outer output outputs outside over overhead overlap overlapping overload
    overridden override overrideable overrides own owner p2p pack package packed pad pad1d pad2d pad3d padded
    padding pair pairs pairwise paper parallel param parameter parameters params parent parse part partial
    particular partition partitioned partitions parts pass passed passes passing path paths pattern patterns pca
    pdist per percentformat perform performance performed performing performs permute permuted persistent philox
    physical pickle pin pinned pinv pinverse pipeline pixel place placeholder placeholders plain plan platform
    please plus point pointer points pointwise poisson polar polygamma polynomial pool pool1d pool2d pool3d pop
    popitem populated pos position positional positions positive possible possibly post potential potentially pow
    power powsum pre precision prefix preload prelu prepack prepacked prepare present preserve preserved preserves
    preserving prevent previous previously primal prims print printoptions prior priority problem process
    processed processes processing prod produce produced produces producing product profile profiler profiling
    program projection promote propagate propagation proper properly properties property provide provided provides
    providing proxy prune psi ptr purposes put python pythonop pytorch pytree qadd qbatch qconv qconv1d qconv2d
    qconv3d qint32 qint8 qkv qlinear qmul qparams qscheme qualified quant quantile quantization quantize quantized
    quasirandom query quint2x4 quint4x2 quint8 qweight r2c rad2deg radd radians ragged raise raised raiseexception
    raises rand randint randn random randperm range rangelist ranges rank ranking ranks rather ravel raw rdiv read
    reads real reapply reason reasons received reciprocal recommended reconstruct record recorded records
    recursive recursively recv reduce reduced reduction reductionsizes ref refer reference referenced references
    reflection refs region regions register registered registers registration registrations regular reinforce
    reinit reinterpret related relative release relevant relu relu6 rely remain remainder remaining remote removal
    remove removed removes removing renorm reorder reordering repeat replace replaced replacement replaces
    replacing replay replication report repr represent representation represented representing represents
    reproducibility requested require required requires requiresgradcheck rescale reset reshape resize resized
    resolve resolved respect respectively response responsible restore result resulting results retain retains
    retrieve return returned returning returns reuse rev reverse reversed rewrite rfft rfft2 rfftfreq rfftn rfind
    rfloordiv right rindex rjust rlshift rmatmul rmod rms rmul rng rnn roll root ror rot90 round row rowwise
    rpartition rpc rpow rrelu rrshift rshift rsplit rsqrt rstrip rsub rtruediv rule rules run running runs runtime
    rxor saddmm safe safely safety same sample sampled sampler samples satisfy saturate save saved saving scalar
    scalarimplicit scalars scale scaled scales scaling scan scatter schedule scheduler scheduling schema scope
    scramble scripting sdp search searchsorted second seconds see seed seen segment select selecting selection
    self selu semantics semi send separate separated separately seqlen sequence sequences serializable
    serialization serialize serialized set setattr setdefault setitem sets setstate setting settings setup several
    sgd sgn shallow shape shapes share shared shift shifted short should shuffle side sigmoid sign signal
    signature signatures signbit signed silu similar similarity simple simplify simply sin sinc since single
    singleton sinh sink size sized sizeof sizes skip skipped skipping slice slogdet slow small smaller smm smooth
    sobol soft softmax softmin softplus softshrink softsign solve some something sometimes sort sorted source
    sources space sparse spatial spdiags spec special specialized specific specifically specified specifies
    specify specifying spectral spherical split splitlines splits spmm spsolve sqrt square squeeze src sspaddmm
    stable stack standard start starting starts startswith state statement states static statically
    staticruntimecopyouts staticsubgraph statistics stats status std step steps stft still stop storage store
    stored stores storing str strategy stream strict stride strided strides string stringindex strings strip
    strobelight structure structured structures style sub subclass subclasses subclasshook subcmul subgraph
    subgraphs subject submodule submodules subsequent subset subtract successfully such suffix suitable sum
    support supported supporting supports sure svd svdvals swapaxes swapcase swapdims sym symbol symbolic symbols
    symeig symints symmetric sympy sync sys system table take taken takes tan tanh tanhshrink target targets tbc
    template templates temporarily temporary tensor tensordot tensorexprdynamicgroup tensorexprdynamicguard
    tensorexprgroup tensorinv tensors tensorsolve terms test testing tests text textwrap tf32 than that the their
    them then there therefore these they things this thnn those though thread threading threads three threshold
    through throw thus tile time timepoint times title today together token tokens tolist too top topk topological
    torch total trace traceable traceback traced tracer traces tracing track tracked tracker tracking tracks
    training transform transformation transformations transformer transforms transpose transpose1d transpose2d
    transpose3d trapezoid trapz traverse treat treated tree triangular tries trigger tril trilinear trilinear3d
    triple triplet triton triu true truediv trunc try trying tuning tuple tupleindex tuples tupleunpack turn twice
    two type typecheck typed typename types typically uint1 uint16 uint2 uint3 uint32 uint4 uint5 uint6 uint64
    uint7 uint8 unable unary unbacked unbind unchanged unchecked undefined under underlying unexpected unflatten
    unfold unhandled uniform unify uninitialized union unique unique2 unknown unless unlike unpack unpacked
    unpickler unpool unpool1d unpool2d unpool3d unravel unrecognized unsafe unscale unshuffle unsqueeze
    unsupported until untyped unused unwrap update updated updates upon upper upsample usage use used useful user
    users uses using usually utilities utility utils val valid validate validation value values vander var
    varconcat variable variables variadic variant various varstack vdot vecdot vector vectorized vendor verify
    version versions very via view views vmap void volatile vsplit vstack vulkan wait walk want warn warning
    warnings was way ways weakref weight weights well were what when where whether which while whole whose why
    width will window windows with within without won words work workaround worker working works would wrap
    wrapped wrapper wrappers wrapping wraps write writes writing written wrong xdoctest xla xlog1py xlogy xor xpu
    yet yield yields you your zero zeros zerotensor zeta zfill
    """.split()
)

MODULE_CLASSES = frozenset(
    """
    AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
    AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss BCEWithLogitsLoss
    BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle CircularPad1d CircularPad2d
    CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Container Conv1d Conv2d Conv3d ConvTranspose1d
    ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity CrossEntropyLoss CrossMapLRN2d
    DataParallel Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout Flatten Fold
    FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm Hardshrink Hardsigmoid
    Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d InstanceNorm2d InstanceNorm3d
    KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm LazyBatchNorm1d LazyBatchNorm2d
    LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d
    LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear LeakyReLU Linear LinearCrossEntropyLoss
    LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d MaxPool3d MaxUnpool1d
    MaxUnpool2d MaxUnpool3d Mish Module ModuleDict ModuleList MultiLabelMarginLoss MultiLabelSoftMarginLoss
    MultiMarginLoss MultiheadAttention NLLLoss NLLLoss2d PReLU PairwiseDistance ParameterDict ParameterList
    PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNBase RNNCell RNNCellBase RReLU ReLU ReLU6
    ReflectionPad1d ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU
    Sequential SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign
    SyncBatchNorm Tanh Tanhshrink Threshold Transformer TransformerDecoder TransformerDecoderLayer
    TransformerEncoder TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold
    Upsample UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """.split()
)
