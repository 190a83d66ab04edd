"""What the docs show is run, and what they point to is there.

Each `python` block of README.md and docs/*.md is run, those of one file in order and in one
namespace; `await` may stand outside of functions. What a line prints stands behind `# ->`.
Blocks that cannot run are fenced as something else.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import itertools
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from drivers.servers import SCRIPTINGS, Server, free_port

from eventbus import EventContext, EventProvider, HandlerError, Retry
from eventbus.store.keys import KINDS
from workflows import FlowCancelled, StepContext, StepError, Workflow, WorkflowProvider, step

_ROOT = Path(__file__).resolve().parent.parent
_PAGES = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").rglob("*.md"))]
_SHOWN = {"schedules.md": "nightly_report", "controls.md": "tenants", "pipelines.md": "sync_pipeline"}
_SHOWN["machines.md"] = "review"
_STAGES = _ROOT / "examples" / "stages.py"
_KILLED = _ROOT / "examples" / "checkout_killed.py"  # starts programs itself
_CLINIC = [_ROOT / "examples" / name for name in ("clinic.py", "test_clinic.py")]
_EXAMPLES = sorted(
    {*(_ROOT / "examples").glob("*.py")} - {_KILLED, _KILLED.parent / "report_pipeline.py", *_CLINIC}
)

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PRINTS = re.compile(r"# -> (.+)$", re.MULTILINE)
_CITED_FILE = re.compile(r"`((?:eventbus|workflows|tests|integration|benchmarks|examples|docs)/[\w./-]+)`")
_CITED_TEST = re.compile(r"`(test_\w+)`")
_PREFIXES = itertools.count(1)


def _name(path: Path) -> str:
    return path.relative_to(_ROOT).as_posix()


def _blocks(path: Path, language: str) -> list[tuple[int, str]]:
    """List the blocks of one language, each with the line that its text begins after."""
    text = path.read_text()
    return [
        (text.count("\n", 0, match.start(2)), match[2])
        for match in _BLOCK.finditer(text)
        if match[1] == language
    ]


@pytest.fixture
def own_keys(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `EventProvider()` mean the shared server, with keys of its own."""
    monkeypatch.setenv("EVENTBUS_URL", server_url)
    monkeypatch.setenv("EVENTBUS_PREFIX", f"docs-{next(_PREFIXES)}")


def _compile(path: Path, line: int, source: str) -> CodeType:
    tree = ast.parse(source, str(path))
    ast.increment_lineno(tree, line)
    return compile(tree, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _run(code: CodeType, namespace: dict[str, Any], runner: asyncio.Runner) -> str:
    """Run one block; returns what it printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(FunctionType(code, namespace)())
        else:
            exec(code, namespace)
    return printed.getvalue()


@pytest.mark.usefixtures("own_keys")
@pytest.mark.parametrize("path", [each for each in _PAGES if _blocks(each, "python")], ids=_name)
def test_what_a_page_shows_runs_and_prints_what_it_says(path: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins, "asyncio": asyncio}
    with asyncio.Runner() as runner:
        for line, source in _blocks(path, "python"):
            printed = iter(_run(_compile(path, line, source), namespace, runner).splitlines())
            for expected in _PRINTS.findall(source):  # log lines may stand between
                assert expected in printed, (
                    f"{_name(path)}, block after line {line}: {expected!r} not printed"
                )


@pytest.mark.usefixtures("own_keys")
@pytest.mark.parametrize("path", _EXAMPLES, ids=_name)
def test_an_example_runs(path: Path) -> None:
    runpy.run_path(str(path), run_name="__main__")


def test_the_first_programs_are_the_examples() -> None:
    programs = [source for _, source in _blocks(_ROOT / "README.md", "python")]
    examples = ("quickstart.py", "first_workflow.py")
    assert programs == [(_ROOT / "examples" / name).read_text() for name in examples]


def test_the_page_on_the_low_level_api_is_the_example_in_pieces() -> None:
    pieces = [source for _, source in _blocks(_ROOT / "docs" / "lowlevel.md", "python")]
    text = _STAGES.read_text()
    program = text[text.index("import asyncio") :]  # behind its docstring
    assert "\n\n".join(pieces) == program


@pytest.mark.usefixtures("own_keys")
def test_the_example_in_stages_prints_what_its_page_shows() -> None:
    ((_, shown),) = _blocks(_ROOT / "docs" / "lowlevel.md", "console")
    ran = subprocess.run(
        [sys.executable, str(_STAGES)], capture_output=True, text=True, check=True, timeout=300
    )
    printed = [f"$ python {_STAGES.name}", *ran.stdout.splitlines()]
    assert _without_ids(printed) == _without_ids(shown.splitlines())


@pytest.mark.usefixtures("own_keys")
@pytest.mark.parametrize("words", [("approval.py", "--demo"), ("agent.py",)], ids=lambda words: words[0])
def test_the_examples_of_durable_functions_print_what_their_page_shows(words: tuple[str, ...]) -> None:
    shown = {text.splitlines()[0]: text for _, text in _blocks(_ROOT / "docs" / "durable.md", "console")}
    readme = {text.splitlines()[0]: text for _, text in _blocks(_ROOT / "README.md", "console")}
    command = f"$ python {' '.join(words)}"
    assert readme.get(command, shown[command]) == shown[command]
    program = [sys.executable, str(_ROOT / "examples" / words[0]), *words[1:]]
    ran = subprocess.run(program, capture_output=True, text=True, check=True, timeout=300)
    assert ran.stdout.splitlines() == shown[command].splitlines()[1:]


@pytest.mark.parametrize("page", ["schedules.md", "pipelines.md", "machines.md"])
def test_a_page_has_the_example(page: str) -> None:
    programs = [source for _, source in _blocks(_ROOT / "docs" / page, "python")]
    assert (_ROOT / "examples" / f"{_SHOWN[page]}.py").read_text() in programs


@pytest.mark.usefixtures("own_keys")
@pytest.mark.parametrize("page", _SHOWN)
def test_an_example_prints_what_its_page_shows(page: str) -> None:
    path = _ROOT / "examples" / f"{_SHOWN[page]}.py"
    (shown,) = [text for _, text in _blocks(_ROOT / "docs" / page, "console") if path.name in text]
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=300)
    assert [f"$ python {path.name}", *ran.stdout.splitlines()] == shown.splitlines()


def _without_ids(lines: list[str]) -> list[str]:
    return [re.sub(r"report-[0-9a-f]{6}", "report", each) for each in lines]


@pytest.fixture
def shown_orders() -> list[str]:
    """What README.md says that examples/checkout_killed.py prints."""
    (shown,) = [
        text
        for _, text in _blocks(_ROOT / "README.md", "console")
        if text.startswith(f"$ python {_KILLED.name}")
    ]
    return shown.splitlines()[1:]


_LINE_OF_WORKER = re.compile(r"worker (\d)  (.+)")


def _facts(lines: list[str]) -> list[tuple[str, ...]]:
    """Lines as they must be in each run: which worker did what differs, and what runs side by side."""
    facts = [
        ("worker", found[2]) if (found := _LINE_OF_WORKER.fullmatch(each)) else (each,) for each in lines
    ]
    beside = [place for place, fact in enumerate(facts) if re.search("parcel sent|mail to", fact[-1])]
    for place, fact in zip(beside, sorted(facts[place] for place in beside), strict=True):
        facts[place] = fact
    return facts


@pytest.mark.slow
@pytest.mark.usefixtures("own_keys")
def test_an_order_whose_worker_is_killed_during_the_payment_ends_as_the_page_shows(
    shown_orders: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    ran = subprocess.run(
        [sys.executable, str(_KILLED)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.decode()
    printed = ran.stdout.decode().splitlines()
    assert _facts(printed) == _facts(shown_orders)
    done = [found for each in printed if (found := _LINE_OF_WORKER.fullmatch(each))]
    killed = next(place for place, each in enumerate(done) if each[2] == "killed with -9")
    assert (done[killed - 1][1], done[killed - 1][2]) == (done[killed][1], "o-1: charging 990")
    assert done[killed][1] not in {each[1] for each in done[killed + 1 :]}, "it does nothing more"


def test_the_page_on_testing_shows_the_clinic() -> None:
    shown = [source for _, source in _blocks(_ROOT / "docs" / "testing.md", "py")]
    files = [path.read_text() for path in _CLINIC]
    bodies = [text.split('"""\n\n', 1)[1] for text in files]  # behind the docstring
    assert shown == [f"# {path.name}\n{body}" for path, body in zip(_CLINIC, bodies, strict=True)]


@pytest.mark.slow
def test_the_tests_of_the_clinic_pass_as_a_user_runs_them(tmp_path: Path) -> None:
    for path in _CLINIC:
        shutil.copy(path, tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENTBUS_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout.decode()
    assert b"9 passed" in ran.stdout


def _anchors(path: Path) -> set[str]:
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in _HEADING.findall(path.read_text())
    }


def _broken(path: Path) -> Iterator[str]:
    for target in _LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        found = (path.parent / place) if place else path
        if not found.exists() or (anchor and anchor not in _anchors(found)):
            yield target


@pytest.mark.parametrize("path", _PAGES, ids=_name)
def test_every_link_between_pages_leads_somewhere(path: Path) -> None:
    assert list(_broken(path)) == []


@pytest.mark.parametrize("path", _PAGES, ids=_name)
def test_every_file_and_test_that_a_page_names_is_there(path: Path) -> None:
    text = path.read_text()
    folders = (_ROOT / "tests", _ROOT / "integration")
    tests = "\n".join(each.read_text() for folder in folders for each in folder.rglob("test_*.py"))
    missing = [name for name in _CITED_FILE.findall(text) if not (_ROOT / name).exists()]
    missing += [name for name in _CITED_TEST.findall(text) if f"def {name}(" not in tests]
    assert missing == []


def test_the_engines_page_has_each_kind_of_key_and_no_other() -> None:
    page = (_ROOT / "docs" / "how-the-engine-works.md").read_text()
    shape = page.partition("## The shape of the data")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in shape.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall(r"`([a-z]+\+?)", row)} == set(KINDS)


_PLACES_OF_CODE = ("the-rooms-of-the-code", "where-a-change-goes")


@pytest.mark.parametrize("package", ["eventbus", "workflows"])
def test_the_engines_page_names_every_room(package: str) -> None:
    page = (_ROOT / "docs" / "how-the-engine-works.md").read_text()
    table = page.partition(f"| room or file of `{package}/` |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    there = {path.name for path in (_ROOT / package).iterdir() if path.suffix == ".py" or _is_room(path)}
    assert named == {name for name in there if not name.startswith("_")}


def _is_room(path: Path) -> bool:
    return (path / "__init__.py").exists()


def test_the_files_where_a_change_goes_are_there() -> None:
    page = (_ROOT / "docs" / "how-the-engine-works.md").read_text()
    table = page.partition("## Where a change goes")[2].partition("\n## ")[0]
    files = re.findall(r"`((?:eventbus|workflows|docs)/[^`]+)`", table)
    assert len(files) > 20
    assert [name for name in files if not (_ROOT / name).is_file()] == []


def test_contributing_leads_to_the_rooms() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (_ROOT / "CONTRIBUTING.md").read_text())
    assert {f"docs/how-the-engine-works.md#{place}" for place in _PLACES_OF_CODE} <= set(links)


def _optional_rights() -> list[str]:
    page = (_ROOT / "docs" / "operations.md").read_text()
    return re.findall(r"add `([^`]+)` to these rights", page)[0].split()


@pytest.fixture(params=SCRIPTINGS)
async def limited_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The URL of a user with the rights that docs/operations.md states, on a server of its own: without
    functions, and with them and the optional rights.
    """
    (_, rule), _ = _blocks(_ROOT / "docs" / "operations.md", "acl")  # the other one is that of viewers
    words = rule.replace("\\\n", " ").split()[1:]
    if request.param == "functions":
        words += _optional_rights()
    monkeypatch.setenv("EVENTBUS_SCRIPTING", request.param)
    server = Server(port=free_port())
    server.start()
    server.wait(lambda client: client.execute_command("ACL", "SETUSER", *words))
    yield f"redis://eventbus:secret@{server.place}"
    server.stop()


# How scripts and modules of the store name a command: `call('HSET', …`, `command("INFO"`, `("SET", …`.
_IN_LUA = re.compile(r"(?:call|try|call_many|try_many)\('([A-Z]+)'")
_IN_PYTHON = re.compile(r'\(\s*"([A-Z]{3,})"')


def test_the_stated_rights_are_the_commands_that_the_store_uses() -> None:
    """In both directions: no right is missing, none is too many."""
    store = _ROOT / "eventbus" / "store"
    used = {name for each in store.rglob("*.lua") for name in _IN_LUA.findall(each.read_text())}
    for module in (
        *("connection/retrying", "connection/replication", "connection/invocation", "connection/functions"),
        *("calls/group_store", "calls/journal_store", "calls/presence_store", "calls/tree_store"),
        *("calls/audit_store", "calls/operation_store", "calls/queries"),
        *("reply_stream", "change_stream", "store", "connection/wake_reader"),
    ):
        used |= set(_IN_PYTHON.findall((store / f"{module}.py").read_text()))
    (_, rule), _ = _blocks(_ROOT / "docs" / "operations.md", "acl")  # the other one is that of viewers
    stated = {word[1:].upper() for word in rule.split() if word.startswith("+")}
    # `SCAN` and `ACL WHOAMI` are for `eventbus check`; old servers refuse a rule that names functions.
    assert stated - {"CLIENT|SETNAME", "SCAN", "ACL|WHOAMI"} == used - {"FCALL", "FUNCTION"}


def test_the_optional_rights_are_those_of_functions() -> None:
    source = (_ROOT / "eventbus" / "store" / "connection" / "functions.py").read_text()
    used = {f"+function|{word.lower()}" for word in re.findall(r'"FUNCTION", "([A-Z]+)"', source)}
    assert {*_optional_rights()} == {"+fcall", *used}


async def test_the_stated_rights_are_enough_for_all_that_is_built(limited_url: str) -> None:
    async with EventProvider(limited_url) as provider, provider.watch() as changes:

        @provider.on("work", retry=Retry(attempts=3, delay=0.01))
        async def work(payload: Any, ctx: EventContext) -> Any:
            await ctx.progress(50)
            if payload == "fails" or (payload == "fails once" and ctx.attempt == 1):
                raise ValueError(payload)
            return payload

        @provider.on("work", group="other")
        async def other(payload: Any) -> None: ...

        async with provider.worker():
            await provider.add_group("work", "third")
            assert [each.workers for each in await provider.inspector.queues.groups("work")] == [1, 0]
            assert await provider.emit("work", "fails once") == "fails once"
            assert await provider.emit("work", "x" * 9000) == "x" * 9000
            assert await provider.emit("work", 1, delay="50ms") == 1
            with pytest.raises(HandlerError):
                await provider.emit("work", "fails")
            keyed = [provider.emit("work", 2, idempotency_key="k") for _ in range(3)]
            assert [await each for each in keyed] == [2, 2, 2]
            assert await provider.result(keyed[0].job_id) == 2
            await provider.subscribe("later", work)
            assert await provider.emit("work", 3, delay="1 hour").cancel("not needed")
            first = provider.emit("later", 4, idempotency_key="newest", delay="1 hour")
            newest = provider.emit("later", 5, idempotency_key="newest", supersede=True)
            assert (await newest, first.cancelled()) == (5, True)
            many = provider.emit_many("later", range(300))
            assert [await each for each in many] == list(range(300))
            assert await provider.remove_group("work", "third") > 0
            assert (await anext(changes)).what == "added"


@pytest.mark.slow
async def test_the_stated_rights_are_enough_for_journals(limited_url: str) -> None:
    environment = {**os.environ, "EVENTBUS_URL": limited_url}
    words = [sys.executable, str(_STAGES)]
    ran = await asyncio.to_thread(subprocess.run, words, env=environment, capture_output=True, timeout=300)
    assert ran.returncode == 0, ran.stderr.decode()


async def _fail_once(ctx: StepContext[Any]) -> None:
    if ctx.attempt == 1:
        raise ValueError(ctx.step)


async def _check(ctx: StepContext[Any]) -> str:
    return "x" * 9000


async def _uncheck(ctx: StepContext[Any], checked: str) -> None: ...


async def _fail_if_asked(ctx: StepContext[Any]) -> None:
    if ctx.input == "fails":
        raise ValueError(ctx.result("check")[:3])


async def test_the_stated_rights_are_enough_for_flows(limited_url: str) -> None:
    """One that completes, with a sub-workflow; one that is undone; one that is cancelled; and looks
    at them.
    """
    retry = Retry(attempts=2, delay=0.01)
    inner = Workflow("inner", retry=retry).then(step(_fail_once, name="flaky"))
    outer = Workflow("outer", retry=retry).then(inner, step(_check, name="check", rollback=_uncheck))
    outer.then(step(_fail_if_asked, name="last"))
    async with EventProvider(limited_url) as provider:
        flows = WorkflowProvider(provider)
        flows.register(outer)
        async with provider.worker():
            done = [await flows.execute(outer, "", idempotency_key="k", timeout="1 minute") for _ in range(2)]
            assert [await each.result() for each in done] == [None, None]
            failed = await flows.execute(outer, "fails")
            with pytest.raises(StepError) as caught:
                await failed.result()
            assert (caught.value.step, caught.value.rollback) == ("last", "complete")
            late = await flows.execute(outer, "", delay="1 hour")
            assert await late.cancel("not needed")
            with pytest.raises(FlowCancelled):
                await late.result()
            assert [each.state for each in await flows.flows("outer")] == ["cancelled", "failed", "completed"]
            assert (await failed.report()).rollback == "complete"
