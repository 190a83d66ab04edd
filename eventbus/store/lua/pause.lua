-- Pauses a queue, or resumes it. Claims pass a paused queue over; all else goes on: it takes emissions and cancels, what is
-- due becomes ready, and what runs ends. Its pools are woken when it is resumed.
-- What stands there of another queue goes home when it is resumed (`shelves.lua`), a part of it in each call.
-- Repeat-safe: who pauses it again says who and why anew, and it is paused since the first time.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now word queue by reason
--   word: pause | resume | move (the next part goes home, if nobody has paused it again)
-- answer: of a pause, since when it is paused, ms; else how many jobs are left that go home
--include shard args commands changes guard book orders waking
--defer load_shelves: codec entry fields holds lanes lines putting_off placing records shelves

local now = args.take_now()
local word, queue, by, reason = args.take(), args.take(), args.take(), args.take()
local name = shard.key('limits', queue)
local known = redis.call('HMGET', name, 'paused', 'home')
local since, home, left = known[1], known[2], 0

shard.begin_writing()
if word == 'pause' then
  redis.call('HSET', name, 'paused', since or commands.whole(now), 'by', by, 'reason', reason)
elseif word == 'resume' then
  redis.call('HDEL', name, 'paused', 'by', 'reason')
end
if home and (word == 'resume' or word == 'move' and not since) then
  load_shelves()
  left = shelves.take_home(queue, home, now)
end
orders.note(queue, now)
if word == 'pause' and not since then changes.note('paused', queue, nil, nil, { text = reason }) end
if word == 'resume' and since then changes.note('resumed', queue) end
if word == 'resume' and since then waking.wake_filled({ queue }, now) end
return word == 'pause' and (since or commands.whole(now)) or left
