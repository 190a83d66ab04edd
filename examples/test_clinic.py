"""Tests of the clinic, to copy from: each runs the program itself on a private server, in virtual time.

Run them with `pytest`; they need the extras `embedded` and nothing that runs.
"""

from datetime import UTC, datetime, timedelta

import pytest
from clinic import (
    Appointment,
    Request,
    approved,
    bed_wanted,
    booked,
    due,
    flows,
    operate,
    provider,
    remind_doctor,
    remind_patient,
    surgery,
)

from eventbus.testing import TestBus

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_reminder_goes_out_three_days_before() -> None:
    async with TestBus(provider) as bus:
        appointment = Appointment("ada", bus.now + timedelta(days=10))
        await provider.emit(booked, appointment)
        assert bus.emitted(due).records[0].delay == 7 * 86_400  # it is planned

        await bus.advance("6 days")
        assert "reminder.due" not in [run.name for run in bus.ran]  # it waits

        await bus.advance("1 day")
        assert bus.ran[-1].name == "reminder.due"  # it ran
        assert bus.ran[-1].at == appointment.at - timedelta(days=3)


async def test_a_reminder_is_tried_again() -> None:
    async with TestBus(provider) as bus:
        bus.fail(remind_patient, ConnectionError("no network"), times=2)
        await provider.emit(due, Appointment("ada", bus.now), reply_timeout="1h")
        assert [run.attempt for run in bus.ran] == [1, 2, 3]


async def test_a_doctor_is_reminded_each_day_until_the_answer() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(surgery, "ada")
        bus.signal_when(flow, approved, True, after=remind_doctor, times=3)  # the second reminder
        assert await flow.result() == "ada had surgery"
        assert (bus.now - bus.ran[0].at).days == 2


async def test_a_refusal_is_no_surgery() -> None:
    async with TestBus(provider) as bus:
        operating = bus.replace(operate, returns="never")
        flow = await flows.execute(surgery, "ada")
        await flow.signal(approved, False)
        assert await flow.result() == "no surgery"
        assert operating.calls == []


async def test_a_surgery_survives_the_worker_that_planned_it() -> None:
    async with TestBus(provider) as bus:
        flow = await flows.execute(surgery, "ada")
        await bus.settle()
        bus.kill_worker()
        await bus.start_worker()
        await flow.signal(approved, True)
        assert await flow.result() == "ada had surgery"
        assert [run.name for run in bus.ran] == ["surgery.remind_doctor", "surgery.operate"]


async def test_each_hospital_has_ten_calls_a_minute() -> None:
    async with TestBus(provider) as bus:
        requests = [Request(hospital, f"p-{n}") for hospital in ("north", "south") for n in range(15)]
        for emission in provider.emit_many(bed_wanted, requests, reply_timeout="5m"):
            await emission
        first_minute = [run for run in bus.ran if run.at < bus.ran[0].at + timedelta(minutes=1)]
        assert len(first_minute) == 20


async def test_the_list_comes_at_eight_also_when_summer_time_begins() -> None:
    saturday = datetime(2030, 3, 30, tzinfo=UTC)
    async with TestBus(provider, schedules=True, start=saturday) as bus:
        await bus.advance("2 days")
        assert [run.at.hour for run in bus.ran] == [7, 6]  # in UTC


async def test_a_booking_during_an_outage_is_not_lost() -> None:
    async with TestBus(provider) as bus:
        booking = provider.emit(booked, Appointment("ada", bus.now + timedelta(days=10)))
        await bus.server_away("5s")
        await booking
        assert len(bus.emitted(due)) == 1


async def test_a_reminder_whose_worker_dies_is_sent_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async with TestBus(provider) as bus:

        async def die(*_: str) -> None:
            monkeypatch.undo()  # the next one lives
            bus.kill_worker()

        monkeypatch.setattr("clinic.send", die)
        reminder = provider.emit(due, Appointment("ada", bus.now), reply_timeout="1h")
        await bus.settle()
        await bus.start_worker()
        await reminder
        assert [run.name for run in bus.ran] == ["reminder.due", "reminder.due"]
