"""The app of random workflows under test: `eventbus worker apps.shaped:provider`, run in `integration/`.

EVENTBUS_TEST_SHAPES says which workflows: `<seed>-<count>`.
"""

from __future__ import annotations

import os

from apps.shapes import make_shapes

from eventbus import EventProvider
from workflows import WorkflowProvider

__all__ = ["flows", "provider"]

provider = EventProvider()
flows = WorkflowProvider(provider)
_seed, _, _count = os.environ["EVENTBUS_TEST_SHAPES"].partition("-")
for _shape in make_shapes(int(_seed), int(_count)):
    flows.register(_shape)
