"""The scopes of a Lua script: names that nothing declares, and how many locals and upvalues its functions
have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Scopes", "read_scopes"]

_TOKEN = re.compile(
    r"--[^\n]*|'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"|[A-Za-z_]\w*|\d[\w.]*|\.\.\.|\.\.|[=~<>]=|\S"
)
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "and break do else elseif end false for function if in local nil not or repeat return then true "
        "until while",
    )
)
_KNOWN = frozenset(
    re.findall(
        r"\w+",
        "redis cmsgpack cjson struct bit string math table tonumber tostring type ipairs pairs next unpack "
        "pcall error select KEYS ARGV",
    )
)
"""What Redis gives a script."""


@dataclass
class _Function:
    """One function: its blocks with their locals, and the outer locals that it uses."""

    blocks: list[set[str]] = field(default_factory=lambda: [set()])
    locals: list[int] = field(default_factory=lambda: [0])
    upvalues: set[tuple[int, int, str]] = field(default_factory=set)


@dataclass
class Scopes:
    """What a script's text says about its names."""

    undeclared: set[str] = field(default_factory=set)
    most_locals: int = 0
    """The most locals that one function has at a time; Lua 5.1 allows 200."""
    most_upvalues: int = 0
    """The most outer locals that one function uses; Lua 5.1 allows 60."""
    functions: int = 0


def read_scopes(source: str) -> Scopes:
    """Read a script's text, statement by statement."""
    return _Reader(source).read()


class _Reader:
    def __init__(self, source: str) -> None:
        self._tokens = [each for each in _TOKEN.findall(source) if not each.startswith("--")]
        self._at = 0
        self._functions = [_Function()]
        self._ends: list[str] = []
        """What is open: function, block, for, repeat, or a brace."""
        self._found = Scopes()

    def read(self) -> Scopes:
        while self._at < len(self._tokens):
            self._read_token()
        assert self._ends == [], f"open at the end: {self._ends}"
        return self._found

    def _read_token(self) -> None:
        token = self._next()
        handler = {
            "local": self._read_local, "function": self._read_function, "for": self._read_for,
            "repeat": self._repeat, "if": lambda: self._ends.append("if"), "then": self._open,
            "elseif": self._close, "else": self._reopen, "do": self._do,
            "while": lambda: self._ends.append("while"), "end": self._end, "until": self._until,
            "{": lambda: self._ends.append("{"), "(": lambda: self._ends.append("("),
            "}": self._ends.pop, ")": self._ends.pop,
        }.get(token)  # fmt: skip
        if handler is not None:
            handler()
        elif (token[0].isalpha() or token[0] == "_") and token not in _KEYWORDS:
            self._use(token)

    # blocks

    def _open(self) -> None:
        self._functions[-1].blocks.append(set())
        self._functions[-1].locals.append(self._functions[-1].locals[-1])

    def _close(self) -> None:
        self._functions[-1].blocks.pop()
        self._functions[-1].locals.pop()

    def _reopen(self) -> None:
        self._close()
        self._open()

    def _repeat(self) -> None:
        self._ends.append("repeat")
        self._open()

    def _until(self) -> None:
        assert self._ends.pop() == "repeat"
        self._close()

    def _do(self) -> None:
        if self._ends and self._ends[-1] in ("while", "for"):
            self._ends[-1] += " do"
            if self._ends[-1] == "while do":
                self._open()
        else:
            self._ends.append("do")
            self._open()

    def _end(self) -> None:
        if self._ends.pop() == "function":
            ended = self._functions.pop()
            self._found.most_upvalues = max(self._found.most_upvalues, len(ended.upvalues))
        else:
            self._close()

    # names

    def _read_local(self) -> None:
        if self._peek() == "function":
            self._next()
            self._declare(self._next())
            self._open_function()
            return
        names = [self._next()]
        while self._peek() == ",":
            self._next()
            names.append(self._next())
        for name in names:
            self._declare(name)

    def _read_function(self) -> None:
        if self._peek() != "(":
            self._use(self._next())
            while self._peek() == ".":
                self._next()
                self._next()
        self._open_function()

    def _open_function(self) -> None:
        self._found.functions += 1
        self._functions.append(_Function())
        self._ends.append("function")
        assert self._next() == "("
        for token in iter(self._next, ")"):
            if token not in (",", "..."):
                self._declare(token)

    def _read_for(self) -> None:
        names = list(self._names_until_in())
        self._ends.append("for")
        self._open()
        for name in names:
            self._declare(name)

    def _names_until_in(self) -> Iterator[str]:
        while self._peek() not in ("in", "="):
            token = self._next()
            if token != ",":
                yield token

    def _declare(self, name: str) -> None:
        inner = self._functions[-1]
        inner.blocks[-1].add(name)
        inner.locals[-1] += 1
        self._found.most_locals = max(self._found.most_locals, inner.locals[-1])

    def _use(self, name: str) -> None:
        before = self._tokens[self._at - 2] if self._at > 1 else ""
        if before in (".", ":"):
            return
        if self._ends and self._ends[-1] == "{" and self._peek() == "=" and before in ("{", ","):
            return
        for depth in range(len(self._functions) - 1, -1, -1):
            for place in range(len(self._functions[depth].blocks) - 1, -1, -1):
                if name in self._functions[depth].blocks[place]:
                    for inner in self._functions[depth + 1 :]:
                        inner.upvalues.add((depth, place, name))
                    return
        if name not in _KNOWN:
            self._found.undeclared.add(name)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]
