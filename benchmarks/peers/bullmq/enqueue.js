'use strict';
// Enqueue --count jobs from one process: single adds with --in-flight of them open at a time,
// or, with --chunk, addBulk calls of that many jobs each (chunk >= count: one call).

const { flags, inLanes, openQueue, report, run, timed } = require('./measure.js');

const WARM_UP = 5000;

const name = 'noop';

async function single(queue, count, inFlight) {
  await inLanes(count, inFlight, (n) => queue.add(name, { n }));
}

async function bulk(queue, count, chunk) {
  for (let start = 0; start < count; start += chunk) {
    const size = Math.min(chunk, count - start);
    await queue.addBulk(Array.from({ length: size }, (_, i) => ({ name, data: { n: start + i } })));
  }
}

run(async () => {
  const { url, count, inFlight, chunk } = flags();
  const queue = openQueue(url);
  const enqueue = (jobs) => (chunk ? bulk(queue, jobs, chunk) : single(queue, jobs, inFlight));
  await enqueue(Math.min(WARM_UP, count));
  await queue.drain();
  const line = await timed(queue, count, () => enqueue(count));
  const waiting = await queue.getWaitingCount();
  if (waiting !== count) {
    throw new Error(`expected ${count} jobs to wait, got: ${waiting}`);
  }
  report(line);
  await queue.close();
});
