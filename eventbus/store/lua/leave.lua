-- A worker serves its queues no more: emits wake its pool only for others, and hand nothing over to it. Jobs that were
-- handed over, and of which it does not know, are given back; `jobs` are those that it knows of. Repeat-safe; a full server allows it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now worker pool queues jobs
-- queues: queue
-- jobs: id
-- answer: how many live workers its pool has left
--include args guard handing hold holds presence

local now = args.take_now()
local worker, pool, queue_count, count = args.take(), args.take(), args.take(), args.take()
local queues = {}
for i = 1, queue_count do queues[i] = args.take() end
local is_known = {}
for _ = 1, count do is_known[args.take()] = true end
presence.leave(worker, pool, queues, now)
local handed = {}
for _, each in ipairs(holds.list(worker)) do
  if handing.is_open(worker, each) then
    if is_known[each.id] then handing.withdraw(worker, { each.id }) else handed[#handed + 1] = each.id end
  end
end
if handed[1] then
  --include giving_back epilogue slots
  local ready = {}
  giving_back.give_unconfirmed(worker, handed, ready, now)
  epilogue.end_call(ready, now)
  slots.flush(now)
end
return #presence.list(pool, now)
