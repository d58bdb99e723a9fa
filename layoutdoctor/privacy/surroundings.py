"""
What this machine says of its user: home, names, folders, and secrets that stand in the environment.

Read once and passed on as a value, so that the tests say who they are.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import socket
from dataclasses import dataclass

_SECRET_VARIABLE = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|AUTH_?KEY|CREDENTIAL",
    re.IGNORECASE,
)
# A path or a plain word, such as the name of a helper, is no secret in itself.
_PLAIN_VALUE = re.compile(r"[/~].*|[a-z_-]{1,15}|[\d.]{1,12}", re.DOTALL)
SHORTEST_SECRET = 8
SHORTEST_NAME = 4

# A name that is one of these says nothing about anybody, and stands in messages for something else.
_COMMON_NAMES = frozenset(
    """
    root user users admin administrator ubuntu debian fedora centos ec2-user runner jovyan docker podman vscode
    codespace build builder test tests tester guest nobody default worker node app apps dev devel developer home data
    local localhost localdomain host server client main master slave head login compute cluster public shared service
    system daemon jenkins gitlab github actions circleci travis kaggle colab content sagemaker azureuser azure google
    amazon vagrant container sandbox python pytorch torch triton cuda nvidia intel linux darwin windows desktop laptop
    workstation machine computer eager inductor recorded trace traces kernel kernels graph graphs model models module
    modules layer layers block blocks body stem neck backbone encoder decoder features classifier conv conv1d conv2d
    conv3d convolution norm batch batchnorm groupnorm layernorm relu gelu silu pool linear weight weights bias input
    inputs output outputs tensor tensors activation gradient layout layouts format channels last contiguous clone copy
    view permute transpose reshape value values name names file files path paths line code none true false inference
    training forward backward float float16 float32 float64 bfloat16 half double int8 int32 int64 uint8 bool meta
    device devices stream step steps time times seconds bytes memory size shape stride strides order config
    configuration options option prepare compile measure profile library compiler framework unknown error warning
    note same fast faster slower attention unet resnet resnet50 alexnet transformer diffusion vision image images
    video audio text token tokens word words this that with from have here there more less than then also only each
    every call calls used runs reads writes between measured
    h100 h200 a100 v100 b200 mi300 mi250 l40s epyc xeon
    """.split()
)
_NUMBERED = re.compile(r"\d+|(?:cpu|gpu|node|host|worker|server|user|rank)[-_]?\d*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    What is known of the machine and its user.

    Attributes:
        home: The home directory; None where there is none.
        user: The login name; None where there is none.
        hosts: Names of this machine, long and short.
        working_directory: Where paths are relative to; None where none is.
        secrets: Values that must not appear anywhere: those of environment variables whose names say so.
    """

    home: str | None = None
    user: str | None = None
    hosts: tuple[str, ...] = ()
    working_directory: str | None = None
    secrets: tuple[str, ...] = ()


@functools.cache
def _this_user_and_host() -> tuple[str | None, str | None]:
    user = host = None
    with contextlib.suppress(Exception):  # a user id without a name raises differently by version and system
        user = getpass.getuser()
    with contextlib.suppress(OSError):
        host = socket.gethostname()
    return user, host


def known_surroundings() -> Surroundings:
    """This machine's surroundings, as they stand."""
    user, host = _this_user_and_host()
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    directory = None
    with contextlib.suppress(OSError):  # it may have been removed
        directory = os.getcwd()  # noqa: PTH109 - a string is what is compared
    secrets = {
        value
        for name, value in os.environ.items()
        if len(value) >= SHORTEST_SECRET and _SECRET_VARIABLE.search(name) and _PLAIN_VALUE.fullmatch(value) is None
    }
    return Surroundings(
        home=home if home not in ("", "~", "/") else None,
        user=user or None,
        hosts=tuple(dict.fromkeys(name for name in (host, (host or "").split(".")[0]) if name)),
        working_directory=directory,
        secrets=tuple(sorted(secrets, key=lambda value: (-len(value), value))),
    )


def is_common(name: str) -> bool:
    """
    Whether a user's or host's name says nothing about anybody: an account of many machines, or a word of the field.

    Args:
        name: A login or host name.
    """
    return name.lower() in _COMMON_NAMES or _NUMBERED.fullmatch(name) is not None


def is_distinctive(name: str) -> bool:
    """
    Whether a user's or host's name can be told from other words wherever it stands: long enough, and no common one.

    A user called ``conv`` or ``data`` would otherwise cost every message that speaks of these. A short name is still
    removed where it is a folder's; a common one only with the home directory that is called after it.

    Args:
        name: A login or host name.
    """
    return len(name) >= SHORTEST_NAME and not is_common(name)
