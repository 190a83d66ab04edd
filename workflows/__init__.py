"""Durable distributed workflows on top of `eventbus`: the front door.

Nothing is offered yet. What comes stands on the doors `eventbus` and `eventbus.lowlevel`
alone; the import contract in `pyproject.toml` holds it to that.
"""

__all__: list[str] = []
