"""
Absolute paths in text, made short: relative to the project, from ``site-packages`` on, or the file's own name.

Paths of other machines are treated the same way, POSIX and Windows: a trace comes from elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from layoutdoctor.privacy.surroundings import is_common

if TYPE_CHECKING:
    from layoutdoctor.privacy.surroundings import Surroundings

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
        """
        The text with its absolute paths made short.

        Args:
            text: Anything.
        """
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
            text = _FROM_HOME.sub(self._from_home, text)
        return self._names_in_folders(text)

    def shorten(self, path: str) -> str:
        """
        One absolute path, made short.

        Args:
            path: POSIX or Windows, of this machine or another one.
        """
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
        path = match[1]
        path, tail = path.rstrip(".!="), path[len(path.rstrip(".!=")) :]
        return f"{self.shorten(path)}{tail}" if self._is_path(path) else match.group()

    def _is_path(self, path: str) -> bool:
        """Whether it is a path in a file system, not one step of a scope, nor the name of an exported operation."""
        if path == "/root" or path[:1] != "/":
            return True
        parts = [part for part in path.split("/") if part]
        if len(parts) < 2:
            return any(_SUFFIX.fullmatch(part) for part in parts)
        return _FILE_SYSTEM.match(path) is not None or _EXPORTED.fullmatch(path) is None

    def _from_home(self, match: re.Match[str]) -> str:
        return self.shorten(f"/~{match[1] or ''}{match[2]}")

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
