-- A worker has stopped. Unless it still holds jobs, which are rescued once its leases end, it is unregistered.
-- Repeat-safe. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: worker
-- answer: how many jobs it still holds
--include base guard holds roster

local worker = take()
local count = #list_held(worker)
begin_writing()
roster.forget(worker)
if count == 0 then unregister(worker) end
return count
