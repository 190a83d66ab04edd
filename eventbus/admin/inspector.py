"""The inspector: reads the jobs in the server, and cancels them.

The command line and dashboards use nothing else. Its reports are true for the moment at which the server
answered; nothing is cached. Each of its namespaces has the calls for one noun, and stands whole in the file
of its name.
"""

from __future__ import annotations

from typing import Final

from eventbus.admin.audit import Audit
from eventbus.admin.events import Events
from eventbus.admin.jobs.jobs import Jobs
from eventbus.admin.namespace import OldName
from eventbus.admin.operations import Operations
from eventbus.admin.queues import Queues
from eventbus.admin.server import Server
from eventbus.admin.trees import Trees
from eventbus.admin.workers import Workers
from eventbus.emit.route import Routes
from eventbus.lifecycle import Lifecycle
from eventbus.model.durations import Duration
from eventbus.settings.settings import Settings


class Inspector:
    """Reads the jobs in the server of a started provider, and changes those that wait.

    Each call raises ProviderStopped while the provider is not started, and StoreError when the server does
    not answer in time. That is `reply_timeout` for the whole call, unless `within` says another time.
    """

    def __init__(
        self, life: Lifecycle, settings: Settings, routes: Routes, call_timeout: Duration | None = None
    ) -> None:
        self._life = life
        self._settings = settings
        self._routes = routes
        self.jobs: Jobs = Jobs(life, settings, routes, call_timeout)
        """Jobs, one at a time."""
        self.trees: Trees = Trees(life, settings, routes, call_timeout)
        """Roots with their members, such as flows."""
        self.queues: Queues = Queues(life, settings, routes, call_timeout)
        """Queues, and what concerns all jobs of one."""
        self.workers: Workers = Workers(life, settings, routes, call_timeout)
        """The workers of the fleet."""
        self.operations: Operations = Operations(life, settings, routes, call_timeout)
        """Bulk operations, which go on when whoever asked for them is gone."""
        self.audit: Audit = Audit(life, settings, routes, call_timeout)
        """Who did what on dashboards."""
        self.server: Server = Server(life, settings, routes, call_timeout)
        """The server itself."""
        self.events: Events = Events(life, settings, routes, call_timeout)
        """The events that this program knows."""

    def within(self, call_timeout: Duration | None) -> Inspector:
        """Return an inspector each of whose calls may take this long: seconds, a timedelta or text; None:
        the setting `reply_timeout`.

            report = await provider.inspector.within("2s").jobs.get(job_id)

        Raises DefinitionError for a time that is not above 0.
        """
        self._settings.call_timeout(call_timeout)
        return Inspector(self._life, self._settings, self._routes, call_timeout)

    # The names that these calls had before, for one release.
    job: Final = OldName(Jobs.get)
    why: Final = OldName(Jobs.why)
    find: Final = OldName(Jobs.find)
    find_by_field: Final = OldName(Jobs.find_by_field)
    cancel: Final = OldName(Jobs.cancel)
    promote: Final = OldName(Jobs.promote)
    delay: Final = OldName(Jobs.delay)
    prioritize: Final = OldName(Jobs.prioritize)
    replace_payload: Final = OldName(Jobs.replace_payload)
    edit: Final = OldName(Jobs.edit)
    retry: Final = OldName(Jobs.retry)
    remove: Final = OldName(Jobs.remove)
    tree: Final = OldName(Trees.get)
    remove_tree: Final = OldName(Trees.remove)
    queue_names: Final = OldName(Queues.names)
    counts: Final = OldName(Queues.count)
    history: Final = OldName(Queues.history)
    controls: Final = OldName(Queues.controls)
    groups: Final = OldName(Queues.groups)
    failures: Final = OldName(Queues.failures)
    retry_all: Final = OldName(Queues.retry_all)
    purge: Final = OldName(Queues.purge)
    preview_operation: Final = OldName(Operations.preview)
    begin_operation: Final = OldName(Operations.begin)
    operation: Final = OldName(Operations.get)
    stop_operation: Final = OldName(Operations.stop)
    run_operations: Final = OldName(Operations.run)
    note_audit: Final = OldName(Audit.note)
    check_server: Final = OldName(Server.check)
    event: Final = OldName(Events.get)
