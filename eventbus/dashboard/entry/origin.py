"""Where a request comes from: its host, its address, and the page that sent it.

Three questions, each answered from the request alone:
- is the `Host` one of ours? Otherwise a name of somebody else's, which leads to this machine, reads
  our pages (DNS rebinding);
- which address sent it? Forwarded headers are believed only from `trusted_proxies`, because anybody
  can send them;
- did one of our own pages send it? Browsers say so in `Sec-Fetch-Site`; those that do not, as over
  plain http to a name that is not local, send `Origin`. A request that has neither is not believed.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from starlette.requests import Request

from eventbus.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Origins:
    """Judges where requests come from."""

    def __init__(
        self,
        *,
        allowed_hosts: Collection[str] | None,
        public_origin: str | None,
        trusted_proxies: Collection[str],
    ) -> None:
        """`allowed_hosts` of None leaves the host to whoever serves this app. Raises ConfigError."""
        self._hosts = None if allowed_hosts is None else {_bare(host) for host in allowed_hosts}
        self._public = None if public_origin is None else _check_origin(public_origin)
        try:
            self._proxies = [ip_network(proxy) for proxy in trusted_proxies]
        except ValueError as error:
            raise ConfigError(
                f"expected addresses or networks in trusted_proxies, {error}", setting="trusted_proxies"
            ) from None

    def is_known_host(self, request: Request) -> bool:
        """Return whether the request names one of our hosts."""
        return self._hosts is None or _bare(request.headers.get("host", "")) in self._hosts

    def is_secure(self, request: Request) -> bool:
        """Return whether the browser speaks TLS, with us or with the proxy before us."""
        return self.own(request).startswith("https://")

    def own(self, request: Request) -> str:
        """Return our own origin as browsers see it."""
        return (
            self._public
            or f"{request.scope.get('scheme', 'http')}://{request.headers.get('host', '').lower()}"
        )

    def is_own_page(self, request: Request) -> bool:
        """Return whether a page of our own sent the request."""
        site = request.headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin"
        return request.headers.get("origin", "").lower() == self.own(request)

    def address(self, request: Request) -> str:
        """Return the address that sent the request, behind the proxies that are trusted."""
        address = request.client.host if request.client else ""
        given = ",".join(request.headers.getlist("x-forwarded-for"))  # a proxy may add a line of its own
        hops = [_without_port(hop) for hop in given.split(",") if hop.strip()]
        while hops and self._is_proxy(address):
            address = hops.pop()
        return address[:64]

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)


def _without_port(hop: str) -> str:
    """Return the address of a hop, to which some proxies add the port."""
    hop = hop.strip()
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _bare(host: str) -> str:
    """Return a host without its port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]


def _check_origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
        raise ConfigError(
            f"expected public_origin as https://HOST[:PORT], got: {text!r}", setting="public_origin"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"
