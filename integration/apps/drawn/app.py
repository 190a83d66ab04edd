"""The app of random flows under test: `eventbus worker apps.drawn.app:provider`, run in `integration/`.

EVENTBUS_TEST_SHAPES says which ones: `<seed>-<how many graphs>-<how many durable functions>`.
"""

from __future__ import annotations

import os

from apps.drawn.functions import count_attempt, make_functions
from apps.drawn.graphs import make_parts, make_shapes

from eventbus import EventProvider
from workflows import WorkflowProvider

__all__ = ["flows", "provider"]

provider = EventProvider()
flows = WorkflowProvider(provider)
flows.use(count_attempt)
_seed, _graphs, _functions = map(int, os.environ["EVENTBUS_TEST_SHAPES"].split("-"))
_parts = make_parts(_seed)
for _shape in (*_parts, *make_shapes(_seed, _graphs, _parts)):
    flows.register(_shape)
for _function in make_functions(_seed, _functions, _parts):
    flows.register(_function.durable)
