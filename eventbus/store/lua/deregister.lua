-- A worker has stopped. Unless it still holds jobs, which are rescued once its leases end, it is unregistered.
-- Repeat-safe. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: worker
-- answer: how many jobs it still holds
--include shard args guard holds roster

local worker = args.take()
local count = #holds.list(worker)
shard.begin_writing()
roster.forget(worker)
if count == 0 then holds.unregister(worker) end
return count
