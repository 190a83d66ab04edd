"""Credentials: a lasting token, and codes that sign in once.

What must always hold: a secret is compared by digests, in a time that says nothing of it; a code signs in
once, within five minutes; an address that gave five wrong tokens in a minute is not heard until that minute
is over, whatever it gives. Only our own form and programs can give a token, so no foreign page uses up the
tries of an address.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from eventbus.errors import ConfigError
from eventbus.model import clock

CODE_SECONDS = 300.0
_FAILURES = 5
_FAILURE_SECONDS = 60.0
_ADDRESSES = 10_000
_CODES = 100
_SHORTEST = 16


class Credentials:
    """Knows the token and the codes of one dashboard, and who failed."""

    def __init__(self, token: str | None) -> None:
        """Raises ConfigError for a token that is shorter than 16 characters."""
        if token is not None and len(token) < _SHORTEST:
            raise ConfigError(
                f"the dashboard's token has {len(token)} characters, "
                f"and one of less than {_SHORTEST} can be guessed; make one "
                'with python -c "import secrets; print(secrets.token_urlsafe())"',
                setting="token",
            )
        self._token = None if token is None else _digest(token)
        self._codes: dict[bytes, float] = {}
        self._failures: dict[str, list[float]] = {}

    @property
    def has_token(self) -> bool:
        """Whether there is a lasting token."""
        return self._token is not None

    def make_code(self) -> str:
        """Return a new code. Of more than 100 unused ones the oldest is void."""
        code = secrets.token_urlsafe(32)
        while len(self._codes) >= _CODES:
            self._codes.pop(next(iter(self._codes)))
        self._codes[_digest(code)] = clock.monotonic() + CODE_SECONDS
        return code

    def is_token(self, given: str) -> bool:
        """Return whether this is the token."""
        return self._token is not None and hmac.compare_digest(_digest(given), self._token)

    def use_code(self, given: str) -> bool:
        """Return whether this is a code that is still good, and void it."""
        expires = self._codes.pop(_digest(given), None)
        return expires is not None and clock.monotonic() < expires

    def wait_after_failures(self, address: str) -> float:
        """Return for how many seconds the address is not heard; 0 if it is."""
        recent = self._recent(address)
        return recent[-_FAILURES] + _FAILURE_SECONDS - clock.monotonic() if len(recent) >= _FAILURES else 0.0

    def note_failure(self, address: str) -> None:
        """Remember that the address gave a wrong secret."""
        recent = self._recent(address)
        if address not in self._failures and len(self._failures) >= _ADDRESSES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[address] = [*recent[-_FAILURES:], clock.monotonic()]

    def _recent(self, address: str) -> list[float]:
        begin = clock.monotonic() - _FAILURE_SECONDS
        return [when for when in self._failures.get(address, ()) if when > begin]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
