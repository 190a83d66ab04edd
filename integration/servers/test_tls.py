"""`rediss://` with a server that only accepts TLS and client certificates of its authority."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trustme
from harness.backends import KINDS, Backend, free_port
from harness.conditions import last
from harness.journal import Journal
from harness.load import Load
from harness.programs import Program

from eventbus import ConfigError, EmitError, EventProvider, StoreRefused

Run = Callable[..., Program]

PASSWORD = "fjord-17"


class Place:
    """The address of a TLS server, and the files that its clients need."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self.authority = folder / "authority.pem"
        self.certificate = folder / "client.pem"

    def url(self, *, host: str = "127.0.0.1", **options: Any) -> str:
        """Its URL; further options of TLS replace the right ones, None leaves one out."""
        paths = {
            "ssl_ca_certs": self.authority,
            "ssl_certfile": self.certificate,
            "ssl_keyfile": self.certificate,
        }
        given = {name: value for name, value in {**paths, **options}.items() if value is not None}
        return f"rediss://:{PASSWORD}@{host}:{self.port}/0?{urlencode(given)}"


def has_tls(kind: str) -> bool:
    """Whether this server was built with TLS: only then does the program call OpenSSL."""
    return b"SSL_CTX_new" in KINDS[kind].read_bytes()


@pytest.fixture
def place(kind: str, make_server: Callable[..., Backend], tmp_path: Path) -> Place:
    """A server that asks its clients for a certificate; its unix socket stays for the test itself."""
    if not has_tls(kind):
        pytest.skip(f"{KINDS[kind]} was built without TLS")
    authority = trustme.CA()
    place = Place(tmp_path, free_port())
    authority.cert_pem.write_to_path(str(place.authority))
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(str(place.certificate))
    served = authority.issue_cert("127.0.0.1")
    served.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    served.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    make_server(
        *("--tls-port", str(place.port), "--tls-auth-clients", "yes"),
        *("--tls-cert-file", str(tmp_path / "server.pem"), "--tls-key-file", str(tmp_path / "server.key")),
        *("--tls-ca-cert-file", str(place.authority)),
        password=PASSWORD,
    )
    return place


@pytest.mark.servers("one")
async def test_all_roles_work_over_tls(
    place: Place, run: Run, journal: Journal, gates: Callable[[str], None]
) -> None:
    url = place.url()
    worker = run("worker", "apps.event_app:provider", url=url, lease="1s")
    await asyncio.to_thread(worker.wait_logged, "worker ready")
    async with EventProvider(url) as provider:
        held = provider.emit("hold", {"gate": "open"})
        load = Load(provider)
        await load.wait_answered(500, story=worker.story)
        await load.end()
        assert load.errors() == []
        large = "x" * 500_000
        assert (await provider.emit("work", {"n": large}))["n"] == large
        await last(2)  # leases: the thread's own connection has renewed this one
        gates("open")
        assert (await held)["pid"] == worker.pid
    assert set(journal.runs().values()) == {1}
    emit = run("emit", "work", '{"n": 7}', "--await", url=url)
    assert await asyncio.to_thread(emit.wait_ended) == 0, emit.story()
    assert emit.lines()[0]["n"] == 7
    worker.send(signal.SIGTERM)
    assert await asyncio.to_thread(worker.wait_ended) == 0
    assert worker.complaints() == []
    assert worker.logged("leases not renewed, trying again") == []
    assert PASSWORD not in worker.err


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an authority that is not known here": ({"ssl_ca_certs": None}, "ssl_ca_certs=/path"),
    "another name than in the certificate": ({"host": "localhost"}, "localhost"),
}


@pytest.mark.servers("one")
@pytest.mark.parametrize("what", REFUSED)
async def test_a_certificate_that_is_not_trusted_is_refused_at_once(place: Place, what: str) -> None:
    options, says = REFUSED[what]
    with pytest.raises(StoreRefused, match="the server's certificate is not trusted") as refused:
        async with EventProvider(place.url(**options)):
            pass
    assert refused.value.code == "CERTIFICATE"
    assert says in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.servers("one")
@pytest.mark.parametrize("what", ["no certificate of the client", "no TLS"])
async def test_a_connection_that_the_server_cuts_off_says_what_may_be_missing(
    place: Place, what: str
) -> None:
    url = place.url(ssl_certfile=None, ssl_keyfile=None)
    if what == "no TLS":
        url = url.replace("rediss", "redis").partition("?")[0]
    async with EventProvider(url) as provider:
        with pytest.raises(EmitError, match=r"rediss://, or a client's certificate \(ssl_certfile") as failed:
            await provider.emit("work", reply=False, reply_timeout="5s").enqueued()
    assert failed.value.enqueued is False


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_file_that_is_not_there_is_named_before_anything_is_tried(option: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the file of the URL's option {option}: '/nowhere'"):
        EventProvider(f"rediss://127.0.0.1?{option}=/nowhere")
