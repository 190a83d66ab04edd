-- Counts the jobs of queues that have ended: those that are kept, and those of the last minutes (`cells.lua`). Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: now minutes queues
-- queues: queue
--   minutes: so many of the history are looked at, the one that runs is the last of them
-- answer: for how many ms these minutes have run, then for each queue: completed failed cancelled completed_lately failed_lately
--include shard args commands cells

local now = args.take_now()
local minutes, count = args.take(), args.take()
local last = math.floor(now / 60000)
local first = last - minutes + 1
local rows = { now - first * 60000 }
for _ = 1, count do
  local queue, n = args.take(), #rows
  rows[n + 1] = commands.try('LLEN', shard.key('completed', queue)) or 0
  rows[n + 2] = commands.try('ZCARD', shard.key('failed', queue)) or 0
  rows[n + 3] = commands.try('ZCARD', shard.key('cancelled', queue)) or 0
  rows[n + 4], rows[n + 5] = cells.count_ended(queue, first, last)
end
return rows
