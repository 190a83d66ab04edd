"""A client of the scripts on a cluster: it sends them itself, because the library speaks to one server only.

It names the keys that each call declares, and does what a caller has to do while a slot moves.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import redis
import redis.exceptions as foreign
from redis.backoff import NoBackoff
from redis.retry import Retry

from eventbus.store.scripting.scripts import load_script, pack

__all__ = ["ClusterCaller", "Halted"]

_HOST = "127.0.0.1"
_PAUSE = 0.003
"""Seconds that a refused call waits before it is sent again, and a worker with nothing to do."""


class Halted(Exception):
    """The test ended before the call was answered."""


class ClusterCaller:
    """Calls scripts on a cluster, one at a time, from one thread, until each is answered.

    `TRYAGAIN` and `ASK` make it wait and send the call again to the same node, `MOVED` to the other one,
    and `NOSCRIPT` at once, with the script's source. With `follows_ask` it sends the call once to the node
    that `ASK` names, behind `ASKING`, as usual clients of a cluster do.
    """

    def __init__(
        self, declared: Sequence[str], *, port: int, halt: threading.Event, follows_ask: bool = False
    ) -> None:
        """`declared` are the keys that each call names, and `port` is that of the first node to ask."""
        self.refusals: Counter[str] = Counter()
        self.answered: Counter[int] = Counter()
        """The port of a node -> how many calls it answered."""
        self.answered_by = 0
        """The port of the node that answered the last call."""
        self._declared = declared
        self._port = port
        self._halt = halt
        self._follows_ask = follows_ask
        self._connections: dict[int, redis.Connection] = {}

    def call(self, name: str, arguments: list[Any]) -> Any:
        """Run a script.

        Raises:
            redis.ResponseError: A refusal that does not belong to a slot that moves.
            Halted: The test has ended.
        """
        script = load_script(name)
        tail = (len(self._declared), *self._declared, pack(arguments))
        command = ("EVALSHA", script.digest, *tail)
        port, is_asking = self._port, False
        while not self._halt.is_set():
            try:
                answer = self._send(port, command, is_asking=is_asking)
            except foreign.NoScriptError:
                self.refusals["NOSCRIPT"] += 1
                command = ("EVAL", script.source, *tail)
                continue
            except foreign.MovedError as error:
                self.refusals["MOVED"] += 1
                self._port = error.port
            except foreign.AskError as error:
                self.refusals["ASK"] += 1
                if self._follows_ask:
                    port, is_asking = error.port, True
                    continue
            except foreign.TryAgainError:
                self.refusals["TRYAGAIN, asking" if is_asking else "TRYAGAIN"] += 1
            else:
                self.answered[port] += 1
                self.answered_by = port
                return answer
            port, is_asking = self._port, False
            self.pause()
        raise Halted

    def pause(self) -> None:
        """Wait a moment. Raises Halted if the test has ended."""
        if self._halt.wait(_PAUSE):
            raise Halted

    def close(self) -> None:
        for connection in self._connections.values():
            connection.disconnect()

    def _send(self, port: int, command: tuple[Any, ...], *, is_asking: bool) -> Any:
        connection = self._connections.get(port)
        if connection is None:
            connection = self._connections[port] = redis.Connection(
                host=_HOST,
                port=port,
                protocol=2,
                socket_timeout=60,
                decode_responses=True,
                retry=Retry(NoBackoff(), 0),
            )
        if is_asking:
            connection.send_command("ASKING")
            connection.read_response()
        connection.send_command(*command)
        return connection.read_response()
