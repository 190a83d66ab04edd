-- Looks at workers: what they say of themselves, and how many jobs they hold. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: workers
-- workers: worker
-- answer: for each worker how many jobs it holds, and the fields of its hash, flat
--include shard args commands

local workers = args.take()
local rows = {}
for _ = 1, workers do
  local worker = args.take()
  local held, others = shard.key('held', worker), 0
  for _, field in ipairs(commands.try('HMGET', held, '#', '#:blame', '#' .. worker, '#' .. worker .. '+') or {}) do
    if field then others = others + 1 end
  end
  rows[#rows + 1] = { (commands.try('HLEN', held) or 0) - others, commands.try('HGETALL', shard.key('worker', worker)) or {} }
end
return rows
