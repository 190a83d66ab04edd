"""What a handler saves for its next run: a JSON value that stays with its job.

It is a live text of the job (`lua/lib/journals.lua`), so it is written under the lease, kept over retries,
`Later`, stalls and stops, and gone with the job.

Not here: who writes it (`handlers.worker`), and how it travels (`engine.claiming.append_queue`).
"""

from __future__ import annotations

from typing import Any, cast

from eventbus.errors import DefinitionError, PayloadError
from eventbus.model.codec import Codec

SAVED = "saved"
"""The name of the live text."""

_JSON = (type(None), bool, int, float, str, list, tuple, dict)


def saved_text(value: Any, *, owner: str, max_bytes: int) -> str:
    """Return a value as JSON text; `owner` stands in errors.

    Raises PayloadError for a value that would not come back as it is, or that has more than `max_bytes`.
    """
    kind = cast("Any", Any if type(value) in _JSON else type(value))
    try:
        codec = Codec(kind, role="saved value", owner=owner, max_bytes=max_bytes)
    except DefinitionError as error:
        raise PayloadError(
            f'saved value of "{owner}": expected a JSON value, '
            "or one of a type that msgspec or pydantic converts, "
            f"got: {type(value).__name__}",
            event=owner,
            role="saved value",
        ) from error
    return codec.encode(value).decode()


def read_saved(text: str | None, kind: Any, default: Any, *, owner: str) -> Any:
    """Return the saved value as `kind`, or `default` if `text` is None.

    Raises PayloadError if it does not fit, and DefinitionError if `kind` is no type that can be converted.
    """
    if text is None:
        return default
    return Codec(kind, role="saved value", owner=owner, max_bytes=len(text)).decode(text.encode())
