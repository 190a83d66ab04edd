"""URLs and errors: which URLs are valid, what the errors say, and that they show no password."""

from __future__ import annotations

import inspect
import socket
import ssl
from typing import Any

import pytest
import redis.exceptions as foreign

from eventbus._version import __version__
from eventbus.errors import ConfigError, StoreError, StoreRefused, StoreUnavailable
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.translation import translate

_SECRET = "s3cr3t-pa55"

_IN_SCRIPT = "Error running script (call to f_1): @user_script:63:"  # as Redis 6 says it

_FOREIGN = sorted(
    (kind for _, kind in inspect.getmembers(foreign, inspect.isclass) if issubclass(kind, Exception)),
    key=lambda kind: kind.__name__,
)


def _made(kind: type[Exception], text: str) -> Exception:
    if issubclass(kind, (foreign.AskError, foreign.MovedError)):
        return kind("3999 127.0.0.1:6381")
    return kind(text)


# URLs


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", "localhost:6379"),
        ("redis://db.example:6390/3", "db.example:6390"),
        ("valkey://db.example", "db.example:6379"),
        ("VALKEY://db.example", "db.example:6379"),
        ("rediss://db.example", "db.example:6379"),
        ("valkeys://db.example:1", "db.example:1"),
        ("redis://[::1]:7000", "::1:7000"),
        (f"redis://alice:{_SECRET}@h:1/0", "h:1"),
        (f"redis://:{_SECRET}@h", "h:6379"),
        ("unix:///run/redis.sock", "unix:/run/redis.sock"),
        (f"unix://alice:{_SECRET}@/run/redis.sock?db=2", "unix:/run/redis.sock"),
        ("redis://h?socket_keepalive=true&health_check_interval=10", "h:6379"),
    ],
)
def test_a_url_names_an_address_without_its_password(url: str, address: str) -> None:
    assert Connector(url).address == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h:26379/mymaster", "Sentinel is not supported yet"),
        ("sentinel://h", "Sentinel is not supported yet"),
        ("redis+cluster://h", "Cluster is not supported yet"),
        ("http://h", "expected a URL of redis://"),
        ("", "expected a URL of redis://"),
        ("h:6379", "expected a URL of redis://"),
        ("/run/redis.sock", "expected a URL of redis://"),
        ("redis://h:port", "port from 0 to 65535"),
        ("redis://h:70000", "port from 0 to 65535"),
        ("redis://h:-1", "port from 0 to 65535"),
        ("redis://[::1", "port from 0 to 65535"),
        ("redis://h?db=x", "Invalid value for 'db'"),
        ("redis://h/abc", "expected its database to be a number, as in redis://host:6379/0, got: 'abc'"),
        ("rediss://h:1/0/1", "expected its database to be a number, as in redis://host:6379/0, got: '0/1'"),
        ("valkey://h/-1", "expected its database to be a number, as in redis://host:6379/0, got: '-1'"),
        ("redis://h/\u0661", "expected its database to be a number"),
        ("redis://h?db=-1", "expected its database to be a number, as in redis://host:6379/0, got: -1"),
        ("redis://h?socket_timeout=soon", "Invalid value for 'socket_timeout'"),
        ("redis://h?colour=blue", "not known, 'colour'"),
        ("unix://", "unix:///path/to/socket"),
        ("embedded:", "embedded:PATH"),
    ],
)
def test_a_url_that_cannot_be_used_is_a_config_error_that_says_why(url: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Connector(url)
    assert said in str(caught.value)
    assert caught.value.setting == "url"


def test_a_piece_of_a_password_is_not_taken_for_a_database_and_told() -> None:
    with pytest.raises(ConfigError, match="expected its database to be a number") as caught:
        Connector(f"redis://:12/{_SECRET}@h:1/0")
    assert _SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://alice:{_SECRET}@h:port",
        f"redis://:{_SECRET}/x@h",
        f"redis://:{_SECRET}?x@h",
        f"redis://:{_SECRET}#x@h",
        f"redis://{_SECRET}@h:70000",
        f"redis://alice:{_SECRET}\u2100@h",  # no host may hold this sign
        f"http://alice:{_SECRET}@h",
        f"redis+sentinel://:{_SECRET}@h",
        f"redis://h?password={_SECRET}&colour=blue",
        f"redis://h?ssl_password={_SECRET}&colour=blue",
        f"unix://:{_SECRET}@",
        f"://{_SECRET}@h",
    ],
)
def test_no_part_of_a_password_is_in_an_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Connector(url)
    said = f"{caught.value!r} {caught.value.__cause__!r}"
    assert not any(piece in said for piece in ("s3cr3t", "pa55"))


@pytest.mark.parametrize(
    "query", ["socket_timeout=0.01", "protocol=3", "decode_responses=", "encoding=latin-1", "client_name=x"]
)
async def test_a_url_cannot_change_how_answers_are_read(server_url: str, query: str) -> None:
    try:
        connector = Connector(f"{server_url}?{query}")
    except ConfigError:
        return  # unknown to this redis-py: as good
    connection = await connector.open(name="mine")
    await connection.send_command("BLPOP", "never", "0.03")  # longer than that socket_timeout
    assert await connection.read_response() is None
    await connection.send_command("CLIENT", "GETNAME")
    assert await connection.read_response() == "mine"
    await connection.send_command("ECHO", b"\xff")
    assert await connection.read_response() == "\udcff"
    await connection.disconnect()


async def test_the_list_of_clients_names_our_version(server_url: str) -> None:
    connection = await Connector(server_url).open(name="mine")
    await connection.send_command("CLIENT", "INFO")
    assert f" lib-name=redis-py(eventbus_v{__version__}) " in str(await connection.read_response())
    await connection.disconnect()


async def test_a_blocking_connection_reads_as_the_others_do_but_within_its_timeout(server_url: str) -> None:
    connection = Connector(server_url).open_blocking(name="mine", timeout=2)
    connection.send_command("ECHO", b"\xff")
    assert connection.read_response() == "\udcff"
    connection.send_command("BLPOP", "never", 240)
    with pytest.raises(foreign.TimeoutError):
        connection.read_response()
    connection.disconnect()


def test_a_blocking_connection_to_nowhere_is_unavailable_and_not_sent(tmp_path: Any) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        Connector(f"unix://{tmp_path}/none").open_blocking(name="mine", timeout=1)
    assert not caught.value.sent


# errors


@pytest.mark.parametrize("kind", _FOREIGN, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sent", [False, True])
def test_every_error_of_the_client_library_becomes_one_of_ours(kind: type[Exception], *, sent: bool) -> None:
    ours = translate(_made(kind, "something happened"), address="h:1", sent=sent)
    assert isinstance(ours, StoreError)
    assert "h:1" in str(ours)
    if isinstance(ours, StoreUnavailable):
        assert (ours.sent, ours.address) == (sent, "h:1")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (foreign.ReadOnlyError, "READONLY"),
        (foreign.NoPermissionError, "NOPERM"),
        (foreign.OutOfMemoryError, "OOM"),
        (foreign.NoScriptError, "NOSCRIPT"),
        (foreign.MasterDownError, "MASTERDOWN"),
        (foreign.ClusterDownError, "CLUSTERDOWN"),
        (foreign.TryAgainError, "TRYAGAIN"),
        (foreign.BusyLoadingError, "LOADING"),
        (foreign.MovedError, "MOVED"),
        (foreign.AskError, "ASK"),
        (foreign.ClusterCrossSlotError, "CROSSSLOT"),
        (foreign.ExecAbortError, "EXECABORT"),
        (foreign.AuthenticationError, "WRONGPASS"),
        (foreign.ResponseError, "ERR"),
    ],
)
def test_a_refusal_has_the_code_of_the_servers_answer(kind: type[Exception], code: str) -> None:
    ours = translate(_made(kind, "something happened"), address="h:1", sent=True)
    assert isinstance(ours, StoreRefused)
    assert ours.code == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("WRONGTYPE Operation against a key", "WRONGTYPE"),
        ("unknown command", "ERR"),
        ("", "ERR"),
        (f"{_IN_SCRIPT} @user_script: 63: -OOM command not allowed when used memory > 'maxmemory'.", "OOM"),
        (
            f"{_IN_SCRIPT} @user_script: 63: -READONLY You can't write against a read only replica.",
            "READONLY",
        ),
        (f"{_IN_SCRIPT} WRONGTYPE Operation against a key", "WRONGTYPE"),
        (f"{_IN_SCRIPT} attempt to index a nil value", "ERR"),
        ("Function not found", "NOFUNCTION"),
        ("NOREPLICAS Not enough good replicas. script: on @user_function:63.", "NOREPLICAS"),
        (
            (
                "The user executing the script can't run this command or subcommand script: x, "
                "on @user_function:3."
            ),
            "NOPERM",
        ),
        ("ACL failure in script: User u has no permissions script: on @user_function:3.", "NOPERM"),
        ("user_function:3: attempt to index a nil value script: x, on @user_function:3.", "ERR"),
    ],
)
def test_the_code_is_found_where_each_server_version_puts_it(text: str, code: str) -> None:
    ours = translate(foreign.ResponseError(text), address="h:1", sent=True)
    assert isinstance(ours, StoreRefused)
    assert ours.code == code


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionResetError("reset"),
        socket.gaierror(-2, "Name or service not known"),
        TimeoutError(),
        EOFError(),
        foreign.ConnectionError("Connection closed by server."),
        foreign.TimeoutError("Timeout reading"),
        foreign.MaxConnectionsError("max number of clients reached"),
    ],
)
def test_what_the_network_does_is_unavailable(error: Exception) -> None:
    ours = translate(error, address="h:1", sent=False)
    assert isinstance(ours, StoreUnavailable)
    assert str(ours).startswith(f"no server at h:1 (while connecting): {str(error) or type(error).__name__}")


def test_a_certificate_that_is_not_trusted_is_a_refusal_however_it_is_wrapped() -> None:
    distrust = ssl.SSLCertVerificationError("certificate verify failed")
    wrapped = foreign.ConnectionError("Error 1 connecting")
    wrapped.__cause__ = distrust
    for error in (distrust, wrapped):
        ours = translate(error, address="h:1", sent=False)
        assert isinstance(ours, StoreRefused)
        assert ours.code == "CERTIFICATE"
        assert "ssl_ca_certs" in str(ours)


@pytest.mark.parametrize("sent", [False, True])
def test_a_server_that_hangs_up_at_once_may_speak_tls(sent: bool) -> None:
    ours = translate(ConnectionResetError(104, "Connection reset by peer"), address="h:1", sent=sent)
    assert ("rediss://" in str(ours)) is not sent


def test_an_error_of_ours_stays_what_it_is() -> None:
    ours = StoreRefused("no", code="X")
    assert translate(ours, address="h:1", sent=True) is ours


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (foreign.AuthenticationError("Authentication required."), "put the password into the URL"),
        (foreign.AuthenticationError("invalid username-password pair"), "check the URL"),
        (foreign.NoPermissionError("User alice has no permissions"), "lacks a right"),
        (foreign.OutOfMemoryError("command not allowed"), "raise it"),
        (foreign.ReadOnlyError("You can't write"), "URL of the primary"),
        (foreign.MovedError("3999 127.0.0.1:6381"), "URL of one server"),
    ],
)
def test_a_refusal_says_what_to_do(error: Exception, remedy: str) -> None:
    assert remedy in str(translate(error, address="h:1", sent=True))
