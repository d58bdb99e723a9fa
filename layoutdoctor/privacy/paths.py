"""
Finds the names of this machine and its user, and shortens absolute paths in text.

A path becomes relative to the project, or begins at ``site-packages``, or keeps only the file's own name after
``<path>``. POSIX and Windows paths are both shortened, because a trace may come from another machine.
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

SECRET_NAME = r"(?:TOKEN(?!IZ)|SECRET|PASS|PWD|KEY|CREDENTIAL|COOKIE|AUTH(?!OR)|DSN|PAT(?![A-Z]))"
"""A word such as ``TOKEN`` in the name of a variable that holds a secret. Such names are usually in capitals."""

_SECRET_VARIABLE = re.compile(SECRET_NAME, re.IGNORECASE)
# A path, a plain word such as the name of a credential helper, a number, or a very short text is no secret.
_PLAIN_VALUE = re.compile(r"[/~].*|[a-z_-]{1,15}|[\d.]{1,12}|.{0,7}", re.DOTALL)
_NUMBERED = re.compile(r"\d+|(?:cpu|gpu|node|host|worker|server|user|rank)[-_]?\d*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """
    The names and folders of the machine and its user; empty if not known.

    Attributes:
        hosts: Names of this machine, long and short.
        working_directory: The current folder; a path inside this folder becomes relative to it.
        secrets: Values of environment variables that are named like secrets, the longest first.
    """

    home: str = ""
    user: str = ""
    hosts: tuple[str, ...] = ()
    working_directory: str = ""
    secrets: tuple[str, ...] = ()


def known_surroundings() -> Surroundings:
    """Finds the surroundings of this process."""
    user = directory = ""
    with contextlib.suppress(Exception):  # a user id may have no name: the error depends on version and system
        user = getpass.getuser()
    with contextlib.suppress(OSError):  # the folder may have been removed
        directory = os.getcwd()  # noqa: PTH109 - it is compared as a string
    home, host = os.path.expanduser("~"), socket.gethostname()  # noqa: PTH111 - Path.home() raises where there is none
    secrets = {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) and _PLAIN_VALUE.fullmatch(value) is None
    }
    return Surroundings(
        home="" if home in ("~", "/") else home,
        user=user,
        hosts=tuple(dict.fromkeys((host, host.split(".")[0]))),
        working_directory=directory,
        secrets=tuple(sorted(secrets, key=lambda value: (-len(value), value))),
    )


@functools.cache
def listed(name: str) -> frozenset[str]:
    """
    Reads a list of words from a file beside this module.

    Args:
        name: ``common_names`` for names of accounts and hosts, ``setting_words`` for values of settings, or
            ``exported_operations`` for operations of ONNX.
    """
    return frozenset((resources.files("layoutdoctor.privacy") / f"{name}.txt").read_text(encoding="utf-8").split())


def is_common(name: str) -> bool:
    """Whether a login or host name identifies nobody: many machines have this account, or it is a technical word."""
    return name.lower() in listed("common_names") or _NUMBERED.fullmatch(name) is not None


PATH = "<path>"

_CHARACTER = r"[^\s\"'`<>|;,:()\[\]{}\\*?]"
# The text before an absolute path. A slash after a letter, ")" or "." belongs to a ratio or a relative path.
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
# A text that is one path as a whole; only then may its folders have spaces in their names.
_WHOLE = re.compile(r"(?:/|~[\w.-]*/|[A-Za-z]:[\\/]|\\\\)(?:(?! [-/~]|\.\w+\s)[^\n\"'`<>|:;,()\[\]{}*?])*\.\w{1,12}")
_IN_HOME = re.compile(r"((?<![/\\])[/\\]+(?:home|Users|users)[/\\]+)(?![\\/<])([^/\\\s\"'`<>:;,()\[\]]+)")
_CACHE_FOLDER = re.compile(r"\b(torchinductor_|pytest-of-)(?!<)[\w.-]+")
_MAY_HOLD_PATH = re.compile(rf"[/\\~]|{_CACHE_FOLDER.pattern}")

_INSTALLED = re.compile(r"(?:.*/)?((?:(?:site|dist)-packages|lib/python\d[\w.]*)/.+)")
_HOME_FOLDER = re.compile(r"(?:[A-Za-z]:)?/(?:home|Users)/[^/]+|/root")
FOLDER_OF_HOMES = re.compile(r"(?:[A-Za-z]:)?(?:/(?:home|Users))?")
_SYSTEM = re.compile(r"/(?:usr|bin|sbin|lib|lib64|proc|sys|dev|etc)/|/opt/(?:rocm|nvidia|intel|conda)\b")
_FILE = re.compile(r"[^.].*\.\w{1,12}|\w+\.so(?:\.\d+)+")
_FILE_SYSTEM = re.compile(r"/(?:home|Users|root|tmp|var|mnt|data|opt|usr|private|Volumes|scratch|workspace|content)/")
_OPERATION = re.compile(r"(?:/[\w.]+)+/([A-Za-z]+)(?:_\d+)?(?:_output_\d+)?")


class PathShortener:
    """Shortens the absolute paths in texts."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._user = "" if is_common(surroundings.user) else surroundings.user
        self._home = _slashed(surroundings.home)
        project = _slashed(surroundings.working_directory)
        # Paths relative to a folder such as /home would keep the user's name.
        holds_homes = FOLDER_OF_HOMES.fullmatch(project) or self._home.startswith(f"{project}/")
        self._project = "" if holds_homes else project

    def in_text(self, text: str) -> str:
        """Returns the text with its absolute paths shortened."""
        if _MAY_HOLD_PATH.search(text) is None:
            return text
        if _WHOLE.fullmatch(text):
            text = self._short(text)
        else:
            text = _FILE_URL.sub("", text)
            text = _QUOTED.sub(self._quoted, text)
            text = _WINDOWS.sub(lambda match: self._short(match.group()), text)
            text = _QUOTED.sub(self._quoted, text)
            text = _POSIX.sub(self._posix, text)
            text = _FROM_HOME.sub(lambda match: self._short(f"/~{match[1] or ''}{match[2]}"), text)
        text = _IN_HOME.sub(r"\1<user>", text)
        text = _CACHE_FOLDER.sub(r"\1<user>", text)
        return re.sub(rf"(?<![^/\\~]){re.escape(self._user)}(?=[/\\])", "<user>", text) if self._user else text

    def _short(self, path: str) -> str:
        path = re.sub(r"/+", "/", path.replace("\\", "/"))
        bare = path.rstrip("/")
        installed = _INSTALLED.fullmatch(path)
        if installed:
            return installed[1]
        if self._project and f"{path}/".startswith(f"{self._project}/"):
            return path[len(self._project) + 1 :] or "."
        if bare == self._home or _HOME_FOLDER.fullmatch(bare):
            return "<home>"
        name = bare.rsplit("/", 1)[-1]
        return f"{PATH}/{name}" if _FILE.fullmatch(name) or _SYSTEM.match(path) else PATH

    def _quoted(self, match: re.Match[str]) -> str:
        quote, path = match[1], match[2]
        if " /" in path or path.count(": ") or "://" in path or not _is_path(path):
            return match.group()
        end = _AFTER_PATH.search(path)
        tail = end.group() if end else ""
        return f"{quote}{self._short(path.removesuffix(tail))}{tail}{quote}"

    def _posix(self, match: re.Match[str]) -> str:
        path = match[1].rstrip(".!=")
        return f"{self._short(path)}{match[1][len(path) :]}" if _is_path(path) else match.group()


def _is_path(path: str) -> bool:
    """Whether a text is a path in a file system. ``/relu`` and ``/features/Conv``, an operation of ONNX, are not."""
    if path == "/root" or path[:1] != "/":
        return True
    parts = [part for part in path.split("/") if part]
    if len(parts) < 2:
        return any(map(_FILE.fullmatch, parts))
    operation = _OPERATION.fullmatch(path)  # /features/features.0/Conv
    is_operation = operation is not None and operation[1] in listed("exported_operations")
    return not is_operation or _FILE_SYSTEM.match(path) is not None


def _slashed(path: str) -> str:
    return path.replace("\\", "/").rstrip("/")
