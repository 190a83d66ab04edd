"""Why an inline flow stops."""

from __future__ import annotations

import msgspec

from workflows.records.records import Cause


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why a flow stops. `is_cut` tells to cancel active steps instead of letting them finish."""

    cause: Cause
    step: str = ""
    failure: str = ""
    job: str = ""
    reason: str = ""
    is_cut: bool = True
