"""The commands of `eventbus`: each is imported when it runs, and so are those that other packages add.

    [project.entry-points."eventbus.commands"]
    flows = "workflows.cli.flows:app"

The name of an entry point is that of the command, and its object is a `typer.Typer`. `eventbus` imports no
package that is built on top of it, so its own commands start without plug-ins. If a plug-in cannot be
imported, its command reports that, and the other commands still work.

What must always hold: a command line imports the modules of its own command alone. The list of all commands
imports none: our own texts stand in a table, and that of a plug-in is read from its source, from the `help`
of its Typer.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.main import get_command, get_group

from eventbus.cli.failures import BorderGroup, CommandError, import_hint, one_line
from eventbus.cli.output import tell_old_name
from eventbus.cli.prefix_option import add_prefix, begin_line

COMMANDS = "eventbus.commands"
"""The entry-point group. The value of each entry point is a `typer.Typer`."""


class OwnCommand(NamedTuple):
    """A command of this package: where its function or its Typer is, `MODULE:NAME`, and the first sentence of
    its help.
    """

    place: str
    help: str


class PluginGroup(BorderGroup):
    """The commands of `eventbus`, followed by those of plug-ins. A plug-in cannot replace a command."""

    own: Mapping[str, OwnCommand] = {}
    old: Mapping[str, str] = {}
    """Old names of commands, which no list has, and the new ones: each runs for one release, and says so."""

    def main(self, *words: Any, **options: Any) -> Any:
        """Run a command line; see `BorderGroup.main`."""
        begin_line()
        return super().main(*words, **options)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        """Return the names of all commands."""
        return [*self.own, *(name for name in sorted(_find_all()) if name not in self.own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Import a command and return it; None if there is none of this name."""
        if cmd_name in self.old:
            tell_old_name(f"eventbus {cmd_name}", f"eventbus {self.old[cmd_name]}")
            cmd_name = self.old[cmd_name]
        if cmd_name in self.own:
            return add_prefix(_own_command(cmd_name, self.own[cmd_name].place))
        if cmd_name in _find_all():
            return add_prefix(get_command(_load(_find_all()[cmd_name])))
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that a line names; the error for an unknown one names those that look
        like it.
        """
        self.commands: dict[str, Any] = dict.fromkeys(
            self.list_commands(ctx)
        )  # the names, among which typer looks
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write all commands with their texts, without an import of any of them, where that can be."""
        rows = [(name, self._text_of(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _text_of(self, ctx: Any, name: str) -> str:
        text = self.own[name].help if name in self.own else _help_in_source(_find_all()[name])
        return text or self.get_command(ctx, name).get_short_help_str(limit=200)


@cache
def _own_command(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    around = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name)(found)
    return get_group(around).commands[name]


@cache
def _find_all() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=COMMANDS)}


def _help_in_source(point: EntryPoint) -> str:
    """Return the `help` with which a module makes its Typer; empty if its source does not tell, and only an
    import does.
    """
    try:
        top, *path = point.module.split(".")
        spec = find_spec(top)
        folders = (spec.submodule_search_locations if spec else None) or ()
        (source,) = [file for folder in folders if (file := Path(folder, *path).with_suffix(".py")).is_file()]
        tree = ast.parse(source.read_bytes())
    except (ValueError, OSError, SyntaxError, ImportError):
        return ""
    for node in tree.body:
        if isinstance(node, ast.AnnAssign):
            target, value = node.target, node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id == point.attr and isinstance(value, ast.Call):
            texts = [each.value for each in value.keywords if each.arg == "help"]
            return next((str(text.value) for text in texts if isinstance(text, ast.Constant)), "")
    return ""


def _load(point: EntryPoint) -> typer.Typer:
    """Import a plug-in. If that fails, return a command that reports the failure."""
    try:
        app = point.load()
    except Exception as error:  # noqa: BLE001  (the code of another package may raise anything)
        return _in_place_of(
            point, one_line(error) + (import_hint() if isinstance(error, ImportError) else ""), error
        )
    if not isinstance(app, typer.Typer):
        return _in_place_of(point, f"it is {type(app).__name__}, expected a typer.Typer", None)
    return app


def _in_place_of(point: EntryPoint, why: str, cause: Exception | None) -> typer.Typer:
    package = point.dist.name if point.dist is not None else "an unknown distribution"
    broken = typer.Typer(rich_markup_mode=None)

    @broken.command(
        help=f"Cannot be loaded from {point.value}.",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )
    def fail() -> None:  # pyright: ignore[reportUnusedFunction]
        raise CommandError(
            f"the command {point.name} of {package} cannot be loaded from {point.value}: {why}"
        ) from cause

    return broken
