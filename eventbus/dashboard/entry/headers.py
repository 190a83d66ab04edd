"""The headers of every answer, also of errors: what a browser may load, and who may frame or read it.

No page has a script or a style of its own in its text, so the policy needs no `unsafe-…` and no nonce.
"""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors "
)
_ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class HeaderWriter:
    """Sends an answer with our headers."""

    def __init__(self, send: Send, *, frame_ancestors: str, request_id: str) -> None:
        self._send = send
        self._added = {
            **_ALWAYS,
            "content-security-policy": _POLICY + frame_ancestors,
            "x-request-id": request_id,
        }

    async def __call__(self, message: Message) -> None:
        """Send one message of an answer."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in self._added.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await self._send(message)
