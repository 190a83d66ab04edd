"""What a browser traced."""

from __future__ import annotations

import json


def task_times(trace: bytes) -> list[float]:
    """Return the CPU time, ms, of each task of the pages' threads."""
    events = json.loads(trace)["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["tdur"] / 1000
        for event in events
        if event["name"] == "RunTask" and (event["pid"], event["tid"]) in threads and "tdur" in event
    ]
