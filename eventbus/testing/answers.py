"""Answers: signals and triggers that a bus sends to a flow when it has come to a point of its story.

    waits -- the flow has passed the point often enough --> due -- nothing else runs --> sent

What must always hold: an answer is sent once, from outside of all workers, and its failure reaches the test.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

T_contra = TypeVar("T_contra", contravariant=True)


class Answerable(Protocol[T_contra]):
    """A signal, or a transition that waits, with its type of payload."""

    name: str

    def encode(self, payload: T_contra, /) -> str:
        """Return a payload as JSON text. Raises PayloadError."""
        ...


class FlowToSignal(Protocol):
    """A handle of a flow that takes signals."""

    @property
    def id(self) -> str:
        """The id of the flow."""
        ...

    def signal(self, signal: Any, payload: Any = ...) -> Coroutine[Any, Any, None]:
        """Send a signal."""
        ...


class FlowToTrigger(Protocol):
    """A handle of the flow of a state machine."""

    @property
    def id(self) -> str:
        """The id of the flow."""
        ...

    def trigger(self, transition: Any, payload: Any = ...) -> Coroutine[Any, Any, None]:
        """Fire a transition."""
        ...


class Answer:
    """One answer, which is sent when its point has come."""

    def __init__(
        self,
        what: str,
        flow_id: str,
        is_point: Callable[[str], bool],
        times: int,
        send: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`is_point(name)` tells whether what the flow has passed counts; `send` is called once."""
        self.is_sent: bool = False
        """Whether it was sent, and the flow took it."""
        self.what = what
        self.flow_id = flow_id
        self.error: Exception | None = None
        self._is_point = is_point
        self._left = times
        self._send = send

    def note(self, flow_id: str, name: str) -> bool:
        """Note what a flow has passed; return whether the answer is due by that."""
        if flow_id != self.flow_id or self._left <= 0 or not self._is_point(name):
            return False
        self._left -= 1
        return self._left == 0

    async def send(self) -> None:
        """Send it; keep its error."""
        try:
            await self._send()
            self.is_sent = True
        except Exception as error:  # noqa: BLE001  (the test gets it)
            self.error = error

    def __repr__(self) -> str:
        left = f"{self._left} to come before it" if self._left > 0 else "sent" if self.is_sent else "due"
        return f"<{self.what}: {left}>"
