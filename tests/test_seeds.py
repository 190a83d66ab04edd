"""The tables of `docs/seeds/` are whole: each number of each seed is there once, and what its row names
exists.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = _ROOT / "docs" / "seeds"

_EVENTS = {
    "EVR": 10, "EVD": 15, "MSG": 4, "SUB": 15, "HRG": 8, "CTX": 15, "DLV": 5, "SYS": 9, "IPE": 12, "TEP": 4,
    "IDM": 6, "EMT": 18, "FFE": 4, "RCP": 6, "QMG": 10, "TTL": 4, "CTR": 20, "SCH": 10, "DPL": 7, "SCN": 5,
}  # fmt: skip
_WORKFLOWS = {
    "WFD": 8, "WCX": 4, "WER": 6, "WCT": 16, "IPW": 7, "DWF": 20, "OPT": 7, "FLB": 8, "RES": 3, "STR": 6,
    "RBK": 7, "STO": 3, "WTO": 4, "SDN": 8, "MIN": 16, "FRG": 3, "WID": 7, "MEM": 3, "RAC": 3, "PRP": 7,
}  # fmt: skip


def _features(most: int) -> Iterator[str]:
    return map(str, range(1, most + 1))


def _named(name: str, numbers: Iterable[int], digits: int = 3) -> Iterator[str]:
    return (f"{name}-{number:0{digits}}" for number in numbers)


NUMBERS: dict[str, list[str]] = {
    "orijs-events": [each for name, most in _EVENTS.items() for each in _named(name, range(1, most + 1), 2)],
    "orijs-workflows": [
        each for name, most in _WORKFLOWS.items() for each in _named(name, range(1, most + 1), 2)
    ],
    "bullmq": [*_features(69), *_named("B", range(1, 86))],
    "conveyor": [*_features(40), *_named("C", range(1, 137))],
    "loopstack": [*_features(39), *_named("L", range(1, 60))],
    "neemata": [*_features(35), *_named("N", (*range(1, 44), *range(50, 71)))],
}


class Row(NamedTuple):
    number: str
    behaviour: str
    where: str
    tests: str

    @property
    def is_absent(self) -> bool:
        return self.where.startswith(("**declined**: ", "**not yet**: "))


_ROW = re.compile(r"^\| ((?:[A-Z]+-)?\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
_TEST = re.compile(r"`((?:tests|integration)/[\w/]+\.py)::(test_\w+)`")
_PLACE = re.compile(
    r"\[[^\]]+\]\([^)]+\)|`(?:eventbus|workflows|tests|integration|examples)/[\w/]+\.(?:py|lua)`"
)


@cache
def _rows(page: str) -> list[Row]:
    return [Row(*match.groups()) for match in _ROW.finditer((_PAGES / f"{page}.md").read_text())]


@cache
def _tests_in(file: str) -> set[str]:
    path = _ROOT / file
    if not path.exists():
        return set()
    nodes = ast.walk(ast.parse(path.read_bytes()))
    return {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def _flaw(row: Row) -> str:
    if row.is_absent:
        return "" if row.tests == "—" and len(row.where) > 40 else "an absent one has a reason and no test"
    cited = row.tests.split("<br>")
    unknown = [
        each
        for each in cited
        if (found := _TEST.fullmatch(each)) is None or found[2] not in _tests_in(found[1])
    ]
    if unknown or len({*cited}) < len(cited):
        return f"unknown or repeated tests: {unknown or cited}"
    return "" if _PLACE.search(row.where) else f"no place: {row.where}"


def test_each_page_of_a_seed_is_known() -> None:
    assert {path.stem for path in _PAGES.glob("*.md")} == {"index", *NUMBERS}


@pytest.mark.parametrize("page", NUMBERS)
def test_each_number_of_a_seed_has_one_row(page: str) -> None:
    text = (_PAGES / f"{page}.md").read_text()
    assert len(_rows(page)) == len(re.findall(r"^\| (?!no\. )", text, re.MULTILINE)), (
        "a row that cannot be read"
    )
    assert Counter(row.number for row in _rows(page)) == Counter(NUMBERS[page])


@pytest.mark.parametrize("page", NUMBERS)
def test_each_row_names_a_place_and_tests_that_exist_or_says_why_there_are_none(page: str) -> None:
    assert {row.number: flaw for row in _rows(page) if (flaw := _flaw(row))} == {}
