"""A call that was sent without a task: it gets its reply inside the read callback.

    sent -- reply --> result
         -- error, or late --> a task goes on with it (`RetryingCaller.repeat_after`)

Its first try may be a part of a call that several share (`add_gatherer`). Whatever follows is its own: so
only a call that has to go on alone makes its invocation.

What must always hold: the result ends once. A call that is late goes on in its task, as one whose answer was
lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from eventbus.errors import StoreError, StoreUnavailable
from eventbus.model import clock
from eventbus.store.connection.invocation import Invocation
from eventbus.store.connection.repeat_line import Place, RepeatLine
from eventbus.store.connection.translation import translate


class Repeating(Protocol):
    """Who goes on with a started call: `RetryingCaller`."""

    openings: int
    line: RepeatLine

    @property
    def address(self) -> str:
        """The server's address."""
        ...

    def note_answer(self, invocation: Invocation | None) -> None:
        """Record an answer."""
        ...

    def note_written(self) -> None:
        """Record that the server took a write, as each started call is."""
        ...

    async def repeat(
        self, invocation: Invocation, deadline: float | None, *, place: Place | None = None
    ) -> Any:
        """Send a call until it is answered."""
        ...

    async def repeat_after(
        self,
        error: StoreError,
        invocation: Invocation,
        deadline: float | None,
        *,
        began: float,
        openings: int,
        place: Place | None = None,
    ) -> Any:
        """Go on with a call whose first try failed."""
        ...


class StartedCall:
    """One call of a script, and its result."""

    __slots__ = (
        "_call",
        "_caller",
        "_deadline",
        "_number",
        "_openings",
        "_place",
        "_read",
        "_task",
        "_timer",
        "is_sent",
        "result",
    )

    def __init__(
        self,
        caller: Repeating,
        call: Invocation | Callable[[], Invocation],
        deadline: float,
        read: Callable[[Any], Any],
        *,
        number: int = 0,
    ) -> None:
        """`call` may be a function that makes the invocation. `read` turns the reply into the result.

        `number` is its place among the calls that are repeated in their order, 0 if its order does not count.
        """
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._caller = caller
        self._openings = caller.openings
        self._call = call
        self._deadline = deadline
        self._number = number
        self._place: Place | None = None
        self._read = read
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[Any] | None = None
        self.is_sent: bool = False
        """Whether the first try may have reached the server."""

    @property
    def invocation(self) -> Invocation:
        """The call, as it is sent alone; made when first asked for."""
        if not isinstance(self._call, Invocation):
            self._call = self._call()
        return self._call

    @property
    def must_wait(self) -> bool:
        """Whether calls of its caller are repeated, so that it may not overtake them."""
        return self._number > 0 and not self._caller.line.is_empty

    def watch(self, *, is_sent: bool = True) -> None:
        """Set a timer for the deadline, unless the sending failed: then a task watches it already."""
        self.is_sent = is_sent
        if self._task is None and not self.result.done():
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, self._deadline - clock.monotonic()), self._on_deadline)

    def done(self) -> bool:
        """Return whether this try's answer is no longer wanted: the call ended, or a task repeats it."""
        if self.result.done():
            self._stop_timer()
            return True
        return self._task is not None

    def set_result(self, reply: Any, /) -> None:
        """Take the reply."""
        self._stop_timer()
        # Only a call that was sent alone says by which name the server knows the script.
        self._caller.note_answer(self._call if isinstance(self._call, Invocation) else None)
        self._settle(reply)

    def set_exception(self, error: StoreError, /) -> None:
        """Take the error: the call was refused, or its answer was lost."""
        self._stop_timer()
        self.go_on(error)

    def go_alone(self) -> None:
        """Begin again without the others; nothing of the first try was carried out."""
        self._stop_timer()
        try:
            self.go_on(None)
        except Exception as error:  # noqa: BLE001  (what cannot be packed is this call's own error)
            if not self.result.done():
                self.result.set_exception(error)

    def go_on(self, failed: StoreError | None) -> None:
        """Hand the call to a task. Cancelling the result cancels the task.

        `failed` is the error of the first try, None if nothing was sent yet.
        """
        invocation = self.invocation  # made first, because it may fail
        # Now, and not in the task: a call that begins before the task runs has to see it.
        place = self._place = self._caller.line.enter(self._number) if self._number else None
        if failed is None:
            work = self._caller.repeat(invocation, self._deadline, place=place)
        else:
            work = self._caller.repeat_after(
                failed,
                invocation,
                self._deadline,
                began=clock.monotonic(),
                openings=self._openings,
                place=place,
            )
        self._task = asyncio.get_running_loop().create_task(work, name="eventbus-repeat")
        self._task.add_done_callback(self._on_end)
        self.result.add_done_callback(self._on_given_up)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        if (place := self._place) is not None:
            is_away = task.cancelled() or isinstance(task.exception(), StoreUnavailable)
            leave = partial(self._caller.line.leave, place, is_answered=not is_away)
            # Behind what the end of the result calls: whoever sends a part of the call again keeps its place.
            self.result.add_done_callback(lambda _: asyncio.get_running_loop().call_soon(leave))
        if task.cancelled():
            self.result.cancel()
        elif (error := task.exception()) is None:
            self._settle(task.result())
        elif not self.result.done():
            self.result.set_exception(error)

    def _on_given_up(self, result: asyncio.Future[Any]) -> None:
        if result.cancelled() and self._task is not None:
            self._task.cancel()

    def _on_deadline(self) -> None:
        self._timer = None
        if not self.done():
            late = TimeoutError("no answer in time")
            self.go_on(translate(late, address=self._caller.address, sent=self.is_sent))

    def _settle(self, reply: Any) -> None:
        self._caller.note_written()
        if self.result.done():
            return
        try:
            self.result.set_result(self._read(reply))
        except Exception as error:  # noqa: BLE001  (the caller gets it)
            self.result.set_exception(error)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
