"""The worker of the demo's flows. Only its process imports this, because it makes a provider, which raises
for a wrong setting.
"""

from __future__ import annotations

from eventbus import EventProvider
from workflows import WorkflowProvider
from workflows.cli.demo_flows import checkout

provider: EventProvider = EventProvider()

_flows = WorkflowProvider(provider)
_flows.register(checkout)
