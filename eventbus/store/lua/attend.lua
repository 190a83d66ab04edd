-- An emitter's presence: its reply stream lives on for a while. While it awaits outcomes, its floor stands in
-- `emitters`, and each mark in its stream tells it up to when it has read.
-- Repeat-safe: a stream that exists is kept as it is, a floor is the same again, and a mark of an older call is not
-- asked for any more. A late copy writes an older floor, which holds back more.
-- The first write is one that a full server allows: workers begin with this call, and they are what empties it.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now emitter life makes attendance floor mark
--   life: seconds | makes: whether the stream is made where it is gone. The emitter first hears that it is gone, and
--     then has it made: so it knows of the gap whichever answer is lost
--   attendance: under which it stands in `emitters`: the emitter, and a number that rises each time that it begins anew;
--     so a late copy of its leaving meets nothing. '' while it awaits nothing
--   floor: the time up to which it has got all outcomes, '' where there is none to say, or `left`
--   mark: what the entry in the stream says, '' for none
-- answer: now; whether the stream existed: 1 or 0
--include shard args commands guard floors

local now = args.take_now()
local emitter, life, makes, attendance, floor, mark = args.take(), args.take(), args.take() == 1, args.take(), args.take(), args.take()
local stream, emitters = shard.key('replies', emitter), shard.root .. ':emitters'
local exists = redis.call('EXPIRE', stream, life)
if exists == 0 and makes then
  redis.call('XADD', stream, '*', 'open', '')
  redis.call('EXPIRE', stream, life)
end
if floor == 'left' then
  commands.try('ZREM', emitters, attendance)
elseif floor ~= '' and floor <= now then
  commands.try('ZADD', emitters, commands.whole(floor), attendance)
else -- also where the clock was set back, and the floor is ahead
  floors.hold(attendance, now)
end
if mark ~= '' then commands.try('XADD', stream, 'NOMKSTREAM', '*', 'mark', mark) end -- after all outcomes of calls before this one
return { now, exists }
