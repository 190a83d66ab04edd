-- Counts the jobs of queues that have ended. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: queues
-- queues: queue
-- answer: for each queue: completed failed cancelled
--include base

local count = take()
local rows = {}
for _ = 1, count do
  local queue, n = take(), #rows
  rows[n + 1] = try('LLEN', key('completed', queue)) or 0
  rows[n + 2] = try('ZCARD', key('failed', queue)) or 0
  rows[n + 3] = try('ZCARD', key('cancelled', queue)) or 0
end
return rows
