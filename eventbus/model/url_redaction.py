"""Redaction of server URLs: it removes passwords before a URL is shown or logged.

It hides too much rather than too little. If a malformed URL leaves open where the password ends, everything
that may belong to it is hidden.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

EMBEDDED = re.compile(r"(?:embedded|memory):", re.IGNORECASE)
"""The beginning of URLs that name a folder instead of a host."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_QUERY_VALUE = re.compile(r"([?&;#])([^=&;#]*)=([^&;#]*)")
_PLAIN = re.compile(
    r"db|protocol|client_name|health_check_interval|"
    r"ssl_(?:cert_reqs|ca_certs|ca_path|certfile|keyfile|check_hostname|min_version)|"
    r"(?:socket_|socket_connect_)?timeout|socket_keepalive|retry_on_timeout|max_connections|decode_responses"
)
"""The options whose values may be shown.

Whoever mistypes another one may have written a password behind it.
"""
_HOST = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::[0-9]{0,5})?")


def redact(url: str) -> str:
    """Return `url` without its password, for messages, logs and reprs.

    Covers `user:password@`, passwords with unescaped `@`, `/` or `?`, URLs without a scheme
    or host, and query parameters but those that are known to hold no secret. A user name stays only where it
    certainly is a user name. Never raises.
    """
    if EMBEDDED.match(url):
        return url
    match = _SCHEME.match(url)
    scheme, rest = (match[0], url[match.end() :]) if match else ("", url)
    login, at, place = rest.rpartition("@")
    if at and not (login.startswith("/") and ":" not in login):  # not a socket path that contains an @
        if "?" in login:
            return f"{scheme}***"
        user, colon, _ = login.partition(":")
        rest = f"{user if colon and '/' not in user else ''}{':' if colon else ''}***@{place}"
    elif not rest.startswith("/"):
        hosts = re.split(r"[/?#]", rest, maxsplit=1)[0]
        if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
            return f"{scheme}***"
    return scheme + _QUERY_VALUE.sub(_hide_secret, rest)


def _hide_secret(match: re.Match[str]) -> str:
    value = match[3] if _PLAIN.fullmatch(unquote(match[2])) else "***"
    return f"{match[1]}{match[2]}={value}"
