-- Looks at workers: what they say of themselves, and how many jobs they hold. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: workers
-- workers: worker
-- answer: for each worker how many jobs it holds, and the fields of its hash, flat
--include base

local workers = take()
local rows = {}
for _ = 1, workers do
  local worker = take()
  local held, others = key('held', worker), 0
  for _, field in ipairs(try('HMGET', held, '#', '#:blame', '#' .. worker, '#' .. worker .. '+') or {}) do
    if field then others = others + 1 end
  end
  rows[#rows + 1] = { (try('HLEN', held) or 0) - others, try('HGETALL', key('worker', worker)) or {} }
end
return rows
