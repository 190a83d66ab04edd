"""A clinic: reminders before appointments, approvals of surgeries, and calls to hospitals.

`test_clinic.py` tests it in virtual time: three days take some milliseconds.
"""

from datetime import datetime, timedelta

import msgspec

from eventbus import Event, EventContext, EventProvider, Limit, Retry
from workflows import FlowContext, Signal, WorkflowProvider, durable, task


class Appointment(msgspec.Struct):
    patient: str
    at: datetime


class Request(msgspec.Struct):
    hospital: str
    patient: str


def hospital_of(request: Request) -> str:
    return request.hospital


provider = EventProvider(name="clinic")
flows = WorkflowProvider(provider)
booked = Event("appointment.booked", payload=Appointment)
due = Event("reminder.due", payload=Appointment)
bed_wanted = Event("bed.wanted", payload=Request, result=str, limit=Limit(by=hospital_of, each_rate="10/1m"))
list_due = Event("list.due")
approved = Signal("approved", bool)


async def send(to: str, text: str) -> None:
    """Stand for the service that sends messages."""


@provider.on(booked)
async def plan_reminder(appointment: Appointment, ctx: EventContext) -> None:
    ctx.emit(due, appointment, at=appointment.at - timedelta(days=3))


@provider.on(due, retry=Retry(5, delay="1m"))
async def remind_patient(appointment: Appointment) -> None:
    await send(appointment.patient, f"See you on {appointment.at:%d %B}.")


@provider.on(bed_wanted)
async def ask_hospital(request: Request) -> str:
    return f"a bed for {request.patient}"


@provider.on(list_due)
async def print_list(_: None) -> None: ...


provider.schedules.cron("0 8 * * *", list_due, id="list", tz="Europe/Berlin")


@task
async def remind_doctor(patient: str) -> None:
    await send("doctor", f"May we operate on {patient}?")


@task
async def operate(patient: str) -> str:
    return f"{patient} had surgery"


@durable("surgery")
async def surgery(ctx: FlowContext[str]) -> str:
    await ctx.step(remind_doctor, ctx.input)
    while True:
        number, is_approved = await ctx.race(ctx.wait_for(approved), ctx.sleep("1 day"))
        if number == 0:
            break
        await ctx.step(remind_doctor, ctx.input)
    return await ctx.step(operate, ctx.input) if is_approved else "no surgery"


flows.register(surgery)
