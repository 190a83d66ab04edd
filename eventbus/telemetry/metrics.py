"""All metrics with their units and attributes, and the instruments that record them.

Instruments exist only if the program has set an OpenTelemetry SDK for metrics. Until then this package does
not even import OpenTelemetry's metrics: `instruments` is a look into a dictionary, once for each call to the
server, and nothing is recorded for a job. The names that begin with `messaging.` are those of OpenTelemetry's
conventions for messaging, with their units, attributes and bucket boundaries. `docs/telemetry.md` explains
each metric to users.

Not here: who records (`engine.reporting`, `send_meter`), and where gauges come from (`gauge_board`).

What must always hold: there is no metric of this package that `METRICS` does not list; an attribute has few
values in a program, so no job id, key or text of a user is one, and what a program may make without end, such
as types of errors, is `Bounded`.
"""

from __future__ import annotations

import operator
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from eventbus._version import __version__
from eventbus.telemetry.gauge_board import read_rows

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

# In the order in which the conventions list them.
_CLIENT = ("messaging.operation.name", "messaging.operation.type", "messaging.system", "error.type")
_QUEUE = ("messaging.destination.name", "messaging.consumer.group.name", "eventbus.queue")
_SERVER = ("server.address", "server.port")

_CALLS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""The boundaries that the conventions advise, in seconds."""
_WAITS = (*_CALLS, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
"""Those of times that jobs wait, which may be hours."""


class Metric(NamedTuple):
    """One metric. `bounds` are the boundaries of a histogram's buckets, in its unit."""

    name: str
    kind: Literal["counter", "histogram", "gauge"]
    unit: str
    description: str
    attributes: tuple[str, ...]
    bounds: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            "messaging.client.sent.messages",
            "counter",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
            (*_CLIENT, "messaging.destination.name", *_SERVER),
        ),
        Metric(
            "messaging.client.consumed.messages",
            "counter",
            "{message}",
            "Number of messages that were delivered to the application.",
            (*_CLIENT[:3], *_QUEUE, *_SERVER),
        ),
        Metric(
            "messaging.client.operation.duration",
            "histogram",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            (*_CLIENT, "messaging.destination.name", *_SERVER),
            _CALLS,
        ),
        Metric(
            "messaging.process.duration",
            "histogram",
            "s",
            "Duration of processing operation.",
            (*_CLIENT, *_QUEUE, *_SERVER),
            _CALLS,
        ),
        Metric(
            "eventbus.job.wait.duration",
            "histogram",
            "s",
            "Time from when a job was due to when a worker claimed it.",
            ("eventbus.queue",),
            _WAITS,
        ),
        Metric(
            "eventbus.job.attempts",
            "counter",
            "{attempt}",
            "Runs of jobs that ended, by how they ended.",
            ("eventbus.queue", "eventbus.outcome"),
        ),
        Metric(
            "eventbus.job.stalls",
            "counter",
            "{stall}",
            "Leases that ran out because a worker died or hung, by what became of the job.",
            ("eventbus.outcome",),
        ),
        Metric(
            "eventbus.lease.losses",
            "counter",
            "{lease}",
            "Runs of jobs that lost their lease, so that their outcome does not count.",
            ("eventbus.queue",),
        ),
        Metric(
            "eventbus.schedule.lateness",
            "histogram",
            "s",
            "Time from the slot of a schedule to when a worker fired it.",
            ("eventbus.queue",),
            _WAITS,
        ),
        Metric(
            "eventbus.queue.jobs",
            "gauge",
            "{job}",
            "Jobs of a queue, by state; of those that have ended the ones that are kept.",
            ("eventbus.queue", "eventbus.state", *_SERVER),
        ),
        Metric(
            "eventbus.queue.age",
            "gauge",
            "s",
            "How long the oldest waiting job of a queue has waited; 0 if none waits.",
            ("eventbus.queue", *_SERVER),
        ),
        Metric(
            "eventbus.queue.workers",
            "gauge",
            "{worker}",
            "Live workers that serve a queue.",
            ("eventbus.queue", *_SERVER),
        ),
        Metric("eventbus.worker.jobs", "gauge", "{job}", "Jobs that run in the workers of this process.", ()),
        Metric(
            "eventbus.worker.slots",
            "gauge",
            "{job}",
            "Jobs that the workers of this process may run at a time.",
            (),
        ),
        Metric(
            "eventbus.worker.lag",
            "gauge",
            "s",
            "How long the event loop of this process has owed an answer; 0 if it owes none.",
            (),
        ),
    )
}

TALLIED = ("messaging.client.consumed.messages", "eventbus.job.attempts")
"""The counters of which each job counts."""
QUEUE_GAUGES = ("eventbus.queue.jobs", "eventbus.queue.age", "eventbus.queue.workers")

_MODULE = "opentelemetry.metrics._internal"
_VARIABLE = "OTEL_PYTHON_METER_PROVIDER"
_UNKNOWN: Any = object()


OTHER = "_OTHER"
"""What stands for each value beyond the bound, in the word of the conventions."""
_MOST_VALUES = 200


class Bounded:
    """The values of one attribute: the first 200 of a process stay as they are, and all others are `_OTHER`.

    Each value is a series that the SDK, and whoever collects it, keeps for ever, and a program may emit
    names that it makes, or
    raise classes that it makes. May be used in any thread: two at once may let a value more in.
    """

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        """Return the value, or `_OTHER`."""
        if value in self._known:
            return value
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(value)
        return value


few_errors: Bounded = Bounded()
"""The types of errors, `error.type`."""
few_events: Bounded = Bounded()
"""The names of events that are emitted, `messaging.destination.name`."""


class Tally:
    """A count that the SDK reads when it exports: counting there costs a job ten times as much as all else
    here.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int = 0


class Instruments:
    """The instruments of one SDK. Each may be used in any thread."""

    def __init__(self, meter: Meter) -> None:
        """Make them all; the gauges read the boards of this process from now on."""
        self._meter = meter
        self._tallies: dict[str, dict[Any, Tally]] = {}
        self.sent: Counter = self._counter("messaging.client.sent.messages")
        self.operation: Histogram = self._histogram("messaging.client.operation.duration")
        self.process: Histogram = self._histogram("messaging.process.duration")
        self.waits: Histogram = self._histogram("eventbus.job.wait.duration")
        self.stalls: Counter = self._counter("eventbus.job.stalls")
        self.lost: Counter = self._counter("eventbus.lease.losses")
        self.lateness: Histogram = self._histogram("eventbus.schedule.lateness")
        self._others: dict[str, Counter] = {}
        for metric in METRICS.values():
            if metric.kind == "gauge":
                self._watch(metric)
            elif metric.name in TALLIED:
                self._count(metric)

    def tally(self, name: str, attributes: Mapping[str, str | int]) -> Tally:
        """Return the tally of a metric of `TALLIED` for these attributes, and for the caller's thread, which
        alone counts there.
        """
        place = (threading.get_ident(), *sorted(attributes.items()))
        return self._tallies[name].setdefault(place, Tally())

    def counter(self, metric: Metric) -> Counter:
        """Return the counter of a metric that a system on top of this one has; it is made once."""
        counter = self._others.get(metric.name)
        if counter is None:
            counter = self._others[metric.name] = self._meter.create_counter(
                metric.name, unit=metric.unit, description=metric.description
            )
        return counter

    def _counter(self, name: str) -> Counter:
        metric = METRICS[name]
        return self._meter.create_counter(name, unit=metric.unit, description=metric.description)

    def _histogram(self, name: str) -> Histogram:
        metric = METRICS[name]
        return self._meter.create_histogram(
            name,
            unit=metric.unit,
            description=metric.description,
            explicit_bucket_boundaries_advisory=metric.bounds,
        )

    def _count(self, metric: Metric) -> None:
        tallies = self._tallies[metric.name] = {}
        self._meter.create_observable_counter(
            metric.name,
            callbacks=[partial(_add_up, tallies)],
            unit=metric.unit,
            description=metric.description,
        )

    def _watch(self, metric: Metric) -> None:
        # Jobs and workers of several servers are added up; of ages the oldest counts.
        combine: Callable[[float, float], float] = max if metric.unit == "s" else operator.add
        self._meter.create_observable_gauge(
            metric.name,
            callbacks=[partial(_observe, metric.name, combine)],
            unit=metric.unit,
            description=metric.description,
        )


def _add_up(tallies: dict[Any, Tally], _: CallbackOptions) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415  (an SDK runs, so it is imported)

    sums: dict[Any, int] = {}
    for (_, *attributes), tally in list(tallies.items()):
        place = tuple(attributes)
        sums[place] = sums.get(place, 0) + tally.count
    return [Observation(count, dict(place)) for place, count in sums.items()]


def _observe(
    metric: str, combine: Callable[[float, float], float], _: CallbackOptions
) -> Iterable[Observation]:
    from opentelemetry.metrics import Observation  # noqa: PLC0415  (an SDK runs, so it is imported)

    return [Observation(value, attributes) for value, attributes in read_rows(metric, combine)]


def instruments() -> Instruments | None:
    """Return the instruments of the SDK that the program has set, None while there is none.

    Cheap enough for each call to the server. An SDK that is set later counts from then on.
    """
    # Whoever sets an SDK has imported this module. Only the environment names one without that.
    module = sys.modules.get(_MODULE)
    if module is None and not _load_named():
        return None
    # The private variable is a shortcut, as for spans: `get_meter_provider` would read the environment each
    # time.
    provider = getattr(module or sys.modules[_MODULE], "_METER_PROVIDER", _UNKNOWN)
    if provider is None and _load_named():
        provider = getattr(sys.modules[_MODULE], "_METER_PROVIDER", None)
    return None if provider is None else _made_for(_provider() if provider is _UNKNOWN else provider)


@cache
def _load_named() -> bool:
    """Let OpenTelemetry load the SDK that the environment names, if it names one. Once in a process."""
    if not os.environ.get(_VARIABLE):
        return False
    _provider()
    return True


def _provider() -> Any:
    from opentelemetry import metrics  # noqa: PLC0415  (only where an SDK is named or set)

    return metrics.get_meter_provider()


@cache
def _made_for(provider: Any) -> Instruments | None:
    """Make the instruments of a provider of meters, once; None for one whose meters do nothing."""
    from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider  # noqa: PLC0415  (it is imported)

    if isinstance(provider, NoOpMeterProvider) or type(provider).__name__ == "_ProxyMeterProvider":
        return None
    meter = provider.get_meter("eventbus", __version__)
    return None if isinstance(meter, NoOpMeter) else Instruments(meter)
