-- A worker serves its queues no more: emits wake its pool only for others, and hand nothing over to it. Jobs that were
-- handed over, and of which it does not know, are given back; `jobs` are those that it knows of. Repeat-safe; a full server allows it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now worker pool queues jobs
-- queues: queue
-- jobs: id
-- answer: how many live workers its pool has left
--include base guard handing hold holds presence

local now = read_now(take())
local worker, pool, queue_count, count = take(), take(), take(), take()
local queues = {}
for i = 1, queue_count do queues[i] = take() end
local is_known = {}
for _ = 1, count do is_known[take()] = true end
presence.leave(worker, pool, queues, now)
local handed = {}
for _, each in ipairs(list_held(worker)) do
  if handing.is_open(worker, each) then
    if is_known[each.id] then handing.withdraw(worker, { each.id }) else handed[#handed + 1] = each.id end
  end
end
if handed[1] then
  --include giving_back epilogue slots
  local ready = {}
  take_back(worker, handed, ready, now)
  end_call(ready, now)
  slots.flush(now)
end
return #presence.list(pool, now)
