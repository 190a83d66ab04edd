-- Makes a group of a queue exist: it gets each emission from now on.
-- KEYS: the shard's root
-- head: queue group
-- answer: 1 if it is new, else 0
--include base
--include groups

local queue, group = take(), take()
return add_group(queue, group)
