"""`eventbus check`: checks everything that a worker or an emitter needs. Each finding says what to do."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated

import typer

from eventbus.cli.failures import CommandError, is_debugging, one_line
from eventbus.cli.loading import load_provider
from eventbus.cli.logs import configure_logs
from eventbus.cli.loop import run
from eventbus.cli.output import say, write_json
from eventbus.cli.packages import look_at_packages
from eventbus.cli.server_choice import choose_server
from eventbus.errors import ConfigError, EventBusError, StoreUnavailable
from eventbus.model.url_redaction import EMBEDDED, redact
from eventbus.provider import EventProvider
from eventbus.settings.readers import READERS
from eventbus.store.connection.connector import Connector
from eventbus.store.diagnostics import Checkup, Finding
from eventbus.store.embedded.process import find_program


def check(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:PROVIDER]", help="Also import this, and look for its workers."),
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="The server, over the provider's own setting.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Check the installation, the settings, the server, its rights, and the handlers of a program.

    Exit code 0: nothing keeps the bus from working, though there may be warnings; 1: the server
    does; 2: the installation, the settings or the program do.
    """
    configure_logs(None, level=logging.DEBUG if is_debugging() else logging.ERROR)
    findings, provider = _read_program(place, url)
    findings += look_at_packages()  # after the import, which adds the program's folder to the search path
    if provider is None:
        code = 2
    else:
        code = 2 if _has_error(findings) else 0
        at_server = run(_look(provider))
        findings += at_server
        code = code or int(_has_error(at_server))
    if as_json:
        write_json({"exit_code": code, "findings": findings})
    else:
        say(*_lines(findings))
    return code


def _read_program(place: str | None, url: str | None) -> tuple[list[Finding], EventProvider | None]:
    """Return the findings about settings and program, and the provider; None if there is none to check."""
    try:
        provider = choose_server(EventProvider() if place is None else load_provider(place), url)
        Connector(provider.settings.url)
    except (CommandError, EventBusError) as error:
        is_setting = place is None or isinstance(error, ConfigError)
        return [Finding("settings" if is_setting else "program", "error", one_line(error))], None
    findings = [Finding("settings", "ok", f"valid; url {redact(provider.settings.url)}")]
    findings += _mistyped(os.environ)
    if place is not None:
        count = len(provider.queues)
        if count:
            said = f"{count} handler{'' if count == 1 else 's'}"
            findings.append(Finding("program", "ok", f"{place} is importable and has {said}"))
        else:
            remedy = "register them with @provider.on(...), if it is to run a worker"
            findings.append(Finding("program", "warning", f"{place} has no handlers", remedy))
    return findings, provider


def _mistyped(environ: Iterable[str]) -> list[Finding]:
    """Return the variables that are no setting, and close to one.

    Settings ignore names that they do not know.
    """
    known = [f"EVENTBUS_{name.upper()}" for name in READERS]
    found: list[Finding] = []
    for name in sorted(environ):
        close = get_close_matches(name, known, 1, 0.85) if name.startswith("EVENTBUS_") else []
        if close and name not in known:
            said = f"the variable {name} is no setting and does nothing"
            found.append(Finding("settings", "warning", said, f"did you mean {close[0]}?"))
    return found


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.level == "error" for finding in findings)


async def _look(provider: EventProvider) -> list[Finding]:
    settings = provider.settings
    connector = Connector(settings.url, expects="server")  # a check makes no folder and starts no server
    try:
        if EMBEDDED.match(settings.url) and (told := await _find_absent(connector)):
            return [told]
        checkup = Checkup(connector, prefix=settings.prefix, name=f"{settings.name}-check")
        return await checkup.run(
            provider.queues,
            allow_eviction=settings.allow_eviction,
            replicated=settings.durability == "replicated",
        )
    finally:
        await connector.aclose()


async def _find_absent(connector: Connector) -> Finding | None:
    """Return that the embedded server of a URL does not run, or cannot; None if it runs."""
    try:
        find_program()
        await connector.start()
    except ConfigError as error:
        return Finding("server", "error", one_line(error))
    except StoreUnavailable as error:
        remedy = "start the program, which starts it; or name another server with --url or EVENTBUS_URL"
        return Finding("server", "warning", f"{error}; it was not looked at", remedy)
    return None


def _lines(findings: Iterable[Finding]) -> Iterable[str]:
    for finding in findings:
        yield f"{finding.level:8} {finding.subject:17} {finding.said}"
        if finding.remedy:
            yield f"{'':26} -> {finding.remedy}"
