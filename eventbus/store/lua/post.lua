-- Posts messages to one worker, or queues to look at to one pool; they go by themselves.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: kind name messages
--   kind: control (of a worker) | wake (of a pool)
-- messages: message
-- answer: how many there were
--include base guard

local kind, name, count = take(), take(), take()
local scored = {}
for i = 1, count do
  scored[2 * i - 1], scored[2 * i] = 0, take()
end
begin_writing()
call_many('ZADD', key(kind, name), scored)
redis.call('PEXPIRE', key(kind, name), 120000)
return count
