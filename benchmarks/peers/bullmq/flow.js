'use strict';
// Flows: add one with FlowProducer and wait until its root finished, --count times with
// --in-flight of them open at a time; worker.js runs them in another process. Three shapes:
//
//   chain    root <- --members jobs, each the child of the next: the first is the leaf
//   fan      root <- last <- first; `first`, in worker.js, adds --members jobs as further children
//            of `last` before it returns
//   machine  one job, which saves where it stands --members times: BullMQ's pattern "process step jobs"
//
// A tree has no job with two parents, so the middle of a fan cannot be added in advance under one
// `first`. Adding it as the last act of `first` is what BullMQ's maintainers advise (issue 2087 of
// taskforcesh/bullmq), and cheaper than `last` adding it and going back to waiting.

const { FlowProducer, QueueEvents } = require('bullmq');
const { QUEUE, check, flags, inLanes, openQueue, quantile, report, run, timed } = require('./measure.js');

const WARM_UP_SHARE = 5;

/** Return the tree of one flow. */
function tree(shape, members, n) {
  const job = (name, more, children) => ({ name, queueName: QUEUE, data: { n, ...more }, children });
  if (shape === 'machine') {
    return job('machine', { members, moves: 0 });
  }
  if (shape === 'fan') {
    return job('root', {}, [job('last', {}, [job('first', { members })])]);
  }
  let node;
  for (let i = 0; i < members; ++i) {
    node = job('step', {}, node && [node]);
  }
  return job('root', {}, [node]);
}

/** Return the jobs that `job` waited for, the nearest first, in levels. */
async function levels(flow, job) {
  const found = [[await flow.getFlow({ id: job.id, queueName: QUEUE, maxChildren: 10000 })]];
  for (;;) {
    const below = found.at(-1).flatMap((node) => node.children ?? []);
    if (below.length === 0) {
      return found.map((nodes) => nodes.map((node) => node.job));
    }
    found.push(below);
  }
}

/** Fail unless the jobs of a finished flow ran in the order of its shape. */
async function checkOrder(flow, root, shape, members) {
  if (shape === 'machine') {
    const { job } = await flow.getFlow({ id: root.id, queueName: QUEUE });
    if (job.data.moves !== members) {
      throw new Error(`expected ${members} moves, got: ${job.data.moves}`);
    }
    return;
  }
  const found = await levels(flow, root);
  const sizes = shape === 'fan' ? [1, 1, members + 1] : Array(members + 1).fill(1);
  if (found.map((jobs) => jobs.length).join() !== sizes.join()) {
    throw new Error(`expected levels of ${sizes} jobs, got: ${found.map((jobs) => jobs.length)}`);
  }
  const begin = (jobs) => Math.min(...jobs.map((job) => job.processedOn));
  const end = (jobs) => Math.max(...jobs.map((job) => job.finishedOn));
  const first = found.at(-1).filter((job) => job.name === 'first');
  const middle = found.at(-1).filter((job) => job.name !== 'first');
  const isInOrder =
    found.slice(1).every((jobs, i) => end(jobs) <= begin(found[i])) &&
    (shape !== 'fan' || begin(first) <= Math.min(...middle.map((job) => job.timestamp)));
  if (!isInOrder) {
    throw new Error('expected the jobs of a flow in the order of its shape');
  }
}

run(async () => {
  const { url, count, inFlight, shape, members } = flags();
  const queue = openQueue(url);
  const flow = new FlowProducer({ connection: { url } });
  flow.setMaxListeners(0);
  const events = new QueueEvents(QUEUE, { connection: { url } });
  events.setMaxListeners(0);
  await events.waitUntilReady();
  const times = new Float64Array(count);
  let root;
  const ask = async (n) => {
    const start = performance.now();
    const { job } = await flow.add(tree(shape, members, n));
    check(n, await job.waitUntilFinished(events));
    times[n] = performance.now() - start;
    root = job;
  };
  await inLanes(Math.max(1, Math.floor(count / WARM_UP_SHARE)), inFlight, ask);
  await checkOrder(flow, root, shape, members);
  const line = await timed(queue, count, () => inLanes(count, inFlight, ask));
  await checkOrder(flow, root, shape, members);
  times.sort();
  report({ ...line, p50_ms: quantile(times, 0.5), p99_ms: quantile(times, 0.99) });
  await events.close();
  await flow.close();
  await queue.close();
});
