"""
Secrets and addresses by their shape: keys of well-known services, passwords beside their names, e-mail, networks.

Each pattern is anchored so that kernel names, module paths, versions and C++ scopes are none.
"""

from __future__ import annotations

import re

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

MAY_HOLD = re.compile(
    r"@|://|-----BEGIN|\d\.\d+\.\d+\.\d|[0-9a-fA-F]:[0-9a-fA-F:]|(?i:passw|passphrase|pwd|secret|credential|token|key|"
    r"bearer|authorization|gh[pousr]_|github_|glpat-|hf_|sk[-_]|pk_|rk_|akia|asia|aroa|aida|aiza|ya29|xox|xapp|eyJ|npm_|pypi-|"
    r"nvapi|sg\.|dop_v1|dckr|ssh-|wandb|api_org|user|logname|hostname|computername)"
)
"""Whether a text can hold any of it; most texts of a record cannot."""

_HARMLESS = re.compile(r"(?i)none|null|true|false|[\d.,]+|self\..*|<.*|\.\.\.|\*+|x+")
_NAME_LIKE = re.compile(r"[A-Za-z_]+(?:\.[A-Za-z_]\w*)*")


def without_secrets(text: str) -> str:
    """
    The text without keys, passwords, e-mail and network addresses.

    Args:
        text: Anything.
    """
    if MAY_HOLD.search(text) is None:
        return text
    text = _BY_SHAPE.sub(TOKEN, text)
    text = _AUTHORIZATION.sub(rf"\g<1>{TOKEN}", text)
    text = _WANDB.sub(rf"\g<1>{TOKEN}", text)
    text = _ASSIGNED.sub(_assigned, text)
    text = _OPTION.sub(rf"\g<1>{TOKEN}", text)
    text = _WHO.sub(lambda match: f"{match[1]}{match[2]}<{'host' if match[1][0] in 'HC' else 'user'}>", text)
    return _without_addresses(text)


def _assigned(match: re.Match[str]) -> str:
    value = match[3] or match[4]
    if _HARMLESS.fullmatch(value):
        return match.group()
    # A tensor is called token too: token=hidden.mean is code, token=hunter2 is none.
    if match[2] is None and _NAME_LIKE.fullmatch(value) and re.search(r"(?i)pass|pwd|secret", match[1]) is None:
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
