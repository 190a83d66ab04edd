"""The app of the chaos runs: toil alone, and toil under controls."""

from __future__ import annotations

import os
from pathlib import Path

from harness.journal import Journal
from harness.toil import serve_toil

from eventbus import EventProvider

__all__ = ["provider"]

provider = EventProvider()
serve_toil(provider, Journal(Path(os.environ["EVENTBUS_TEST_FOLDER"]) / "journal"))
