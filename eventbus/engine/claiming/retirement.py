"""The queues that a running worker serves no more: closed at once, and forgotten when their last job has
ended.

    served -> closed: nothing of it is claimed
    closed -> finished: nothing of it runs or waits to be settled -> forgotten
           -> opened: served again

Not here: what other workers are told of it (`engine.worker`, `presence`).

What must always hold: a consumer is needed while a call asks its queue, and while a job of it runs or is not
settled.
"""

from __future__ import annotations

import asyncio

from eventbus.engine.claiming.queue_rotation import QueueRotation
from eventbus.engine.claiming.settle_queue import SettleQueue
from eventbus.engine.claiming.slots import Slots
from eventbus.engine.executor import Executor

_LOOK = 0.02
"""Seconds between two looks whether a closed queue is finished. Jobs that end tell nobody, because few are
waited for.
"""


class Retirement:
    """Closes the queues of one worker."""

    def __init__(
        self, slots: Slots, rotation: QueueRotation, executor: Executor, settles: SettleQueue
    ) -> None:
        self.closed: set[str] = slots.closed
        self._slots = slots
        self._rotation = rotation
        self._executor = executor
        self._settles = settles

    def close(self, queue: str) -> None:
        """Claim no more jobs of a queue; running ones are still settled."""
        self.closed.add(queue)
        if queue in self._slots.sharing:
            self._slots.sharing[queue].hurry()

    def open(self, queue: str) -> None:
        """Claim jobs of a queue that is served from now on, or again, by the consumer that it has now."""
        self._slots.note_sharing(queue)
        self.closed.discard(queue)

    async def finish(self, queue: str) -> bool:
        """Wait until the jobs of a closed queue that ran here have ended and are settled, and forget the
        queue.

        Return False if it was opened again meanwhile.
        """
        while queue in self.closed and (  # noqa: ASYNC110
            self._rotation.is_asked(queue) or self._executor.counts[queue]
        ):
            await asyncio.sleep(_LOOK)
        left = set(self._settles.unsettled)  # among them those of this queue
        while queue in self.closed and left & self._settles.unsettled:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        if queue not in self.closed:
            return False
        self._rotation.forget(queue)
        self._executor.forget(queue)
        self._slots.sharing.pop(queue, None)
        self.closed.discard(queue)
        return True
