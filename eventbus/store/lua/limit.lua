-- Sets the limit of a queue at run time, over what programs declare, or takes it back. What runs meanwhile is counted.
-- Repeat-safe. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now queue limit
--   limit: JSON, as in `orders.lua`, or '' to take it back
-- answer: the limit that holds now, JSON, or ''
--include shard args guard orders

local now = args.take_now()
local queue, limit = args.take(), args.take()

shard.begin_writing()
if limit ~= '' then
  redis.call('HSET', shard.key('limits', queue), 'ordered', limit)
else
  redis.call('HDEL', shard.key('limits', queue), 'ordered')
end
return orders.note(queue, now) or ''
