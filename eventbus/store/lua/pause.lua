-- Pauses a queue, or resumes it. Claims pass a paused queue over; all else goes on: it takes emissions and cancels, what is
-- due becomes ready, and what runs ends. Its pools are woken when it is resumed.
-- Repeat-safe: who pauses it again says who and why anew, and it is paused since the first time.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now word queue by reason
--   word: pause | resume
-- answer: since when it is paused, ms, or ''
--include base guard book orders waking

local now = read_now(take())
local word, queue, by, reason = take(), take(), take(), take()
local name = key('limits', queue)
local since = redis.call('HGET', name, 'paused')

begin_writing()
if word == 'pause' then
  redis.call('HSET', name, 'paused', since or whole(now), 'by', by, 'reason', reason)
else
  redis.call('HDEL', name, 'paused', 'by', 'reason')
end
orders.note(queue, now)
if word == 'resume' and since then wake_filled({ queue }, now) end
return word == 'pause' and (since or whole(now)) or ''
