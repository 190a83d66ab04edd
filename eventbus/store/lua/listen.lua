-- Makes the reply stream of one emitter exist, and live on for a while.
-- Repeat-safe: a stream that exists is kept as it is.
-- The first write is one that a full server allows: workers begin with this call, and they are what empties it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: emitter life
--   life: seconds
-- answer: 1 if it was made, 0 if it existed
--include base guard

local emitter, life = take(), take()
local name = key('replies', emitter)
if redis.call('EXPIRE', name, life) == 1 then return 0 end
redis.call('XADD', name, '*', 'open', '')
redis.call('EXPIRE', name, life)
return 1
