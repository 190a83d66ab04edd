'use strict';
// Request and reply: add a job and wait until it finished, --count times with --in-flight of
// them open at a time; worker.js answers from another process. `--in-flight 1` is the latency.

const { QueueEvents } = require('bullmq');
const { QUEUE, check, flags, inLanes, openQueue, quantile, report, run, timed } = require('./measure.js');

const WARM_UP = 5000;

run(async () => {
  const { url, count, inFlight } = flags();
  const queue = openQueue(url);
  const events = new QueueEvents(QUEUE, { connection: { url } });
  events.setMaxListeners(0);
  await events.waitUntilReady();
  const times = new Float64Array(count);
  const ask = async (n) => {
    const start = performance.now();
    const job = await queue.add('noop', { n });
    check(n, await job.waitUntilFinished(events));
    times[n] = performance.now() - start;
  };
  await inLanes(Math.min(WARM_UP, count), inFlight, ask);
  const line = await timed(queue, count, () => inLanes(count, inFlight, ask));
  times.sort();
  report({ ...line, p50_ms: quantile(times, 0.5), p99_ms: quantile(times, 0.99) });
  await events.close();
  await queue.close();
});
