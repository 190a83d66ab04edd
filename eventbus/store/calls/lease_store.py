"""The renewal of leases, blocking, for the lease thread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

from eventbus.errors import StoreCorrupt, StoreRefused
from eventbus.store.connection.connector import Connector
from eventbus.store.connection.functions import Scripting
from eventbus.store.connection.invocation import Form, Invocation
from eventbus.store.connection.repeat_policy import next_form
from eventbus.store.connection.translation import translate
from eventbus.store.keys import Keys
from eventbus.store.scripting.script_rows import LeaseRow
from eventbus.store.scripting.scripts import pack


class Renewal(NamedTuple):
    """What a renewal tells of jobs, by their ids."""

    lost: list[str]
    """Named ones that the worker does not hold by that token any more."""
    cancelled: list[str]
    """Named ones whose cancellation was asked for."""
    returned: list[str]
    """Ones that the worker held without knowing it: they were given back to their queues."""


class LeaseStore:
    """The renewal of leases, blocking, for the lease thread: one connection, opened again after a loss.

    It loads no library of functions, which is the business of the store's other connection. Where it finds
    none, or is kept from it, it goes on without functions until it opens a connection again.
    """

    def __init__(
        self, connector: Connector, keys: Keys, *, name: str, timeout: float, scripting: Scripting = "auto"
    ) -> None:
        self._connector = connector
        self._keys = keys
        self._name = name
        self._timeout = timeout
        self._connection: Any = None
        self._first_form = Form.DIGEST if scripting == "eval" else Form.FUNCTION
        self._form = self._first_form

    @property
    def blocks(self) -> bool:
        """Whether `renew` waits for a server, so that it needs a thread."""
        return self._connector.blocks

    def renew(
        self, leases: Sequence[LeaseRow], *, worker: str, calls: tuple[int, int], lease_ms: int, lag_ms: int
    ) -> Renewal:
        """Renew the leases of all that the worker holds; `leases` names all that it knows of.

        `calls` are the numbers of the last turns, one for each lane, whose claims are among `leases`. What
        those turns claimed and `leases` does not name is given back, as a stall; what was handed over to the
        worker, if that was longer ago than a lease. Tries once; the caller may repeat the call. `lag_ms` is
        how far behind the worker's event loop is.
        """
        packed = pack(["", worker, lag_ms, lease_ms, *calls, len(leases), *chain.from_iterable(leases)])
        answer = self._run(Invocation("renew", self._keys.declared, packed, form=self._form))
        if not isinstance(answer, list) or len(lists := cast("list[list[str]]", answer)) != 3:
            self.close()
            raise StoreCorrupt(f"the server at {self._connector.address} answered a renewal with {answer!r}")
        return Renewal(*lists)

    def close(self) -> None:
        """Close the connection; the next call opens one. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
        self._form = self._first_form

    def _run(self, invocation: Invocation) -> Any:
        while True:
            try:
                return self._call(*invocation.command)
            except StoreRefused as error:
                other = next_form(error, invocation.form)
                if other is None:
                    raise
                if invocation.form is Form.FUNCTION:
                    self._form = other.form
                invocation.put(other.form)

    def _call(self, *command: Any) -> Any:
        if self._connection is None:
            self._connection = self._connector.open_blocking(name=self._name, timeout=self._timeout)
        try:
            self._connection.send_command(*command)
            return self._connection.read_response()
        except Exception as error:
            ours = translate(error, address=self._connector.address, sent=True)
            if not isinstance(ours, StoreRefused):
                self.close()  # the next answer on this connection may belong to this call
            raise ours from error
