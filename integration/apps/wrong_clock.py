"""The worker command on a machine whose clock is wrong: `python -m apps.wrong_clock SECONDS worker ...`.

Python code reads a wall clock that is off by SECONDS; the monotonic clock is right.
"""

from __future__ import annotations

import sys
import time

off = float(sys.argv.pop(1))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + off
time.time_ns = lambda: _time_ns() + round(off * 1e9)

if __name__ == "__main__":
    from eventbus.__main__ import main

    sys.exit(main())
