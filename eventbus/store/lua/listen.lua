-- A running job listens: its holder is told of each signal that the job is sent from now on, until it gives the job up.
-- Repeat-safe: it says again what the record says already.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: id token
-- answer: how many signals the job was ever sent; -1: the lease is not held by that token any more
--include shard args guard fields holds journals

local id, token = args.take(), args.take()
if not holds.read(id, token) then return -1 end
shard.begin_writing()
fields.change(id, 'hears', token)
return journals.count_signals(id)
