-- Removes finished jobs past their retention, a bounded number for each queue.
-- KEYS: the shard's root
-- head: now limit queues
-- queues: queue keep_completed age_completed keep_failed age_failed
-- answer: how many jobs were removed
--include base
--include retain

local now = read_now(take())
local limit, count = take(), take()
local removed = 0
for _ = 1, count do
  local queue, keep_completed, age_completed, keep_failed, age_failed = take(), take(), take(), take(), take()
  removed = removed + retain('completed', queue, keep_completed, age_completed, limit, now)
  removed = removed + retain('failed', queue, keep_failed, age_failed, limit, now)
  removed = removed + retain('cancelled', queue, keep_failed, age_failed, limit, now)
end
return removed
