'use strict';
// A worker that serves the no-op handler until it gets SIGTERM; the other end of reply.js and flow.js.

const { Worker } = require('bullmq');
const { CONCURRENCY, QUEUE, flags, openQueue, run } = require('./measure.js');

/** Add the middle of a fan as children of the parent of `first`; the same ids if `first` runs again. */
function addMiddle(queue, { id, data, parent }) {
  const opts = { parent: { id: parent.id, queue: parent.queueKey } };
  const one = (_, i) => ({ name: 'step', data: { n: data.n }, opts: { ...opts, jobId: `${id}-${i}` } });
  return queue.addBulk(Array.from({ length: data.members }, one));
}

/** Save where a job stands after each of its moves. */
async function moveOn(job) {
  while (job.data.moves < job.data.members) {
    await job.updateData({ ...job.data, moves: job.data.moves + 1 });
  }
}

run(async () => {
  const { url } = flags();
  const queue = openQueue(url);
  const handler = async (job) => {
    if (job.name === 'first') {
      await addMiddle(queue, job);
    }
    if (job.name === 'machine') {
      await moveOn(job);
    }
    return job.data.n + 1;
  };
  const worker = new Worker(QUEUE, handler, { connection: { url }, concurrency: CONCURRENCY });
  worker.on('error', (error) => console.error(error.message));
  process.once('SIGTERM', () =>
    worker
      .close()
      .then(() => queue.close())
      .then(() => process.exit(0)),
  );
});
