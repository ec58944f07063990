# SPDX-License-Identifier: Apache-2.0
"""Quoting for systemd unit files. Rules: systemd.syntax(7), systemd.exec(5), systemd.service(5); tests hold each one against
the real systemd-analyze, and a real service prints back what it was given.

An unknown escape, an unbalanced quote or an unknown specifier makes systemd drop a whole Environment= line with a warning
and exit code 0, so nothing is left to chance: every word is quoted, whatever is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..core.model import Refused

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_TEXT = re.compile(r"[\ud800-\udfff]")


def environment(name: str, value: str, where: str = "env") -> str:
    """The right side of an Environment= line: the whole assignment quoted; % doubled, $ literal. Refused for a bad name."""
    if not NAME.fullmatch(name):
        raise Refused("%r is no name of a variable" % name, where, "letters, digits and _, not beginning with a digit")
    return '"%s=%s"' % (name, _inner(value, "%s.%s" % (where, name)))


def word(text: str, where: str = "args") -> str:
    """One argument of ExecStart=: quoted; % and $ doubled. A quoted ";" is an argument, a bare one would separate commands."""
    return '"%s"' % _inner(text, where).replace("$", "$$")


def command(argv: Iterable[str], where: str = "args") -> str:
    """The right side of an ExecStart= line. The program must be an absolute path or a bare name. Raises Refused."""
    program, *more = argv
    if not re.match(r"/|[A-Za-z0-9_]", program):  # @ - : + ! would be taken for systemd's own prefixes
        raise Refused("%r is neither an absolute path nor the name of a program" % program, where)
    return " ".join([word(program, where), *(word(text, where) for text in more)])


def path(text: str, where: str) -> str:
    """A path where systemd takes the rest of the line as it is, but for specifiers (AssertPathExists=, LoadCredential=)."""
    _refuse(text, where)
    if not text.startswith("/") or text != text.strip() or text.endswith("\\"):
        raise Refused("%r is not an absolute path that a unit file can hold" % text, where)
    return text.replace("%", "%%")


def line(text: str, where: str) -> str:
    """Free text of one line, such as Description=; a backslash at its end would swallow the next line."""
    _refuse(text, where)
    return text.replace("%", "%%").rstrip("\\ ")


def _inner(text: str, where: str) -> str:
    _refuse(text, where)
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _refuse(text: str, where: str) -> None:
    if _CONTROL.search(text):
        raise Refused(
            "a line feed or another control character stands in %r" % text, where, "put such a value into a file"
        )
    if _NOT_TEXT.search(text):
        raise Refused("%r is not UTF-8 text" % text, where)


def read_back(text: str) -> dict[str, str]:
    """What `systemctl show -p Environment` prints, as a map: words bare, in "..." or in the shell's $'...' with escapes."""
    found = {}
    for bare, quoted, dollar in _SHOWN.findall(text):
        told = bare or (_unescape(quoted) if quoted else _unescape(dollar))
        name, _, value = told.partition("=")
        found[name] = value
    return found


_SHOWN = re.compile(r"""(?:([^\s"'$][^\s]*)|"((?:[^"\\]|\\.)*)"|\$'((?:[^'\\]|\\.)*)')(?:\s+|$)""")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "s": " "}


def _unescape(text: str) -> str:
    def one(m: re.Match[str]) -> str:
        octal, hexa, other = m.groups()
        return chr(int(octal, 8)) if octal else chr(int(hexa, 16)) if hexa else _ESCAPES.get(other, other)

    return re.sub(r"\\(?:([0-7]{3})|x([0-9a-fA-F]{2})|(.))", one, text)
