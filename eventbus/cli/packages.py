"""Checks that the packages which Python finds are those of this distribution.

`eventbus` and `workflows` are top-level names, and no installer prevents two distributions from shipping
packages of the same name. The distribution that is installed later overwrites the files of the other one, and
the one that is uninstalled first removes them. A folder or file of the program may also hide a package.

The checks only read. An editable installation or a checkout has no list of files, so only the location of its
packages is checked.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import eventbus
from eventbus.store.diagnostics import Finding

_OURS = "eventbus-workflows"
_PACKAGES = ("eventbus", "workflows")
_AGAIN = f"pip install --force-reinstall {_OURS}"


def look_at_packages() -> list[Finding]:
    """Return a finding for each fault of the packages, or one finding that they are in order."""
    owners = _find_owners()
    found = [finding for name in _PACKAGES for finding in _look(name, owners[name])]
    return found or [Finding("packages", "ok", f"{' and '.join(_PACKAGES)} are those of {_OURS}")]


def explain_import() -> str:
    """Return why an import may have failed, if one of the packages is not ours; otherwise empty."""
    wrong = [finding for finding in look_at_packages() if finding.level == "error"]
    return "; ".join(f"{finding.said}; {finding.remedy}" for finding in wrong)


def _find_owners() -> dict[str, set[str]]:
    """Return the names of the distributions that ship each package.

    Not `metadata.packages_distributions`, which looks at each file of each distribution: a quarter of the
    command's CPU.
    """
    owners: dict[str, set[str]] = {name: set() for name in _PACKAGES}
    for each in metadata.distributions():
        tops = (each.read_text("top_level.txt") or "").split()
        listed = "" if tops else f"\n{each.read_text('RECORD') or _list_files(each)}"
        for package, names in owners.items():
            if package in tops or f"\n{package}/" in listed or f"\n{package}.py" in listed:
                names.add(each.metadata["Name"])
    return owners


def _list_files(distribution: metadata.Distribution) -> str:
    """Return the files of a distribution that has no RECORD, one on a line."""
    return "\n".join(map(str, distribution.files or ()))


def _look(package: str, owners: set[str]) -> Iterable[Finding]:
    home = Path(eventbus.__file__).resolve().parent.parent / package
    place = _place_of(package)
    others = {name: _folder(name, package) for name in sorted(owners) if name and _plain(name) != _OURS}
    if place != home:
        here = [name for name, folder in others.items() if folder == place]
        yield _misplaced(package, place, here)
        return
    sharing = [name for name, folder in others.items() if folder == home]
    missing, changed = _differences(package, home)
    who = " and ".join(sharing)
    apart = f"keep {who} in an environment of its own: pip uninstall {' '.join(sharing)}, then {_AGAIN}"
    if sharing and (missing or changed):
        count, first = len(missing + changed), (missing + changed)[0]
        said = (
            f"{count} file{'' if count == 1 else 's'} of package {package} "
            f"{'is' if count == 1 else 'are'} not ours"
        )
        yield Finding("packages", "error", f"{said} any more, such as {first}: {who} ships them too", apart)
    elif sharing:
        said = f"{who} ships package {package} too: what is installed or removed next destroys the other"
        yield Finding("packages", "warning", said, apart)
    elif missing:
        said = f"package {package} lacks {len(missing)} of its files, such as {missing[0]}"
        yield Finding("packages", "error", f"{said}: another distribution may have taken them along", _AGAIN)
    elif changed:
        said = f"package {package} was changed since it was installed, such as {changed[0]}"
        yield Finding("packages", "warning", said, _AGAIN)


def _misplaced(package: str, place: Path | None, owners: list[str]) -> Finding:
    if place is None:
        return Finding("packages", "error", f"there is no package {package}", _AGAIN)
    who = " and ".join(owners)
    said = f"package {package} is imported from {place}, which {f'{who} ships' if who else 'is not ours'}"
    remedy = (
        f"keep {who} in an environment of its own: pip uninstall {' '.join(owners)}"
        if who
        else f"rename it: {package} is the name of a package of {_OURS}"
    )
    return Finding("packages", "error", said, remedy)


def _place_of(package: str) -> Path | None:
    """Return where Python finds the package: its folder, or the file of a module that hides it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    where = folders[0] if folders else spec.origin
    return None if where is None else Path(where).resolve()


def _folder(distribution: str, package: str) -> Path | None:
    """Return the folder into which a distribution installs the package; None if it is not installed."""
    try:
        return Path(str(metadata.distribution(distribution).locate_file(package))).resolve()
    except metadata.PackageNotFoundError:
        return None


def _differences(package: str, home: Path) -> tuple[list[str], list[str]]:
    """Return the installed files that are missing now, and those that have changed."""
    try:
        ours = metadata.distribution(_OURS)
    except metadata.PackageNotFoundError:
        return [], []
    if Path(str(ours.locate_file(package))).resolve() != home:
        return [], []  # the installed copy is not the one that runs
    missing: list[str] = []
    changed: list[str] = []
    # Not `ours.files`, because newer Pythons leave missing files out of it.
    for name, recorded, *_ in csv.reader((ours.read_text("RECORD") or "").splitlines()):
        algorithm, _, digest = recorded.partition("=")
        if not name.startswith(f"{package}/") or not digest:
            continue
        path = Path(str(ours.locate_file(name)))
        if not path.is_file():
            missing.append(name)
        elif _digest(path, algorithm) != digest:
            changed.append(name)
    return missing, changed


def _digest(path: Path, algorithm: str) -> str:
    """Return the digest of a file as RECORD writes it: URL-safe base64 without padding."""
    digest = hashlib.new(algorithm, path.read_bytes(), usedforsecurity=False).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _plain(name: str) -> str:
    """Return the normalized name of a distribution, for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()
