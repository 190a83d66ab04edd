"""Records of jobs as a test finds or damages them, past the scripts of the product.

A test changes fields by the product's own Lua part, called alone; it reads them by `records.decode`, which
shares nothing with that part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.records import decode

from eventbus.store.scripting.linker import link
from eventbus.store.scripting.scripts import pack, read_part

__all__ = ["change_record", "make_record", "make_suspect", "read_record"]

_NEW = """
redis.call('SET', shard.job_root .. id, codec.encode({ state = 'waiting', created = 0, queue = 'queue' }))
fields.change("""
_CHANGE = link(
    "--include shard args codec fields\nlocal id = args.take()\n"
    "fields.change(id, unpack(args.values, 2))\nreturn 1\n",
    read_part,
)


def change_record(job: str, **fields: Any) -> list[Any]:
    """Return the command that changes fields of a job; `job` is the full key of its record.

    False takes a field out that stands in the record itself.
    """
    root, _, name = job.partition("}:job:")
    book = f"{root}}}:queues"
    flat = [name]
    for field, value in fields.items():
        flat += [field, value]
    return ["EVAL", _CHANGE, 1, book, pack(flat)]


_SUSPECT = link(
    "--include shard args codec fields book\nlocal id, queue = args.take(), args.take()\n"
    "fields.change(id, 'stalls', 3, 'crowd', 1, 'fatal', 0)\n"
    "redis.call('LREM', shard.key('ready', queue), 1, id)\n"
    "redis.call('RPUSH', shard.key('suspects', queue), id)\n"
    "book.set(queue, book.SUSPECTS)\nreturn 1\n",
    read_part,
)


def make_suspect(job: str, queue: str) -> list[Any]:
    """Return the command that makes a waiting job of `queue` look as if it alone was blamed for three
    stalls.
    """
    root, _, name = job.partition("}:job:")
    return ["EVAL", _SUSPECT, 1, f"{root}}}:queues", pack([name, queue])]


def make_record(job: str, **fields: Any) -> list[Any]:
    """Return the command that makes the record of a job with these fields."""
    command = change_record(job, **fields)
    command[1] = command[1].replace("\nfields.change(", _NEW, 1)
    return command


def read_record(command: Callable[..., Any], job: str) -> dict[str, str]:
    """Return the fields of a job; `command` sends a command and answers text that keeps every byte."""
    root, _, name = job.partition("}:job:")
    text = command("GET", job)
    flat = command("HGETALL", f"{root}}}:more:{name}")
    more = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
    return {} if text is None else decode(text.encode("utf-8", "surrogateescape"), more)
