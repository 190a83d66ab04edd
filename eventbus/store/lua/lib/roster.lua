--needs base
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
local MOST = 100 -- queues that one sweep looks at

-- facts: what the worker says of itself, as field, value pairs; none of a release before this one.
function roster.note(worker, queues, facts, since, now)
  redis.call('ZADD', root .. ':fleet', now, worker)
  local stamp, seen = whole(now), {}
  for i, queue in ipairs(queues) do seen[2 * i - 1], seen[2 * i] = stamp, queue end
  call_many('ZADD', root .. ':served', seen)
  if not facts[1] then return end
  local name = key('worker', worker)
  redis.call('HSET', name, 'started', since, 'announced', now, 'queues', table.concat(queues, ' '), unpack(facts))
  redis.call('PEXPIRE', name, math.max(KEPT, 2 * (tonumber(redis.call('HGET', name, 'lease')) or 0)))
end

function roster.forget(worker)
  redis.call('ZREM', root .. ':fleet', worker)
end

local PLACES = { 'ready', 'ready+', 'suspects', 'turns', 'resting', 'delayed', 'parked', 'roots', 'completed', 'failed', 'cancelled', 'leaving' }

local function has_jobs(queue)
  local names = {}
  for i, kind in ipairs(PLACES) do names[i] = key(kind, queue) end
  return redis.call('EXISTS', unpack(names)) > 0
end

-- Takes out workers that are silent, and queues that nobody serves and that are empty.
function roster.sweep(now)
  try('ZREMRANGEBYSCORE', root .. ':fleet', '-inf', whole(now - KEPT))
  try('ZREMRANGEBYSCORE', root .. ':fleet', whole(now + KEPT), '+inf') -- the clock was ahead then
  for _, queue in ipairs(try('ZRANGEBYSCORE', root .. ':served', '-inf', whole(now - FORGOTTEN), 'LIMIT', 0, MOST) or {}) do
    if has_jobs(queue) then redis.call('ZADD', root .. ':served', now, queue) else redis.call('ZREM', root .. ':served', queue) end
  end
end
