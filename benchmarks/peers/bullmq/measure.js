'use strict';
// What the programs of this peer share: flags, the queue, the stopwatch, the JSON line.
// The keys of the line are those of benchmarks/measure.py, so that both sides read alike.

const { Queue } = require('bullmq');

const QUEUE = 'bench';
const CONCURRENCY = 100;

/** Return the flags `--name value` of the command line, numbers as numbers. */
function flags() {
  const given = { url: 'redis://127.0.0.1:6379/0', count: 1000, 'in-flight': 500, chunk: 0, shape: '', members: 0 };
  const words = process.argv.slice(2);
  for (let i = 0; i < words.length; i += 2) {
    const name = words[i].replace(/^--/, '');
    if (!(name in given) || words[i + 1] === undefined) {
      throw new Error(`unknown flag or no value: ${words[i]}`);
    }
    given[name] = typeof given[name] === 'string' ? words[i + 1] : Number(words[i + 1]);
  }
  return { ...given, inFlight: given['in-flight'] };
}

function openQueue(url) {
  const queue = new Queue(QUEUE, { connection: { url } });
  queue.setMaxListeners(0); // waitUntilFinished adds a listener for each job in flight
  return queue;
}

/** Return the CPU seconds that the server has used so far, user and system, all its threads. */
async function serverCpu(queue) {
  const text = await (await queue.backend.client).info('cpu');
  const read = (name) => Number(new RegExp(`^${name}:([0-9.]+)`, 'm').exec(text)[1]);
  return read('used_cpu_user') + read('used_cpu_sys');
}

/** Run `body` once; return its seconds and the server CPU it cost for each of `count` jobs. */
async function timed(queue, count, body) {
  const cpu = await serverCpu(queue);
  const start = performance.now();
  await body();
  const seconds = (performance.now() - start) / 1000;
  const used = (await serverCpu(queue)) - cpu;
  return { count, seconds, per_second: count / seconds, server_cpu_us: (used * 1e6) / count };
}

/** Call `one(n)` for n in 0..count-1 with `inFlight` calls open at a time. */
async function inLanes(count, inFlight, one) {
  let next = 0;
  const lane = async () => {
    while (next < count) {
      await one(next++);
    }
  };
  await Promise.all(Array.from({ length: Math.min(inFlight, count) }, lane));
}

/** Fail unless `result` is what the no-op handler answers to `n`. */
function check(n, result) {
  if (result !== n + 1) {
    throw new Error(`expected ${n + 1} as the result of ${n}, got: ${result}`);
  }
}

/** Return the value below which `share` of the sorted `values` lie. */
function quantile(values, share) {
  return values[Math.min(values.length - 1, Math.floor(values.length * share))];
}

function report(line) {
  console.log(JSON.stringify(line));
}

/** Run a program; an error is one line on standard error and exit code 1. */
function run(main) {
  main().catch((error) => {
    console.error(`${error.name}: ${error.message}`);
    process.exit(1);
  });
}

module.exports = {
  CONCURRENCY,
  QUEUE,
  check,
  flags,
  inLanes,
  openQueue,
  quantile,
  report,
  run,
  serverCpu,
  timed,
};
