'use strict';
// A worker that serves the no-op handler until it gets SIGTERM; the other end of reply.js.

const { Worker } = require('bullmq');
const { CONCURRENCY, QUEUE, flags, run } = require('./measure.js');

run(async () => {
  const { url } = flags();
  const options = { connection: { url }, concurrency: CONCURRENCY };
  const worker = new Worker(QUEUE, async (job) => job.data.n + 1, options);
  worker.on('error', (error) => console.error(error.message));
  process.once('SIGTERM', () => worker.close().then(() => process.exit(0)));
});
