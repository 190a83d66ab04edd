-- Ends the blocked read of one emitter's reply stream: by an entry that carries nothing. A stream that is gone stays so.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: emitter
-- answer: 1 if there was a stream, else 0
--include shard args guard

local emitter = args.take()
shard.begin_writing()
return redis.call('XADD', shard.key('replies', emitter), 'NOMKSTREAM', '*', 'nudge', '') and 1 or 0
