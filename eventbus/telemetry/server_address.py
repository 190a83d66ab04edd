"""The server's address as attributes of spans and metrics: `server.address` and `server.port`, without a
password.

What must always hold: a URL that cannot be read gives no attributes, and no part of a password becomes one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from urllib.parse import urlsplit

from eventbus.model.url_redaction import redact

_PORT = 6379  # of a URL that names none


@cache
def server_attributes(url: str) -> Mapping[str, str | int]:
    """Return the attributes for a URL of the settings, or for the address that a store shows
    (`Store.address`).

    An embedded server has the path of its folder, a socket that of its file, and `memory:` nothing.
    """
    if "://" not in url:
        scheme, _, rest = url.partition(":")
        if scheme.lower() == "memory":
            return {}
        if scheme.lower() in ("embedded", "unix"):
            return {"server.address": rest} if rest else {}
        url = f"redis://{url}"
    try:
        parts = urlsplit(redact(url))
        host, port = parts.hostname, parts.port
    except ValueError:
        return {}
    if parts.scheme.lower() == "unix":
        return {"server.address": parts.path} if parts.path else {}
    if not host or "*" in host or "," in parts.netloc:
        return {}
    return {"server.address": host, "server.port": port or _PORT}
