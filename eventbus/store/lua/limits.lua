-- Looks at what is ordered for queues. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: queues
-- queues: queue
-- answer: for each queue how many jobs wait there, and the fields of its hash of orders (`orders.lua`), flat
--include base entry lines

local count = take()
local rows = {}
for _ = 1, count do
  local queue = take()
  rows[#rows + 1] = { lines.count(queue), try('HGETALL', key('limits', queue)) or {} }
end
return rows
