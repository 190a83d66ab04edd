-- A worker serves its queues no more: emits wake its pool only for others. Repeat-safe; a full server allows it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now worker pool queues
-- queues: queue
-- answer: how many live workers its pool has left
--include base guard presence

local now = read_now(take())
local worker, pool, count = take(), take(), take()
local queues = {}
for i = 1, count do queues[i] = take() end
leave_pool(worker, pool, queues, now)
return #live_workers(pool, now)
