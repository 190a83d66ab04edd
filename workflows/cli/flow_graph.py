"""`eventbus flows graph`: draws a workflow of a program, or one flow with its states, as Mermaid text."""

from __future__ import annotations

from typing import Annotated

import typer

from eventbus.cli.toolkit import CommandError, UrlOption, load_provider, say, shown, write_json
from workflows.cli.asking import JsonOption, ask_flows
from workflows.cli.flow_history import registry_of
from workflows.definition.plan import listed
from workflows.graphs.folding import fold
from workflows.graphs.graph import Graph
from workflows.graphs.mermaid import mermaid


def draw_graph(
    place: Annotated[
        str | None, typer.Argument(metavar="MODULE:PROVIDER", help="Where the program has its provider.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The workflow, durable function or state machine.")
    ] = None,
    *,
    flow_id: Annotated[
        str | None,
        typer.Option("--id", metavar="FLOW", help="A flow with its states, in place of a definition."),
    ] = None,
    version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Of the definition; by default the newest one.")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Draw each part; otherwise parts alike are one node.")
    ] = False,
    as_json: JsonOption = False,
    url: UrlOption = None,
) -> int:
    """Draw a workflow of a program as Mermaid text, or with --id a flow and its states, which needs no
    program.

    Of a durable function these are the calls in the order of its code; of a flow of it, those that it has
    made. Of a state machine these are its places, with its transitions; of a flow of it, with the place where
    it stands.
    """
    if flow_id is not None:
        if place is not None or version is not None:
            raise CommandError("expected either --id FLOW, or MODULE:PROVIDER and NAME; got both")
        found = flow_id
        graph = ask_flows(url, lambda flows: flows.graph(found, folded=not whole), reads_only=True)
    else:
        graph = _definition(place, name, version)
        graph = graph if whole else fold(graph)
    if as_json:
        write_json(graph)
        return 0
    if not graph.nodes and graph.parts:
        raise CommandError(
            f"{graph.parts} parts are too many to look at; draw them with --whole", exit_code=1
        )
    say(*mermaid(graph).splitlines())
    return 0


def _definition(place: str | None, name: str | None, version: str | None) -> Graph:
    if place is None or name is None:
        raise CommandError("expected MODULE:PROVIDER and the NAME of a workflow, or --id FLOW")
    registry = registry_of(load_provider(place), place)
    graph = registry.graph(name, version)
    if graph is None:
        known = [each.name for each in (*registry, *registry.durables, *registry.machines)]
        which = f"{shown(name)} in version {shown(version)}" if version else shown(name)
        raise CommandError(
            f"{place} has no workflow with steps {which}; it has: {listed(list(dict.fromkeys(known)))}"
        )
    return graph
