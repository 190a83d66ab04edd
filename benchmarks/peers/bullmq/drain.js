'use strict';
// Drain a queue of --count jobs that was filled before, with one worker in this process.
// `seconds` counts from the first call of the handler to its last return; `settled_seconds`
// from the worker being ready to the last `completed` event.

const { Worker } = require('bullmq');
const { CONCURRENCY, QUEUE, flags, openQueue, report, run, serverCpu } = require('./measure.js');

run(async () => {
  const { url, count } = flags();
  const queue = openQueue(url);
  const cpu = await serverCpu(queue);
  let calls = 0;
  let first = 0;
  let last = 0;
  let ready = 0;
  const handler = async (job) => {
    const now = performance.now();
    if (calls++ === 0) {
      first = now;
    }
    last = now;
    return job.data.n + 1;
  };
  const options = { connection: { url }, concurrency: CONCURRENCY, autorun: false };
  const worker = new Worker(QUEUE, handler, options);
  await new Promise((resolve, reject) => {
    let completed = 0;
    worker.on('completed', () => ++completed === count && resolve());
    worker.on('failed', (_, error) => reject(error));
    worker.on('error', reject);
    worker.waitUntilReady().then(() => {
      ready = performance.now();
      worker.run().catch(reject);
    }, reject);
  });
  const settled = (performance.now() - ready) / 1000;
  const used = (await serverCpu(queue)) - cpu;
  const seconds = (last - first) / 1000;
  report({
    count: calls,
    seconds,
    per_second: calls / seconds,
    server_cpu_us: (used * 1e6) / calls,
    settled_seconds: settled,
  });
  await worker.close();
  await queue.close();
});
