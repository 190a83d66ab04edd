"""The test kit: a program in virtual time, on a private server.

    async with TestBus(provider) as bus:
        await provider.emit(remind, "ada", delay="3 days").enqueued()
        await bus.advance("3 days")

See docs/testing.md. Programs never import it, and neither does `eventbus`.
"""

from eventbus.testing.bus import Run, TestBus, TimeStandsStill

__all__ = ["Run", "TestBus", "TimeStandsStill"]
