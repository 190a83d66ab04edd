"""A report in five stages, whose worker is killed in each: once as a pipeline, once as a durable function.

python report_pipeline.py pipeline
python report_pipeline.py function

validate the files -> transform each of them -> aggregate -> publish -> complete
"""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import msgspec

from eventbus import EventProvider
from workflows import FlowContext, FlowHandle, Pipeline, PipelineContext, WorkflowProvider, durable, task

provider = EventProvider(lease=0.8)  # 10 s by default: how long the jobs of a dead worker wait
flows = WorkflowProvider(provider)


class Order(msgspec.Struct):
    report: str
    files: list[str]


class Valid(msgspec.Struct):
    valid: list[str]


class Records(msgspec.Struct):
    records: dict[str, int]


class Total(msgspec.Struct):
    total: int


class Place(msgspec.Struct):
    place: str


class Report(msgspec.Struct):
    report: str
    place: str
    total: int


async def work(what: str) -> None:
    """What a stage does, each time that it runs."""
    print(what, flush=True)
    if what == os.environ.get("DIES_IN"):
        await asyncio.sleep(3600)  # in the middle of its work; it is killed there


# Once as a pipeline. The merged result goes from stage to stage, and the progress keeps the files done.


class Cursor(msgspec.Struct):
    records: dict[str, int] = {}


async def validate(given: Order) -> Valid:
    await work("validate")
    return Valid([name for name in given.files if name.endswith(".csv")])


async def transform(given: Valid, ctx: PipelineContext[Cursor]) -> Records:
    for name in given.valid:
        if name not in ctx.progress.records:
            await work(f"transform {name}")
            ctx.progress.records[name] = len(name)
            await ctx.save()
    return Records(ctx.progress.records)


async def aggregate(given: Records) -> Total:
    await work("aggregate")
    return Total(sum(given.records.values()))


async def publish(given: Order) -> Place:
    await work("publish")
    return Place(f"s3://reports/{given.report}.json")


async def complete() -> None:
    await work("complete")


pipeline = (
    Pipeline("report-pipeline", input=Order, output=Report, progress=Cursor)
    .then(validate)
    .then(transform)
    .then(aggregate)
    .then(publish)
    .then(complete)
    .returns()
)


# Once as a durable function. What a call returns is recorded; each file is a job, which any worker takes.


@task
async def check_files(names: list[str]) -> list[str]:
    await work("validate")
    return [name for name in names if name.endswith(".csv")]


@task
async def transform_file(name: str) -> int:
    await work(f"transform {name}")
    return len(name)


@task
async def add_up(counts: list[int]) -> int:
    await work("aggregate")
    return sum(counts)


@task
async def publish_report(report: str) -> str:
    await work("publish")
    return f"s3://reports/{report}.json"


@task
async def finish() -> None:
    await work("complete")


@durable("report-function")
async def function(ctx: FlowContext[Order]) -> Report:
    names = await ctx.step(check_files, ctx.input.files)
    counts = await ctx.map(transform_file, names, limit=1)  # one at a time, so that each run prints the same
    total = await ctx.step(add_up, counts)
    place = await ctx.step(publish_report, ctx.input.report)
    await ctx.step(finish)
    return Report(ctx.input.report, place, total)


flows.register(pipeline)
flows.register(function)


# The program that starts workers, one after the other, and kills them.

DEATHS = ("validate", "transform b.csv", "aggregate", "publish", "complete")
FOLDER = str(Path(__file__).resolve().parent)
WORKER = (sys.executable, "-m", "eventbus", "worker", "report_pipeline:provider")


async def start(dies_in: str) -> Process:
    settings = {**os.environ, "PYTHONPATH": FOLDER, "DIES_IN": dies_in}
    return await asyncio.create_subprocess_exec(*WORKER, env=settings, stdout=PIPE)


async def read(worker: Process, number: int, until: str = "") -> None:
    """Print what a worker prints, to its end, or until it begins a stage."""
    assert worker.stdout is not None
    async for line in worker.stdout:
        text = line.decode().rstrip()
        print(f"worker {number}  {text}", flush=True)
        if text == until:
            return


async def run(flow: FlowHandle[Report]) -> None:
    for number, stage in enumerate(DEATHS, start=1):
        worker = await start(stage)
        await read(worker, number, until=stage)
        worker.kill()
        await worker.communicate()
        print(f"worker {number}  killed with -9", flush=True)
    worker = await start("")
    reading = asyncio.create_task(read(worker, len(DEATHS) + 1))
    result = await flow.result()
    worker.terminate()
    await reading
    await worker.wait()
    print(f"-> {result.place}: {result.total} records")


async def main() -> None:
    workflow = {"pipeline": pipeline, "function": function}[sys.argv[1]]
    async with provider:  # it executes the flow; its stages run in the workers
        await run(await flows.execute(workflow, Order("r-1", ["a.csv", "b.csv", "notes.txt", "c.csv"])))


if __name__ == "__main__":
    asyncio.run(main())
