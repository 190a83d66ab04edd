-- Posts messages to one worker, or queues to look at to one pool; they go by themselves.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: kind name messages
--   kind: control (of a worker) | wake (of a pool)
-- messages: message
-- answer: how many there were
--include shard args commands guard

local kind, name, count = args.take(), args.take(), args.take()
local scored = {}
for i = 1, count do
  scored[2 * i - 1], scored[2 * i] = 0, args.take()
end
shard.begin_writing()
commands.call_many('ZADD', shard.key(kind, name), scored)
redis.call('PEXPIRE', shard.key(kind, name), bounds.MESSAGES_MS)
return count
