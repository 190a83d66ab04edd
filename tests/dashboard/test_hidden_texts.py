"""What texts quote of hidden values, wherever they are shown: the places that the worker recorded
(`model.redaction.places`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any

import msgspec
import pytest
from pydantic import BaseModel

from eventbus import Event, EventContext, EventProvider, HandlerError, Retry, Sensitive
from eventbus.admin.jobs import job_report
from workflows import (
    END,
    FlowContext,
    FlowError,
    MachineContext,
    Signal,
    StateMachine,
    StepContext,
    Workflow,
    WorkflowProvider,
    durable,
    task,
    transition,
)

Open = Callable[..., Any]
TOKEN = "tok-5e8a-91"
PAN = "pan-6011-77"
PLACES = ("/jobs/{id}", "/api/v1/jobs/{id}", "/failures", "/api/v1/failures", "/tail")


async def _state(provider: EventProvider, job_id: str, state: str) -> None:
    while (await provider.inspector.jobs.get(job_id)).state != state:
        pass


async def _texts(client: Any, *paths: str) -> dict[str, str]:
    return {path: (await client.get(path)).text for path in paths}


async def test_the_errors_of_a_job_stay_hidden_when_its_payload_is_edited(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    """D3: nobody knows the old payload any more, but the worker has recorded where its error quotes it."""

    @provider.on("paid", retry=Retry(attempts=2, delay="1h"))
    async def pay(given: Any, ctx: EventContext) -> None:
        await ctx.progress(f"charging {given['token']}")
        ctx.keep_line(f"asked with {given['token']}")
        raise ValueError(f"token {given['token']} is refused")

    await stack.enter_async_context(provider.worker())
    job = provider.emit("paid", {"token": TOKEN, "n": 1}, reply=False)
    await job.enqueued()
    await _state(provider, job.job_id, "delayed")
    client = open_dashboard(provider)
    view = (await client.get(f"/api/v1/jobs/{job.job_id}")).json()["job"]
    edit = {"payload": {"token": "other-value", "n": 1}, "revision": view["revision"]}
    assert (await client.patch(f"/api/v1/jobs/{job.job_id}", json=edit)).status_code == 200
    for path, text in (await _texts(client, f"/jobs/{job.job_id}", f"/api/v1/jobs/{job.job_id}")).items():
        assert TOKEN not in text, path
        assert "token ••• is refused" in text, path
    report = await provider.inspector.jobs.get(job.job_id, reveal=True)
    assert report.errors == [f"ValueError: token {TOKEN} is refused"]
    assert report.progress == f"charging {TOKEN}"


async def test_the_check_of_an_edit_does_not_quote_what_was_put_back(
    provider: EventProvider, open_dashboard: Open
) -> None:
    """D4: hidden values are put back before the payload is checked, and a check may quote all of it."""

    class Payment(msgspec.Struct):
        pin: Annotated[str, Sensitive()]
        token: str
        amount: int

        def __post_init__(self) -> None:
            if self.amount < 0:
                raise ValueError(f"{self!r} makes no sense")

    pay = Event("pay", payload=Payment)
    provider.on(pay)(_nothing)
    job = provider.emit(pay, Payment("abcdef-31", TOKEN, 5), reply=False)
    await job.enqueued()
    client = open_dashboard(provider)
    view = (await client.get(f"/api/v1/jobs/{job.job_id}")).json()["job"]
    edit = {"payload": {**view["payload"], "amount": -1}, "revision": view["revision"]}
    answer = await client.patch(f"/api/v1/jobs/{job.job_id}", json=edit)
    assert answer.status_code == 422, answer.text
    assert "abcdef-31" not in answer.text
    assert TOKEN not in answer.text
    assert "may quote a hidden value" in answer.json()["detail"]
    own = {"payload": {"pin": "abcdef-32", "token": "t", "amount": -1}, "revision": view["revision"]}
    answer = await client.patch(f"/api/v1/jobs/{job.job_id}", json=own)
    assert "makes no sense" in answer.json()["detail"]  # nothing hidden is in it: the caller has sent it


async def _nothing(_: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("how", ["raised", "cause", "context"])
async def test_an_error_carries_what_it_hides_to_the_job_that_awaited_it(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack, how: str
) -> None:
    """D5: the payload of the outer job has nothing that is hidden; that of the inner one has."""

    @provider.on("inner", retry=Retry(attempts=1))
    async def inner(given: Any) -> None:
        raise ValueError(f"token {given['token']} is refused")

    @provider.on("outer", retry=Retry(attempts=1))
    async def outer(_: Any) -> None:
        try:
            await provider.emit("inner", {"token": TOKEN})
        except HandlerError as error:
            if how == "raised":
                raise
            if how == "cause":
                raise RuntimeError(f"no payment: {error.remote_message}") from error
            raise RuntimeError(f"no payment: {error.remote_message}")  # noqa: B904  (it is what is tested)

    await stack.enter_async_context(provider.worker())
    job = provider.emit("outer", {"order": 7})
    with pytest.raises(HandlerError, match=TOKEN):  # the emitter gets the error as it was raised
        await job
    client = open_dashboard(provider)
    paths = [path.format(id=job.job_id) for path in PLACES]
    for path, text in (await _texts(client, *paths, "/queues/event.outer?state=failed")).items():
        assert TOKEN not in text, path
        assert "•••" in text or path == "/tail", path
    assert TOKEN not in str(await provider.inspector.jobs.get(job.job_id))
    assert TOKEN in str(await provider.inspector.jobs.get(job.job_id, reveal=True))


_graph: Workflow[dict[str, Any], Any] = Workflow("pay-graph", input=dict[str, Any], retry=Retry(attempts=1))
_spread: Workflow[dict[str, Any], Any] = Workflow(
    "pay-spread", input=dict[str, Any], retry=Retry(attempts=1), spread=True
)


async def _sign_in(_: StepContext[dict[str, Any]]) -> dict[str, str]:
    return {"token": TOKEN}


def _add_steps(workflow: Workflow[dict[str, Any], Any]) -> None:
    sign_in = workflow.step(name="sign-in")(_sign_in)

    @workflow.step(after=[sign_in])
    async def pay(ctx: StepContext[dict[str, Any]]) -> None:
        raise ValueError(f"{ctx.result(sign_in)} with {ctx.input['api_key']} is refused")


_add_steps(_graph)
_add_steps(_spread)


@task
async def log_in() -> dict[str, str]:
    """Return a secret."""
    return {"token": TOKEN}


@task(retry=Retry(attempts=1))
async def charge(token: str, key: str) -> None:
    """Fail with what it was given."""
    raise ValueError(f"{token} with {key} is refused")


@durable("pay-function")
async def _function(ctx: FlowContext[dict[str, Any]]) -> None:
    found = await ctx.step(log_in)
    await ctx.step(charge, found["token"], ctx.input["api_key"])


class _Machine(StateMachine[dict[str, Any]], name="pay-machine", start="new"):
    @transition("new", to="signed-in")
    async def sign_in(self, ctx: MachineContext[dict[str, Any]]) -> None:
        ctx.state["token"] = TOKEN

    @transition("signed-in", to=END, retry=Retry(attempts=1))
    async def pay(self, ctx: MachineContext[dict[str, Any]]) -> None:
        raise ValueError(f"{ctx.state['token']} with {ctx.state['api_key']} is refused")


@pytest.mark.parametrize(
    "definition", [_graph, _spread, _function, _Machine], ids=["graph", "spread", "function", "machine"]
)
async def test_the_error_of_a_flow_hides_what_it_quotes_of_its_input_and_of_results(
    make_provider: Callable[..., EventProvider], open_dashboard: Open, definition: Any
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(definition)
    async with provider, provider.worker():
        flow = await flows.execute(definition, {"order": 7, "api_key": "key-77-zz"})
        if definition is _Machine:
            while not (await flow.report()).error:
                pass
        else:
            with pytest.raises(Exception, match=TOKEN):  # the program gets the error as it was raised
                await flow.result()
        shown = str((await flow.report()).error)
        assert "•••" in shown
        assert (TOKEN in shown, "key-77-zz" in shown) == (False, False)
        client = open_dashboard(provider, flows=flows)
        paths = [f"/flows/{flow.id}", f"/api/v1/flows/{flow.id}", "/flows", f"/jobs/{flow.id}"]
        for path, text in (await _texts(client, *paths, "/failures", "/api/v1/failures")).items():
            assert TOKEN not in text, path
            assert "key-77-zz" not in text, path


async def test_a_large_job_is_searched_in_a_thread_and_only_so_far(
    provider: EventProvider, open_dashboard: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: 110,000 hidden values in one payload."""
    where: list[bool] = []
    tell = job_report.report_of

    def report_of(*given: Any) -> Any:
        where.append(_is_in_loop())
        return tell(*given)

    monkeypatch.setattr(job_report, "report_of", report_of)
    job = provider.emit("paid", {"token": [f"{n:06d}" for n in range(100_000)]}, reply=False)
    await job.enqueued()
    client = open_dashboard(provider)
    view = (await client.get(f"/api/v1/jobs/{job.job_id}")).json()["job"]
    assert len(set(view["payload"]["token"])) > 99_900  # of 32 bits, two may be alike
    assert where
    assert not any(where)


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def test_a_search_looks_at_as_many_jobs_whether_it_finds_a_hidden_value_or_not(
    provider: EventProvider,
) -> None:
    """D10: how far a page of a search came told whether the value was there."""

    class Marked(msgspec.Struct):
        holder: Annotated[str, Sensitive()]

    event = Event("marked", payload=Marked)
    provider.emit_many(event, [Marked("Ada Lovelace")] * 450, reply=False)
    await provider.flush()
    seen = [
        (await provider.inspector.jobs.find_by_field("marked", f"holder:{name}"))
        for name in ("Ada Lovelace", "x")
    ]
    assert [(each.jobs, each.seen, each.cursor) for each in seen] == [([], 450, None)] * 2


class Payment(msgspec.Struct):
    pan: Annotated[str, Sensitive()]
    note: str = ""


@task(retry=Retry(attempts=1))
async def look_up(pan: Any) -> None:
    """Fail with its item."""
    raise ValueError(f"pan {pan} is refused")


@durable("pay-each", version="1")
async def _each(ctx: FlowContext[Payment]) -> None:
    await ctx.map(look_up, [ctx.input.pan])


@durable("pay-each-in-part", version="1")
async def _each_in_part(ctx: FlowContext[Payment]) -> None:
    found = await ctx.map(look_up, [{"n": 1, "of": [ctx.input.pan]}], return_exceptions=True)
    assert isinstance(found[0], Exception)
    raise found[0]


class _Numbered(msgspec.Struct):
    number: Annotated[float, Sensitive()]


@durable("pay-each-number", version="1")
async def _each_number(ctx: FlowContext[_Numbered]) -> None:
    await ctx.map(look_up, [ctx.input.number])


_plain: Workflow[str, Any] = Workflow("pay-plain", input=str, retry=Retry(attempts=1))


@_plain.step
async def refuse(ctx: StepContext[str]) -> None:
    raise ValueError(f"pan {ctx.input} is refused")


@durable("pay-nested", version="1")
async def _nested(ctx: FlowContext[Payment]) -> None:
    await ctx.flow(_plain, ctx.input.pan)


@durable("pay-signalled", version="1")
async def _signalled(ctx: FlowContext[Any]) -> None:
    got = await ctx.wait_for(paid)
    raise ValueError(f"pan {got.pan} is refused")


paid = Signal("paid", Payment)


class _Triggered(StateMachine[dict[str, Any]], name="pay-triggered", start="new"):
    @transition("new", to=END, wait=Payment, retry=Retry(attempts=1))
    async def pay(self, ctx: MachineContext[dict[str, Any]], got: Payment) -> None:
        raise ValueError(f"pan {got.pan} is refused")


@pytest.mark.parametrize(
    ("definition", "given"),
    [
        (_each, Payment(PAN)),
        (_each_in_part, Payment(PAN)),
        (_each_number, _Numbered(60112277.5)),
        (_nested, Payment(PAN)),
        (_signalled, {}),
        (_Triggered, {}),
    ],
    ids=["item", "part-of-item", "number", "nested", "signal", "trigger"],
)
async def test_a_sensitive_value_is_hidden_wherever_its_flow_passes_it_on(
    make_provider: Callable[..., EventProvider],
    open_dashboard: Open,
    logs: list[Any],
    definition: Any,
    given: Any,
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(definition)
    flows.register(_plain)
    async with provider, provider.worker():
        flow = await flows.execute(definition, given)
        if definition is _signalled:
            await flow.signal(paid, Payment(PAN))
        if definition is _Triggered:
            while (await flow.report()).state != "waiting":
                pass
            await flow.trigger(_Triggered.pay, Payment(PAN))
            while not (await flow.report()).error:
                pass
        else:
            with pytest.raises(FlowError) as caught:
                await flow.result()
            assert "•••" in str(caught.value)
        client = open_dashboard(provider, flows=flows)
        paths = ["/flows", f"/jobs/{flow.id}", f"/api/v1/jobs/{flow.id}"]
        if definition is not _nested:  # the flow below is of a type that hides nothing
            paths += [f"/flows/{flow.id}", f"/api/v1/flows/{flow.id}", "/failures"]
        shown = await _texts(client, *paths)
        members = (await provider.jobs.look(flow.id)).members
        assert bool(members) == (definition in (_each, _each_in_part, _each_number, _nested))
        for job in members if definition is not _nested else ():
            shown |= await _texts(client, f"/jobs/{job.id}", f"/api/v1/jobs/{job.id}")
        shown["report"] = str((await flow.report()).error)
        if definition is not _nested:
            shown["logs"] = str(logs)
        for path, text in shown.items():
            # Of a signal that has come, the page has the payload, as that of a result.
            secret = (
                f"pan {PAN}"
                if definition is _signalled
                else "60112277"
                if definition is _each_number
                else PAN
            )
            assert secret not in text, path


async def test_who_edits_without_a_view_of_hidden_values_cannot_find_them_by_guesses(
    provider: EventProvider, open_dashboard: Open, stack: AsyncExitStack
) -> None:
    """All texts of the job are hidden as a whole from then on; for whoever reveals they are as they were."""

    @provider.on("paid", retry=Retry(attempts=1))
    async def pay(given: Any) -> None:
        raise ValueError(f"no order {given['order']}")

    job = provider.emit("paid", {"token": "427", "order": "o-1"}, delay="1h", reply=False)
    plain = provider.emit("paid", {"order": "o-1"}, delay="1h", reply=False)
    await plain.enqueued()
    client = open_dashboard(provider, actions={"*": {"payload.reveal": False}})
    guesses = " ".join(str(n) for n in range(400, 450))
    for each, payload in ((job, {"token": None, "order": guesses}), (plain, {"order": guesses})):
        view = (await client.get(f"/api/v1/jobs/{each.job_id}")).json()["job"]
        given = {**payload, **{name: view["payload"][name] for name in ("token",) if name in payload}}
        edit = {"payload": given, "revision": view["revision"]}
        assert (await client.patch(f"/api/v1/jobs/{each.job_id}", json=edit)).status_code == 200
        assert await provider.inspector.jobs.promote(each.job_id)
    await stack.enter_async_context(provider.worker())
    await _state(provider, job.job_id, "failed")
    await _state(provider, plain.job_id, "failed")
    for path, text in (
        await _texts(client, f"/jobs/{job.job_id}", "/queues/event.paid?state=failed")
    ).items():
        assert "426 ••• 428" not in text, path
    assert (await provider.inspector.jobs.get(job.job_id)).errors == ["ValueError: •••"]
    assert guesses in (await provider.inspector.jobs.get(job.job_id, reveal=True)).error
    assert guesses in (await provider.inspector.jobs.get(plain.job_id)).error


async def test_a_result_of_a_step_that_repeats_a_sensitive_value_of_the_input_is_hidden(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    workflow: Workflow[Payment, Any] = Workflow("pay-again", input=Payment)

    @workflow.step
    async def ask(ctx: StepContext[Payment]) -> Payment:
        return ctx.input

    @workflow.step
    async def say(ctx: StepContext[Payment]) -> Payment:
        return Payment("another", "of nobody")

    flows.register(workflow)
    async with provider, provider.worker():
        flow = await flows.execute(workflow, Payment(PAN, "monthly"))
        await flow.result()
        steps = (await flow.report()).steps
        assert (steps["ask"].result["pan"], steps["ask"].result["note"]) == ("•••", "monthly")
        assert steps["say"].result == Payment("another", "of nobody")
        client = open_dashboard(provider, flows=flows)
        for path, text in (await _texts(client, f"/flows/{flow.id}", f"/api/v1/flows/{flow.id}")).items():
            assert PAN not in text, path


@durable("pay-as-value", version="1")
async def _as_value(ctx: FlowContext[Any]) -> None:
    (error,) = await ctx.gather(ctx.flow(_graph, {"api_key": "key-77-zz"}), return_exceptions=True)
    raise ValueError(f"it said: {error}") from None


async def test_an_error_that_is_read_as_a_value_brings_its_places(
    make_provider: Callable[..., EventProvider],
) -> None:
    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(_as_value)
    flows.register(_graph)
    async with provider, provider.worker():
        flow = await flows.execute(_as_value, 1)
        with pytest.raises(FlowError, match=f"it said: .*{TOKEN}.* with key-77-zz"):
            await flow.result()
        shown = str((await flow.report()).error)
        assert "it said" in shown
        assert (TOKEN in shown, "key-77-zz" in shown) == (False, False)


_inner: Workflow[Any, Any] = Workflow("pay-inner", input=Any, retry=Retry(attempts=1))
_outer_local: Workflow[Payment, Any] = Workflow("pay-outer-local", input=Payment, retry=Retry(attempts=1))
_outer_spread: Workflow[Payment, Any] = Workflow(
    "pay-outer-spread", input=Payment, retry=Retry(attempts=1), spread=True
)


@_inner.step
async def fail_inside(ctx: StepContext[Any]) -> None:
    raise ValueError(f"inside {ctx.input}")


for _outer in (_outer_local, _outer_spread):
    _outer.flow(_inner, input=lambda ctx: {"x": ctx.input.pan})


@durable("pay-emits", version="1")
async def _emits(ctx: FlowContext[Payment]) -> None:
    await ctx.emit("plain", {"x": ctx.input.pan})


_undone: Workflow[Payment, Any] = Workflow("pay-undone", input=Payment, retry=Retry(attempts=1))


@_undone.step
async def reserve(ctx: StepContext[Payment]) -> None:
    pass


@reserve.rollback(retry=Retry(attempts=1))
async def give_back(ctx: StepContext[Payment], _: None) -> None:
    raise ValueError(f"cannot undo {ctx.input.pan}")


@durable("pay-undoes", version="1")
async def _undoes(ctx: FlowContext[Any]) -> None:
    await ctx.flow(_undone, Payment(PAN))
    raise ValueError("no")


@pytest.mark.parametrize(
    "definition", [_outer_local, _outer_spread, _emits, _undoes], ids=["local", "spread", "emission", "undo"]
)
async def test_what_others_said_of_a_sensitive_value_is_hidden_in_the_steps_of_its_flow(
    make_provider: Callable[..., EventProvider], open_dashboard: Open, logs: list[Any], definition: Any
) -> None:
    provider = make_provider()

    @provider.on("plain", retry=Retry(attempts=1))
    async def refuse_plainly(given: Any) -> None:
        raise ValueError(f"plain {given}")

    flows = WorkflowProvider(provider)
    for each in (definition, _inner, _undone):
        flows.register(each)
    async with provider, provider.worker():
        flow = await flows.execute(definition, 1 if definition is _undoes else Payment(PAN))
        with pytest.raises(FlowError):
            await flow.result()
        report = await flow.report()
        assert "•••" in str((report.steps, report.rollbacks))
        assert PAN not in str(report)
        mine = [each for each in logs if each.get("flow_id") == flow.id]
        assert mine
        assert PAN not in str(mine)
        client = open_dashboard(provider, flows=flows)
        for path, text in (await _texts(client, f"/jobs/{flow.id}", f"/api/v1/jobs/{flow.id}")).items():
            assert PAN not in text, path


async def test_a_signal_that_is_refused_does_not_quote_what_its_type_marks(
    make_provider: Callable[..., EventProvider], logs: list[Any]
) -> None:
    class Checked(msgspec.Struct):
        pan: Annotated[str, Sensitive()]

        def __post_init__(self) -> None:
            if self.pan == PAN:
                raise ValueError(f"bad pan {self.pan}")

    checked = Signal("checked", Checked)

    @durable("pay-checked", version="1")
    async def waits(ctx: FlowContext[Any]) -> str:
        return (await ctx.wait_for(checked)).pan

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(waits)
    async with provider, provider.worker():
        flow = await flows.execute(waits, 1)
        await WorkflowProvider(provider).signal(flow.id, "checked", {"pan": PAN})
        await flow.signal(checked, Checked("another"))
        assert await flow.result() == "another"
        said = [each for each in logs if "refused" in each["event"]]
        assert "bad pan •••" in str(said)
        assert PAN not in str((said, (await flows.tree(flow.id)).errors))


class Input(msgspec.Struct):
    pan: Annotated[str, Sensitive()]
    number: Annotated[int, Sensitive()]


class Model(BaseModel):
    pan: str
    token: str


async def test_results_of_each_shape_that_repeat_a_sensitive_value_are_hidden(
    make_provider: Callable[..., EventProvider], open_dashboard: Open
) -> None:
    workflow: Workflow[Input, Any] = Workflow("pay-shapes", input=Input)

    @workflow.step
    async def pair(ctx: StepContext[Input]) -> tuple[str, int]:
        return ctx.input.pan, ctx.input.number

    @workflow.step
    async def other(ctx: StepContext[Input]) -> tuple[str, int]:
        return "another", 7

    @workflow.step
    async def model(ctx: StepContext[Input]) -> Model:
        return Model(pan="nothing", token=TOKEN)

    provider = make_provider()
    flows = WorkflowProvider(provider)
    flows.register(workflow)
    async with provider, provider.worker():
        flow = await flows.execute(workflow, Input(PAN, 61234567))
        await flow.result()
        steps = (await flow.report()).steps
        assert steps["pair"].result == ["•••", "•••"]
        assert steps["other"].result == ("another", 7)
        assert steps["model"].result == Model(pan="nothing", token=TOKEN)
        client = open_dashboard(provider, flows=flows)
        for path, text in (await _texts(client, f"/flows/{flow.id}", f"/api/v1/flows/{flow.id}")).items():
            assert not [each for each in (PAN, "61234567", TOKEN) if each in text], path


async def test_a_mark_of_a_place_in_a_payload_opens_none(
    provider: EventProvider, open_dashboard: Open
) -> None:
    @provider.on("paid")
    async def pay(given: Any) -> str:
        return f"\ufdd1 got {given['order']} {given['token']}"

    job = provider.emit(
        "paid", {"token": TOKEN, "order": "o-1", "many": {"token": [f"{n:04}" for n in range(2000)]}}
    )
    async with provider.worker():
        await job
    client = open_dashboard(provider)
    for path, text in (await _texts(client, f"/jobs/{job.job_id}", f"/api/v1/jobs/{job.job_id}")).items():
        assert TOKEN not in text, path
