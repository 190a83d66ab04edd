"""The message around a payload."""

from __future__ import annotations

import msgspec
import pytest

from eventbus.model.message import EventMessage, decode_message, encode_bare, encode_message


def test_a_bare_message_is_its_payload_and_little_more() -> None:
    assert encode_bare(b'{"n":1}') == '{"p":{"n":1}}'
    message = decode_message('{"p":{"n":1}}')
    assert (bytes(message.payload), message.meta, message.correlation_id) == (b'{"n":1}', None, "")


def test_absent_things_take_no_room_and_all_comes_back() -> None:
    message = EventMessage(
        payload=msgspec.Raw(b"[1]"),
        meta={"tenant": "a"},
        correlation_id="c",
        causation_id="a",
        traceparent="t",
        tracestate="s",
        key="k",
        retry={"attempts": 2},
        baggage="tenant=acme",
    )
    assert decode_message(encode_message(message)) == message
    assert encode_message(EventMessage(payload=msgspec.Raw(b"1"))) == encode_bare(b"1")
    assert encode_message(EventMessage(payload=msgspec.Raw(b"1"), key="k")) == '{"p":1,"k":"k"}'


def test_a_message_of_a_later_release_is_read() -> None:
    assert decode_message('{"p":1,"zz":{"new":true}}').payload == msgspec.Raw(b"1")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"p":}', '{"p":1,"m":[]}', '{"p":1,"c":5}', "null"])
def test_what_is_no_message_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_message(text)


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(UnicodeError):
        decode_message('{"p":"\udcff"}')
