-- Renews the leases of one worker, all at once, and notes that it and the server were heard.
-- Jobs that it holds and does not name are given back, for nobody runs them: the answer to their claim was given up, or
-- the server has forgotten in a failover that they had ended.
-- It names what it has by now of the calls up to `first` and `second`; what later calls claimed is on its way to it.
-- What was handed over to it has a lease to be named; to name it is to confirm it.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now worker lag lease first second jobs
-- lag: how far behind the worker's event loop is, ms
-- first, second: the last call of each lane whose answer the worker has, 0 for none
-- jobs: id token
-- answer: ids that are not held by that token any more, ids that were cancelled, ids that were given back
--include shard args commands guard heard hold holds

local AHEAD = 5000 -- ms; a job that was handed over so far ahead of now was so before the clock was set back
local now = args.take_now()
local worker, lag, lease, first, second, count = args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local held = shard.key('held', worker)
local named, confirmed, lost, cancelled, unknown = {}, {}, {}, {}, {}
local list, held_by = holds.list(worker), {}
for _, each in ipairs(list) do held_by[each.id] = each.hold end

for _ = 1, count do
  local id, token = args.take(), args.take()
  local hold = held_by[id]
  if not hold or Hold.token(hold) ~= token then
    lost[#lost + 1] = id
  else
    named[id] = true
    if Hold.is_handed(hold) then confirmed[#confirmed + 1] = Hold.entry_of_hand(worker, id) end
    if string.sub(hold, 7, 7) == 'c' then cancelled[#cancelled + 1] = id end
  end
end

-- Whether the worker has heard of the call that claimed the job, or of the job if it was handed over. What it has not
-- confirmed is given back without it, but not in time if the clock was set back.
local function was_heard(job)
  if Hold.is_handed(job.hold) then
    if job.time > now + AHEAD then return true end
    return job.time <= now - lease and not redis.call('ZSCORE', shard.root .. ':due', Hold.entry_of_hand(worker, job.id))
  end
  local lane, call = string.match(Hold.token(job.hold), '^[^+:]+(%+?):(%d+)$')
  return not lane or tonumber(call) <= (lane == '' and first or second)
end

for _, each in ipairs(list) do
  if not named[each.id] and was_heard(each) then unknown[#unknown + 1] = each end
end

shard.begin_writing()
heard.note(now, lease)
commands.call_many('ZREM', shard.root .. ':due', confirmed)
redis.call('HSET', shard.key('worker', worker), 'heard', now, 'lag', lag, 'lease', lease)
redis.call('PEXPIRE', shard.key('worker', worker), math.max(600000, 2 * lease))
if redis.call('HGET', held, '#') then redis.call('ZADD', shard.root .. ':workers', now + lease, worker) end
local returned = {}
if #unknown > 0 then
  --include giving_back
  returned = giving_back.give_unknown(unknown, worker, now)
end
return { lost, cancelled, returned }
