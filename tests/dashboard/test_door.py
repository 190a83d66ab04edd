"""The public names of `eventbus.dashboard`."""

from __future__ import annotations

import inspect

import eventbus.dashboard
from eventbus.dashboard import Actor, Dashboard, FlowSource, Target


def test_the_door_of_the_dashboard_offers_just_this() -> None:
    assert eventbus.dashboard.__all__ == ["Actor", "Dashboard", "FlowSource", "Target"]
    assert [name for name in vars(Dashboard) if not name.startswith("_")] == ["make_code"]


def test_each_name_says_what_it_promises() -> None:
    for offered in (Actor, Dashboard, Dashboard.__init__, Dashboard.make_code, FlowSource, Target):
        assert inspect.getdoc(offered)
