--needs shard commands
--exports roster
-- The roster: which queues and which workers there are, for people who look.
--   served  queue -> when a worker that serves it announced itself last, or when it got work that nobody serves (`waking.lua`)
--   fleet   worker -> its last announcement; `worker:<id>` has what it says of itself
-- What must hold: a queue that has jobs stays; nothing but a look depends on either set, so an entry too many does no harm.
-- Crash windows: `dies-silently` (the worker stays for KEPT, with the time at which it was last heard);
-- `late-announcement` (one that arrives after the worker has deregistered lists it for KEPT once more).
roster = {}
local KEPT = 600000 -- a worker that announced itself no more
local FORGOTTEN = 604800000 -- a queue that nobody serves and that has no jobs
local MOST = bounds.HEAVY_ROWS -- queues that one sweep looks at

-- facts: what the worker says of itself, as field, value pairs; none of a release before this one.
function roster.note(worker, queues, facts, since, now)
  redis.call('ZADD', shard.root .. ':fleet', now, worker)
  local stamp, seen = commands.whole(now), {}
  for i, queue in ipairs(queues) do seen[2 * i - 1], seen[2 * i] = stamp, queue end
  commands.call_many('ZADD', shard.root .. ':served', seen)
  if not facts[1] then return end
  local name = shard.key('worker', worker)
  redis.call('HSET', name, 'started', since, 'announced', now, 'queues', table.concat(queues, ' '), unpack(facts))
  redis.call('PEXPIRE', name, math.max(KEPT, 2 * (tonumber(redis.call('HGET', name, 'lease')) or 0)))
end

-- 1 if the worker has announced itself within KEPT, else 0. (Its lease thread writes into `worker:<id>`.)
function roster.is_known(worker)
  return redis.call('ZSCORE', shard.root .. ':fleet', worker) and 1 or 0
end

function roster.forget(worker)
  redis.call('ZREM', shard.root .. ':fleet', worker)
end

local PLACES = { 'ready', 'ready+', 'suspects', 'turns', 'resting', 'delayed', 'parked', 'roots', 'completed', 'failed', 'cancelled', 'leaving' }

local function has_jobs(queue)
  local names = {}
  for i, kind in ipairs(PLACES) do names[i] = shard.key(kind, queue) end
  return redis.call('EXISTS', unpack(names)) > 0
end

-- Takes out workers that are silent, and queues that nobody serves and that are empty.
function roster.sweep(now)
  commands.try('ZREMRANGEBYSCORE', shard.root .. ':fleet', '-inf', commands.whole(now - KEPT))
  commands.try('ZREMRANGEBYSCORE', shard.root .. ':fleet', commands.whole(now + KEPT), '+inf') -- the clock was ahead then
  for _, queue in ipairs(commands.try('ZRANGEBYSCORE', shard.root .. ':served', '-inf', commands.whole(now - FORGOTTEN), 'LIMIT', 0, MOST) or {}) do
    if has_jobs(queue) then redis.call('ZADD', shard.root .. ':served', now, queue) else redis.call('ZREM', shard.root .. ':served', queue) end
  end
end
