"""Settings: where they come from, what they accept, and that they keep the password to themselves."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.errors import ConfigError, DefinitionError
from eventbus.model.keep import Keep
from eventbus.model.retry import Retry
from eventbus.model.url_redaction import redact
from eventbus.model.windows import Windows
from eventbus.settings.settings import DEFAULT_URL, Settings


def _resolve(environ: dict[str, str] | None = None, /, **explicit: object) -> Settings:
    return Settings.resolve(environ or {}, **explicit)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = _resolve()
    assert settings == Settings(name=settings.name)
    assert settings.url == DEFAULT_URL == "embedded:./.eventbus"
    assert settings.name.endswith(f"-{os.getpid()}")
    assert (settings.reply_timeout, settings.lease, settings.grace, settings.hang_after) == (30, 10, 10, 300)
    assert (settings.concurrency, settings.max_concurrency, settings.max_stalls) == (10, 100, 3)
    assert settings.keep_completed == Keep(count=10_000, age=timedelta(hours=1))
    assert settings.keep_failed == Keep(count=10_000, age=timedelta(days=7))
    assert (settings.key_ttl, settings.max_waiting) == (86_400, None)
    assert settings.max_payload == settings.max_result == 1_048_576
    assert (settings.retry, settings.durability, settings.allow_eviction) == (Retry(), "default", False)


def test_explicit_wins_over_environment_and_environment_over_default() -> None:
    environ = {"EVENTBUS_LEASE": "20s", "EVENTBUS_GRACE": "3", "EVENTBUS_URL": "redis://env"}
    settings = _resolve(environ, lease=5, url=None, name=None, prefix=msgspec.UNSET)
    assert (settings.lease, settings.grace, settings.url, settings.prefix) == (5, 3, "redis://env", "eb")
    assert _resolve(environ, url="redis://explicit").url == "redis://explicit"


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENTBUS_CONCURRENCY", "7")
    assert Settings.resolve().concurrency == 7


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("reply_timeout", "30", 30),
        ("reply_timeout", "none", None),
        ("reply_timeout", "0", None),
        ("max_waiting", "none", None),
        ("max_waiting", "5000", 5000),
        ("max_payload", "2 MiB", 2_097_152),
        ("max_result", "1000", 1000),
        ("allow_eviction", "Yes", True),
        ("allow_eviction", "0", False),
        ("retry", "5", Retry(attempts=5)),
        ("retry", '{"attempts": 5, "delay": "2s"}', Retry(attempts=5, delay=2)),
        ("keep_failed", "100", Keep(100)),
        ("keep_failed", "2 days", Keep(age="2 days")),
        ("keep_failed", "100, 2 days", Keep(100, "2 days")),
        ("keep_failed", "none, 2 days", Keep(None, "2 days")),
        ("keep_failed", "100,none", Keep(100)),
        ("history", "24h, 30d", Windows(86_400.0, 2_592_000.0)),
        ("history", "none", None),
        ("durability", "default", "default"),
        ("scripting", "eval", "eval"),
        ("prefix", "", "eb"),
    ],
)
def test_a_variable_holds_what_the_argument_takes(name: str, text: str, expected: object) -> None:
    assert getattr(_resolve({f"EVENTBUS_{name.upper()}": text}), name) == expected


def test_a_variable_of_unknown_name_is_ignored() -> None:
    assert _resolve({"EVENTBUS_WHATEVER": "1"}).prefix == "eb"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("reply_timeout", 0, None),
        ("reply_timeout", None, None),
        ("keep_completed", 5, Keep(5)),
        ("keep_completed", timedelta(hours=2), Keep(age="2h")),
        ("keep_completed", (5, "1 day"), Keep(5, "1 day")),
        ("keep_completed", Keep(count=0), Keep(0)),
        ("retry", 1, Retry(attempts=1)),
        ("max_payload", "1.5 kB", 1500),
        ("max_stalls", 0, 0),
        ("grace", 0, 0),
        ("url", " redis://h ", "redis://h"),
    ],
)
def test_short_forms_are_brought_into_one(option: str, value: object, expected: object) -> None:
    assert getattr(_resolve({}, **{option: value}), option) == expected


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("concurrency", 0, r"expected concurrency to be a positive integer, got: 0"),
        ("concurrency", "20", r"expected concurrency to be a positive integer, got: '20'"),
        ("concurrency", True, r"expected concurrency to be a positive integer, got: True"),
        ("max_concurrency", 1.5, r"expected max_concurrency to be a positive integer, got: 1.5"),
        ("max_waiting", 0, r"expected max_waiting to be a positive integer, got: 0"),
        ("max_stalls", -1, r"expected max_stalls to be an integer of 0 or more, got: -1"),
        ("lease", 0.4, r"expected lease to be at least 0.5 s, got: 0.4 s"),
        ("lease", None, r"expected lease to be seconds, .* got: None"),
        ("lease", "soon", r"expected lease to be seconds, .* got: 'soon'"),
        ("hang_after", 29, r"expected hang_after to be at least 3 leases of 10 s, got: 29 s"),
        ("key_ttl", 0, r"expected key_ttl to be a duration above 0, got: 0"),
        ("prefix", "a b", r"expected prefix to be 1 to 32 letters, .* got: 'a b'"),
        ("prefix", "", r"expected prefix to be 1 to 32 letters, .* got: ''"),
        ("prefix", "a" * 33, r"expected prefix"),
        ("name", "a b", r"expected name to be 1 to 128 letters"),
        ("url", " ", r"expected url to be text such as redis://host:6379, got: str"),
        ("url", 5, r"expected url to be text such as redis://host:6379, got: int"),
        ("max_payload", 0, r"expected max_payload to be a number of bytes"),
        ("max_payload", "1 GiB", r"at most 512 MiB, got: '1 GiB'"),
        ("max_payload", "much", r"got: 'much'"),
        ("max_result", 1.5, r"expected max_result to be a number of bytes"),
        ("keep_failed", -1, r"keep_failed: expected count to be an integer of 0 or more, got: -1"),
        ("keep_failed", "long", r"keep_failed: expected age to be seconds, .* got: 'long'"),
        ("keep_failed", (None, None), r"keep_failed: expected a count, an age or both"),
        ("keep_failed", (1, 2, 3), r"expected keep_failed to be \(count, age\), got: \(1, 2, 3\)"),
        ("keep_failed", None, r"expected keep_failed to be a Keep, a count, .* got: None"),
        ("retry", "often", r"expected retry to be a Retry or a number of attempts, got: 'often'"),
        ("retry", {"attempt": 2}, r"expected retry to be made of attempts, .* got: 'attempt'"),
        ("retry", 0, r"retry: expected attempts to be a positive integer, got: 0"),
        ("durability", "replicated", r"needs a server with a replica, got: embedded:./.eventbus; set url"),
        ("scripting", "fast", r'expected scripting to be "auto", "functions" or "eval", got: \'fast\''),
        ("durability", "high", r'expected durability to be "default" or "replicated", got: \'high\''),
        ("allow_eviction", 1, r"expected allow_eviction to be True or False, got: 1"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(option: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        _resolve({}, **{option: value})
    assert caught.value.setting == option


@pytest.mark.parametrize(
    "name", ["CONCURRENCY", "LEASE", "RETRY", "KEEP_FAILED", "ALLOW_EVICTION", "MAX_PAYLOAD"]
)
@pytest.mark.parametrize("text", ["often", "{", "-"])
def test_a_variable_that_cannot_be_read_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _resolve({f"EVENTBUS_{name}": text})
    assert caught.value.setting == name.lower()
    assert text in str(caught.value)


def test_settings_made_directly_are_checked_too() -> None:
    with pytest.raises(ConfigError, match="expected concurrency"):
        Settings(concurrency=0)


def test_hang_after_grows_with_the_lease_unless_it_is_given() -> None:
    assert _resolve(lease=200).hang_after == 600
    assert _resolve({"EVENTBUS_LEASE": "1 minute"}).hang_after == 300
    with pytest.raises(ConfigError, match="at least 3 leases"):
        _resolve({"EVENTBUS_LEASE": "200"}, hang_after=300)


@pytest.mark.parametrize(
    ("name", "hint"), [("concurency", "did you mean concurrency?"), ("zzzzzz", "known are url, name, prefix")]
)
def test_an_unknown_setting_is_refused_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting: '{name}'") as caught:
        _resolve({}, **{name: 1})
    assert hint in str(caught.value)
    assert caught.value.setting == name


def test_a_keep_must_limit_something() -> None:
    with pytest.raises(DefinitionError, match="expected a count, an age or both"):
        Keep()


def test_settings_do_not_show_the_password() -> None:
    settings = _resolve(url="redis://user:s3cret@host:6379/0")
    assert "s3cret" not in f"{settings} {settings!r}"
    assert "url='redis://user:***@host:6379/0'" in repr(settings)
    assert "reply_timeout=30.0" in repr(settings)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://user:pw@host:6379/0?db=1", "redis://user:***@host:6379/0?db=1"),
        ("rediss://:pw@host", "rediss://:***@host"),
        ("redis://token@host", "redis://***@host"),
        ("redis://u:p@ss/w:rd@host:1", "redis://u:***@host:1"),
        ("redis://u:p?w@host", "redis://***"),
        ("redis://u:p#w@host", "redis://u:***@host"),
        ("redis://host/0?password=pw&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host/0?pass%77ord=pw", "redis://host/0?pass%77ord=***"),
        ("redis://host/0?password=p@w", "redis://***"),
        ("redis://user:pw", "redis://***"),
        ("redis://a:1,b:2/master/0", "redis://a:1,b:2/master/0"),
        ("redis+sentinel://u:pw@h1:1,h2:2/master/0", "redis+sentinel://u:***@h1:1,h2:2/master/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("user:pw@host:6379", "user:***@host:6379"),
        ("unix:///run/a@b.sock", "unix:///run/a@b.sock"),
        ("unix://u:pw@/run/a.sock", "unix://u:***@/run/a.sock"),
        ("unix:///run/a.sock?db=1&password=pw", "unix:///run/a.sock?db=1&password=***"),
        ("embedded:./.eventbus", "embedded:./.eventbus"),
        ("memory:", "memory:"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact(url) == shown


@given(
    st.text(alphabet="pw:/?#@[]&=%, ", min_size=1).map(lambda text: f"S{text}E"), st.sampled_from(["u", ""])
)
def test_no_password_shows_however_it_is_written(password: str, user: str) -> None:
    assert password not in redact(f"redis://{user}:{password}@host:6379/0")


@given(st.text())
def test_redacting_never_fails(text: str) -> None:
    assert isinstance(redact(text), str)
    assert isinstance(redact(f"redis://{text}"), str)


def test_the_default_name_is_made_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "-web 1é")
    assert Settings().name == f"web-1--{os.getpid()}"
    monkeypatch.setattr("socket.gethostname", lambda: "")
    assert Settings().name == f"host-{os.getpid()}"


def test_settings_cannot_be_changed() -> None:
    settings: Any = Settings()
    with pytest.raises(AttributeError):
        settings.lease = 5
