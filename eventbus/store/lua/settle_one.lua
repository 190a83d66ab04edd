-- Settles one job that was handed over, and completed: the short way of a worker that has nothing else to do.
-- Repeat-safe: a job that has completed by this worker is answered in the same way.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now worker id text pool keep age
--   text: the result; pool: the worker is idle in it from now on, '' if it is not; keep, age (ms): retention of what completed
-- answer: done | lost (it is held by another token, or by nobody) | long (it is not as simple: a turn settles it)
--include shard args guard plain hold settling outcomes idle
--defer load_retention: retention completed

local now = args.take_now()
local worker, id, text, pool, keep, age = args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local held = shard.key('held', worker)
local found = redis.call('HMGET', held, '#', id)
local hold, record = found[2], redis.call('GET', shard.job_root .. id)
if not hold or Hold.token(hold) ~= worker .. ':h' then
  return (not record or plain.was_completed_by(record, worker)) and 'done' or 'lost'
end
local simple = {}
if not record or string.sub(hold, 7, 7) ~= '0' or Hold.place_of_slot(hold) ~= '' or not settling.add_simple(simple, id, record, hold, text) then return 'long' end

shard.begin_writing()
local queue = simple[5]
settling.write_simple(simple, held, worker, { [queue] = { keep_completed = keep } }, now)
local lengths = outcomes.flush()
if pool ~= '' and found[1] then idle.note(worker, pool, now) end
if now % 8 == 0 then -- as a turn of few ends
  load_retention()
  completed.retain(queue, keep, age, 32, now, lengths[queue])
end
return 'done'
