"""
The machine that a report comes from, and absolute paths in text: relative to the project, from ``site-packages`` on,
or the file's own name.

What this machine says of its user is read once and passed on as a value. Paths of other machines are treated as its own
are, POSIX and Windows: a trace comes from elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import socket
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

SECRET_NAME = r"(?:TOKEN(?!IZ)|SECRET|PASS|PWD|KEY|CREDENTIAL|COOKIE|AUTH(?!OR)|DSN|PAT(?![A-Z]))"
"""What the name of a variable holds whose value is nobody's business; in capitals, as such names are."""

_SECRET_VARIABLE = re.compile(SECRET_NAME, re.IGNORECASE)
# A path or a plain word, such as the name of a helper, is no secret in itself.
_PLAIN_VALUE = re.compile(r"[/~].*|[a-z_-]{1,15}|[\d.]{1,12}", re.DOTALL)
SHORTEST_SECRET = 8
SHORTEST_NAME = 4

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


@functools.cache
def listed(name: str) -> frozenset[str]:
    """
    A list of words that stands beside this file.

    Args:
        name: ``common_names``: what says nothing about anybody, and stands in messages for something else. ``words``:
            parts of torch's operator names, words of its messages and of those of compilers, drivers and libraries.
            ``module_classes``: the classes of ``torch.nn``. Both of torch 2.13.
    """
    return frozenset((resources.files("layoutdoctor.privacy") / f"{name}.txt").read_text(encoding="utf-8").split())


def is_common(name: str) -> bool:
    """Whether a login or host name says nothing about anybody: an account of many machines, or a word of the field."""
    return name.lower() in listed("common_names") or _NUMBERED.fullmatch(name) is not None


def is_distinctive(name: str) -> bool:
    """
    Whether a user's or host's name can be told from other words wherever it stands: long enough, and no common one.

    A user called ``conv`` or ``data`` would otherwise cost every message that speaks of these. A short name is still
    removed where it is a folder's; a common one only with the home directory that is called after it.
    """
    return len(name) >= SHORTEST_NAME and not is_common(name)


PATH = "<path>"
_OWN_PACKAGE = Path(__file__).parents[1].as_posix() + "/"

_CHARACTER = r"[^\s\"'`<>|;,:()\[\]{}\\*?]"
# What may stand before an absolute path; after a letter, ")" or "." the slash is that of a ratio or a relative path.
_BEFORE = (
    r"(?:^|(?<=[\s\"'`(\[{,;=:|!@])|(?<=[\s\"'`]-[A-Za-z])|(?<=^-[A-Za-z])|(?<=-isystem)"
    r"|(?<=[)\]}>*])(?=/(?:home|Users|root|tmp|var|mnt|private|Volumes|scratch)/))"
)
_POSIX = re.compile(rf"{_BEFORE}(?:file:(?://)?(?:localhost)?)?((?:/|(?<!:)//)(?=[\w.~@+-]){_CHARACTER}+)")
_FILE_URL = re.compile(r"file://[\w.-]*(?=/)")
_QUOTED = re.compile(r"([\"'`])((?:/|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\)[^\"'`\n]*)\1")
_AFTER_PATH = re.compile(r"(?::\d{0,9}|[;,.!?)\]}=\s]){1,9}$")
_FROM_HOME = re.compile(rf"(?<![\w/.~)\]])~([A-Za-z_][\w.-]*)?(/[\w.]{_CHARACTER}+)")
_FOLDER_OF_WINDOWS = r"(?:[^\\/\n\"'`<>|:;,*?]+[\\/]+)*"
_WINDOWS = re.compile(
    rf"(?<![A-Za-z0-9\\])(?:\\\\+[?.]\\+)?(?:[A-Za-z]:[\\/]+|\\\\+[\w.-]+\\+(?=[\w$])){_FOLDER_OF_WINDOWS}{_CHARACTER}*"
)
# The whole text is a path, so that its folders may have spaces in them.
_WHOLE = re.compile(r"(?:/|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\)(?:(?! [-/~]|\.\w+\s)[^\n\"'`<>|:;,()\[\]{}*?])*\.\w{1,12}")
_HOME = re.compile(r"((?<![/\\])[/\\]+(?:home|Users|users)[/\\]+)(?![\\/<])([^/\\\s\"'`<>:;,()\[\]]+)")
_CACHE_FOLDER = re.compile(r"\b(torchinductor|pytest-of|matplotlib|ray|runtime|triton|nv_cache)([_-])(?!<)([\w.-]+)")

MAY_HOLD_PATH = re.compile(rf"[/\\~]|{_CACHE_FOLDER.pattern}")
"""Whether a text can hold a path, or a folder that is named after a user."""

_INSTALLED = re.compile(r"(?:^|/)((?:site|dist)-packages)/(.+)")
_STANDARD_LIBRARY = re.compile(r"(?:^|/)(lib/python\d[\w.]*/.+)")
_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib|lib64|proc|sys|dev|etc)/|/opt/(?:rocm|nvidia|intel|conda)\b")
_SUFFIX = re.compile(r"[^.].*\.\w{1,12}|\w+\.so(?:\.\d+)+")
# Operations of an exported model are named like paths: /features/features.0/Conv.
_EXPORTED = re.compile(
    r"(?:/[\w.]+)+/(?:Conv|ConvTranspose|Relu|LeakyRelu|PRelu|Sigmoid|HardSigmoid|HardSwish|Gemm|MatMul|Add|Sub|Mul|Div|Concat|"
    r"Reshape|Transpose|Slice|Resize|MaxPool|AveragePool|GlobalAveragePool|BatchNormalization|InstanceNormalization|"
    r"LayerNormalization|GroupNormalization|Softmax|Pad|Cast|Split|Gather|Unsqueeze|Squeeze|ReduceMean|Erf|Clip|Pow|"
    r"Sqrt|Tanh|Flatten|Constant|Shape|Expand|Identity|Where|Range|Exp)(?:_\d+)?(?:_output_\d+)?"
)
_FILE_SYSTEM = re.compile(r"/(?:home|Users|root|tmp|var|mnt|data|opt|usr|private|Volumes|scratch|workspace|content)/")


class PathShortener:
    """
    Makes the absolute paths in texts short.

    Two files of the same name from different folders stay two: the second one's folder is ``<path-2>``.

    Attributes:
        user: The login name; None where it is not known.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self.user = surroundings.user
        self._home = _slashed(surroundings.home)
        self._projects = _projects(surroundings)
        self._folders: dict[str, list[str]] = {}

    def in_text(self, text: str) -> str:
        """The text with its absolute paths made short."""
        if _WHOLE.fullmatch(text):
            return self._names_in_folders(self.shorten(text))
        if "/" in text:
            text = _FILE_URL.sub("", text)
        if "\\" in text or ":/" in text:
            text = _QUOTED.sub(self._quoted, text)
            text = _WINDOWS.sub(lambda match: self.shorten(match.group()), text)
        if "/" in text:
            text = _QUOTED.sub(self._quoted, text)
            text = _POSIX.sub(self._posix, text)
            text = _FROM_HOME.sub(lambda match: self.shorten(f"/~{match[1] or ''}{match[2]}"), text)
        return self._names_in_folders(text)

    def shorten(self, path: str) -> str:
        """One absolute path, POSIX or Windows, of this machine or another one, made short."""
        path = re.sub(r"/+", "/", path.replace("\\", "/"))
        bare = path.rstrip("/")
        installed = _INSTALLED.search(path)
        if installed:
            return f"{installed[1]}/{installed[2]}"
        library = _STANDARD_LIBRARY.search(path)
        if library:
            return library[1]
        if path.startswith(_OWN_PACKAGE):
            return f"layoutdoctor/{path.removeprefix(_OWN_PACKAGE)}"
        for project in self._projects:
            if bare == project:
                return "."
            if path.startswith(f"{project}/"):
                return path[len(project) + 1 :]
        if bare == self._home or re.fullmatch(r"(?:[A-Za-z]:)?/(?:home|Users)/[^/]+|/root", bare):
            return "<home>"
        name = bare.rsplit("/", 1)[-1]
        if _SUFFIX.fullmatch(name) or _SYSTEM.match(path):
            return f"{self._folder(name, path)}/{name}"
        return PATH

    def _folder(self, name: str, path: str) -> str:
        known = self._folders.setdefault(name, [])
        folder = path.rstrip("/").rsplit("/", 1)[0]
        if folder not in known:
            known.append(folder)
        number = known.index(folder) + 1
        return PATH if number == 1 else f"<path-{number}>"

    def _quoted(self, match: re.Match[str]) -> str:
        quote, path = match[1], match[2]
        if " /" in path or path.count(": ") or "://" in path or not self._is_path(path):
            return match.group()
        end = _AFTER_PATH.search(path)
        tail = end.group() if end else ""
        return f"{quote}{self.shorten(path.removesuffix(tail))}{tail}{quote}"

    def _posix(self, match: re.Match[str]) -> str:
        path = match[1].rstrip(".!=")
        return f"{self.shorten(path)}{match[1][len(path) :]}" if self._is_path(path) else match.group()

    def _is_path(self, path: str) -> bool:
        """Whether it is a path in a file system, not one step of a scope, nor the name of an exported operation."""
        if path == "/root" or path[:1] != "/":
            return True
        parts = [part for part in path.split("/") if part]
        if len(parts) < 2:
            return any(_SUFFIX.fullmatch(part) for part in parts)
        return _FILE_SYSTEM.match(path) is not None or _EXPORTED.fullmatch(path) is None

    def _names_in_folders(self, text: str) -> str:
        """User names in what is left of a path: ``home/NAME``, and folders for temporary files that are named so."""
        if "/" in text or "\\" in text:
            text = _HOME.sub(r"\1<user>", text)
        text = _CACHE_FOLDER.sub(self._cache_folder, text)
        if self.user is None or is_common(self.user):
            return text
        name = re.escape(self.user)
        return re.sub(rf"(?:(?<=[/\\])|(?<=^)|(?<=(?<!\w)~)){name}(?=[/\\])|(?<=(?<!\w)~){name}\b", "<user>", text)

    def _cache_folder(self, match: re.Match[str]) -> str:
        kind, joint, name = match.groups()
        if kind in ("pytest-of", "torchinductor") or name == self.user:
            return f"{kind}{joint}<user>"
        return match.group()


def _slashed(path: str | None) -> str | None:
    return None if path is None else path.replace("\\", "/").rstrip("/") or None


def _projects(surroundings: Surroundings) -> tuple[str, ...]:
    """The folder that paths are relative to: not one that holds homes, as a home's name would stay in the path."""
    project, home = _slashed(surroundings.working_directory), _slashed(surroundings.home)
    if project is None or re.fullmatch(r"(?:[A-Za-z]:)?(?:/(?:home|Users))?", project):
        return ()
    if home is not None and home.startswith(f"{project}/"):
        return ()
    return (project,)
