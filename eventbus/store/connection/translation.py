"""Translating errors of redis-py, and error lines of the server, into ours.

What must always hold: `translate` maps every exception of redis-py (a test walks the whole tree of them), and
no text contains a password.
"""

from __future__ import annotations

import asyncio
import re
import ssl

import redis.exceptions as foreign

from eventbus.errors import StoreError, StoreRefused, StoreUnavailable

_REMEDIES = {
    "NOAUTH": "put the password into the URL, as in redis://:PASSWORD@host:6379",
    "WRONGPASS": "the server does not take this user name and password; check the URL",
    "NOPERM": "the user of the URL lacks a right (ACL LOG in the server names it); docs/operations.md lists "
    "the rights needed",
    "READONLY": "this is a read-only replica; use the URL of the primary",
    "OOM": "the server's maxmemory is reached; raise it, or shorten what is kept",
    "MISCONF": "the server cannot write to its disk and refuses writes; see its log",
    "CLUSTERDOWN": "the cluster does not serve this slot; see its log",
    "CERTIFICATE": "the server's certificate is not trusted; name the authority that signed it in the URL, "
    "as in rediss://host:6379?ssl_ca_certs=/path/to/ca.pem, and the host as in the certificate",
    "MOVED": "this is a node of a cluster, which is not supported yet; use the URL of one server",
}

#: Codes of refusals after which the same call may succeed: the store repeats it.
#: UNBLOCKED ends a blocked read when its server becomes a replica.
TRANSIENT = frozenset(
    {"LOADING", "READONLY", "MASTERDOWN", "TRYAGAIN", "ASK", "BUSY", "CLUSTERDOWN", "NOREPLICAS", "UNBLOCKED"}
)


def translate(error: BaseException, *, address: str, sent: bool) -> StoreError:
    """Return our error for an error of redis-py or of the operating system.

    `sent` says whether a command may have reached the server.
    """
    if isinstance(error, StoreError):
        return error
    if isinstance(error.__cause__, foreign.AuthenticationError):
        error = error.__cause__  # redis-py wraps errors that occur while it connects
    if isinstance(error, foreign.AuthenticationError):
        code = "NOAUTH" if "required" in str(error).lower() else "WRONGPASS"
        return _refused(code, str(error).rstrip("."), address)
    invalid = _certificate_error(error)
    if invalid is not None:
        return _refused("CERTIFICATE", getattr(invalid, "verify_message", str(invalid)), address)
    if isinstance(
        error, (foreign.ConnectionError, foreign.TimeoutError, OSError, EOFError, asyncio.TimeoutError)
    ):
        if isinstance(error, foreign.BusyLoadingError):
            return _refused("LOADING", "the server is loading its data", address)
        why = str(error) or type(error).__name__
        when = "before it answered" if sent else "while connecting"
        if not sent and _CUT_OFF.search(why):
            why += (
                "; if it speaks TLS it may want rediss://, or a client's certificate (ssl_certfile, "
                "ssl_keyfile)"
            )
        return StoreUnavailable(f"no server at {address} ({when}): {why}", address=address, sent=sent)
    if isinstance(error, foreign.ResponseError):
        return _refused(_code_of(error), str(error), address)
    return StoreError(f"the server at {address} answered unexpectedly: {type(error).__name__}: {error}")


# A server that expects TLS, or a client's certificate, ends the connection with one of these texts.
_CUT_OFF = re.compile(r"reset by peer|closed by server|ALERT_CERTIFICATE_REQUIRED")


def _certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """Return OpenSSL's error about the server's certificate, however deep redis-py wrapped it."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ssl.SSLCertVerificationError):
        seen = seen.__cause__ or seen.__context__
    return seen


_CODES: dict[type[Exception], str] = {
    foreign.ReadOnlyError: "READONLY",
    foreign.NoPermissionError: "NOPERM",
    foreign.OutOfMemoryError: "OOM",
    foreign.NoScriptError: "NOSCRIPT",
    foreign.MasterDownError: "MASTERDOWN",
    foreign.ClusterDownError: "CLUSTERDOWN",
    foreign.TryAgainError: "TRYAGAIN",
    foreign.ExecAbortError: "EXECABORT",
    foreign.ClusterCrossSlotError: "CROSSSLOT",
    foreign.MovedError: "MOVED",
    foreign.AskError: "ASK",
}

# Redis 6 wraps the refusal of a command inside a script: `...: @user_script: 9: -OOM command ...`
_IN_SCRIPT = re.compile(r"@user_script: ?\d+: -?([A-Z]{3,}) ")


def _code_of(error: foreign.ResponseError) -> str:
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    return _code_in(str(error))


def _code_in(text: str) -> str:
    """Return the code of a refusal: its first word, or a code further back in the text, otherwise `ERR`."""
    if "user executing the script" in text or text.startswith("ACL failure"):
        return "NOPERM"  # Redis 7 and Valkey say so about a command inside a script
    if text.startswith("Function not found"):
        return "NOFUNCTION"  # our word: servers have none for it
    first = text.partition(" ")[0]
    if first.isupper() and first != "ERR":
        return first
    inner = _IN_SCRIPT.search(text)
    return inner[1] if inner else "ERR"


def refusal(line: str, *, address: str) -> StoreRefused:
    """Return our error for an error line of the server that redis-py did not parse."""
    first, _, rest = line.partition(" ")
    if first == "LOADING":
        return _refused(first, "the server is loading its data", address)
    text = rest if first == "ERR" else line
    return _refused(_code_in(text), text, address)


def _refused(code: str, text: str, address: str) -> StoreRefused:
    remedy = _REMEDIES.get(code)
    if text.startswith("DB index"):
        remedy = "the URL names a database that it does not have, as in redis://host:6379/DATABASE; use 0"
    return StoreRefused(
        f"the server at {address} refused: {text}" + (f"; {remedy}" if remedy else ""), code=code
    )
