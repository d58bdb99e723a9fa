"""
Which words, names and files are public, so that redacting may keep them: torch's, Python's and layoutdoctor's own.

What is not known to be public is replaced, not the other way round.
"""

from __future__ import annotations

import builtins
import functools
import keyword
import re
from pathlib import Path

from layoutdoctor.privacy.words import MODULE_CLASSES, WORDS

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
    """
    Whether one word, without separators, may be kept: a known one, a number with its unit, a dtype, a tensor format.

    Args:
        word: Letters and digits.
    """
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
    """
    Whether a module's class is one of torch's own, also with the number that a trace adds: ``Conv2d_26``.

    Args:
        name: A class, or a class and a number.
    """
    return re.sub(r"_\d+$", "", name) in MODULE_CLASSES


def is_public_file(path: str) -> bool:
    """
    Whether a file belongs to Python or to a package that everybody has.

    Args:
        path: As ``scrub`` leaves it.
    """
    name = path.replace("\\", "/").removeprefix("site-packages/").removeprefix("dist-packages/")
    return path.startswith("<frozen") or ("/" in name and name.split("/", 1)[0] in PUBLIC_PACKAGES)


def is_public_parameter_part(part: str) -> bool:
    """
    Whether one part of a module's or parameter's path is torch's: an index, ``weight``, ``Conv2d_26``.

    Args:
        part: What stands between the dots.
    """
    return part.isdigit() or part in _PARAMETER_PARTS or is_public_class(part)
