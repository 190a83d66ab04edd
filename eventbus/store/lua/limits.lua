-- Looks at what is ordered for queues. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: queues
-- queues: queue
-- answer: for each queue how many jobs wait there, how many of its limit run, and the fields of its hash of orders
--   (`orders.lua`), flat
--include shard args commands entry lines

local count = args.take()
local rows = {}
for _ = 1, count do
  local queue = args.take()
  local counted = commands.try('HGET', shard.key('slots', queue), '')
  local running = counted and #counted >= 4 and struct.unpack('>I4', counted) or 0
  rows[#rows + 1] = { lines.count(queue), running, commands.try('HGETALL', shard.key('limits', queue)) or {} }
end
return rows
