"""Sessions: who has signed in with a token or a code, kept in the browser's cookie.

A cookie holds the actor and an expiry, and is signed with a key that this process makes at its start, or with
`secret`, so that several processes know each other's. The token is part of the key: whoever changes it,
because others know it, ends what they have begun with it. What must always hold: a cookie that was changed,
has expired or was signed out here is nobody's; the value of a cookie never stands in a log. A sign-out is
known to the process that got it; the browser forgets the cookie in any case.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

import msgspec

from eventbus.dashboard.entry.actor import Actor
from eventbus.errors import ConfigError
from eventbus.model import clock

SESSION_SECONDS = 12 * 3600
_MOST_ENDED = 10_000
_SHORTEST = 32  # bytes of a secret
_LONGEST = 4096  # characters of a cookie; browsers keep no longer one


class _Session(msgspec.Struct, array_like=True):
    """What a cookie says. `expires` is a Unix time in seconds."""

    id: str
    expires: int
    name: str
    roles: list[str]


class Sessions:
    """Makes cookies, reads them, and ends them."""

    def __init__(self, secret: str | None, token: str | None = None) -> None:
        """With another `token` nobody is signed in any more, also with the same secret.

        Raises ConfigError for a secret that can be guessed: whoever knows it makes cookies.
        """
        if secret is not None and len(secret.encode("utf-8", "surrogatepass")) < _SHORTEST:
            raise ConfigError(
                f"the dashboard's secret has {len(secret)} characters, "
                f"and one of less than {_SHORTEST} bytes can be guessed "
                'from a cookie; make one with python -c "import secrets; print(secrets.token_urlsafe())"',
                setting="secret",
            )
        own = secrets.token_bytes(32) if secret is None else secret.encode("utf-8", "surrogatepass")
        self._key = hashlib.sha256(own).digest()
        if token is not None:
            given = token.encode("utf-8", "surrogatepass")
            self._key = hmac.new(self._key, b"token" + given, hashlib.sha256).digest()
        # Two dashboards of one machine have one host name, and cookies know no ports: so each key has its own
        # name.
        self._name = f"eventbus-{hashlib.sha256(b'name' + self._key).hexdigest()[:8]}"
        self._ended: dict[str, int] = {}

    def begin(self, actor: Actor, *, is_secure: bool) -> str:
        """Return the Set-Cookie header of a new session of `actor`."""
        expires = int(clock.now()) + SESSION_SECONDS
        session = _Session(secrets.token_urlsafe(16), expires, actor.name, sorted(actor.roles))
        text = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return self._header(f"{text}.{self._sign(text)}", SESSION_SECONDS, is_secure=is_secure)

    def read(self, cookies: dict[str, str], *, is_secure: bool) -> Actor | None:
        """Return whose session the cookies hold, None for nobody's."""
        session = self._read(cookies.get(self._named(is_secure=is_secure), ""))
        return None if session is None else Actor(session.name, frozenset(session.roles))

    def end(self, cookies: dict[str, str], *, is_secure: bool) -> str:
        """End the session for this process, and return the Set-Cookie header that takes it from the
        browser.
        """
        session = self._read(cookies.get(self._named(is_secure=is_secure), ""))
        if session is not None:
            now = int(clock.now())
            self._ended = {each: expires for each, expires in self._ended.items() if expires > now}
            if len(self._ended) >= _MOST_ENDED:
                self._ended.pop(next(iter(self._ended)))
            self._ended[session.id] = session.expires
        return self._header("", 0, is_secure=is_secure)

    def _read(self, cookie: str) -> _Session | None:
        text, _, signature = cookie.rpartition(".")
        if not text or len(cookie) > _LONGEST or not cookie.isascii():
            return None
        if not hmac.compare_digest(signature, self._sign(text)):
            return None
        try:
            session = msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Session)
        except (ValueError, msgspec.MsgspecError):
            return None
        is_over = session.expires <= clock.now() or session.id in self._ended
        return None if is_over else session

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def _named(self, *, is_secure: bool) -> str:
        return f"__Host-{self._name}" if is_secure else self._name

    def _header(self, value: str, seconds: int, *, is_secure: bool) -> str:
        secure = "; Secure" if is_secure else ""
        name = self._named(is_secure=is_secure)
        return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"
