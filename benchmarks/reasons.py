"""Why a goal is not met, in words: shown beside it on the page.

The key is the goal's `work`, `figure` and `against`, as the page's table of goals has them. A
reason of a goal that is met is not shown.
"""

from __future__ import annotations

REASONS: dict[tuple[str, str, str], str] = {}
