--needs shard commands
--exports floors
-- How young an outcome may be that goes: nobody may ask for it any more. Each emitter that awaits outcomes has a floor in
-- `emitters`, the time up to which it has got all of them. What ended before the lowest floor was got by everybody.
-- What must hold:
-- - an emitter stands there before the records exist that it will ask for, and before a repeat may come of the call
--   that made them. So that call says it (`hold`), and `attend.lua` raises the floor;
-- - no floor holds back longer than WINDOW. An emitter that died, or whose event loop hangs, raises its floor no more;
--   what it awaits goes after WINDOW, and what nobody awaits may go at once.
--   An outcome of such an emitter still stays for WINDOW, until the emitter counts as gone, 10 minutes after its last call.
-- Crash windows:
--   `clock-stepped-back`  a floor of before the step is ahead of the time: nothing younger than WINDOW goes until the
--                         emitter's next call, within a second, has brought it back. If the step is shorter than
--                         that, the time overtakes the floor: what ended in between counts as got. Its emitter has
--                         it from the stream, or if it is large may lose it, where more than `keep_completed` ended
--   `foreign-emitters`    the set cannot be read: nothing younger than WINDOW goes
-- Rejected: a mark at each record that its outcome was got, which is a write for each job; a floor for each queue, for an
-- emitter would have as many as it has queues.
floors = {}
floors.WINDOW = 120000
floors.GONE = bounds.REPLIES_MS -- as long as its reply stream lives: until then an emitter that hangs may come back
local lowest = nil -- asked once in a call, and only where something younger than WINDOW would go

-- The emitter may ask for what ends from now on. A floor that is lower stays. A full server refuses the entry; it refuses
-- the new records, too: their call is refused, or it is a repeat, which has said it before.
function floors.hold(attendance, now)
  if attendance ~= '' then redis.pcall('ZADD', shard.root .. ':emitters', 'LT', commands.whole(now), attendance) end
end

-- What ended before the time that this returns may go.
function floors.read(now)
  if lowest then return lowest end
  lowest = now - floors.WINDOW
  local first = commands.try('ZRANGE', shard.root .. ':emitters', 0, 0, 'WITHSCORES')
  local floor = first and tonumber(first[2] or now)
  if floor and floor <= now then lowest = math.max(lowest, floor) end
  return lowest
end

-- Takes out emitters that are gone.
function floors.sweep(now)
  commands.try('ZREMRANGEBYSCORE', shard.root .. ':emitters', '-inf', '(' .. commands.whole(now - floors.GONE))
end
