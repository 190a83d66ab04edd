"""The exceptions by which a run ends the code of a durable function. They are no errors.

What must always hold: they are no Exception, so that `except Exception` does not catch them.
"""

from __future__ import annotations

from eventbus.lowlevel import Passing


class FlowSuspended(Passing):
    """This run of the code ends, because the flow sleeps or its worker stops; a later one repeats it and goes
    on.
    """


class FlowStopping(Passing):
    """The flow was cancelled or timed out, so no further call of its context does anything."""


class ContinueAsNew(Passing):
    """The function starts again from its top, with an empty history and the input in `text`."""

    def __init__(self, text: bytes) -> None:
        super().__init__()
        self.text = text
