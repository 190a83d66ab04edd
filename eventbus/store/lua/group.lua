-- Makes a group of a queue exist: it gets each emission from now on.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: queue group
-- answer: 1 if it is new, else 0
--include args guard groups

local queue, group = args.take(), args.take()
local refusal = groups.refuse(queue, group)
if refusal then return refusal end
return groups.add(queue, group)
