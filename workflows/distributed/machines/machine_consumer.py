"""The consumer of the flows of a state machine, in every version that this process knows.

Not here: running a flow (`distributed.machines.machine_flow`). What differs from other flows is only that.
"""

from __future__ import annotations

from eventbus.lowlevel import Job, Settle, park
from workflows.distributed.functions.durable_consumer import DurableConsumer
from workflows.distributed.machines.machine_flow import MachineFlow
from workflows.distributed.step_consumer import read_message

__all__ = ["MachineConsumer"]


class MachineConsumer(DurableConsumer):
    """Runs the flows of one state machine."""

    async def advance(self, job: Job) -> Settle | None:
        """Run the flow until it rests or ends, or undo it; park it if this worker does not know its
        version.
        """
        message = read_message(job)
        machine = self.runtime.registry.machine(self.name, message.version or None)
        if machine is None:
            return park(f"not known here: version {message.version} of state machine {self.name}")
        flow = MachineFlow(self.runtime, machine, job, message)
        return await (flow.undo() if job.stop else flow.advance())
