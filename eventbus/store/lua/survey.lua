-- Looks at queues: who serves them, and what waits there. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: now asker queues
-- queues: queue
--   asker: a worker that is not counted, or ''
-- answer: for each queue: workers announced waiting parked delayed oldest
--   announced: when a pool of it was last announced, ms, '' if not lately
--   oldest: when the first or the last job in line was added, whichever was earlier, ms, '' if none waits
--include base fields presence

local now = read_now(take())
local asker, count = take(), take()

local function oldest_of(ready)
  local oldest
  for _, place in ipairs({ 0, -1 }) do
    local id = (try('ZRANGE', ready, place, place) or {})[1]
    local record = id and peek(id)
    if record and record.created then oldest = math.min(oldest or math.huge, record.created) end
  end
  return oldest
end

local rows = {}
local function say(value)
  rows[#rows + 1] = value
end

for _ = 1, count do
  local queue = take()
  local ready = key('ready', queue)
  local workers, announced = count_workers(queue, now, asker)
  local oldest = oldest_of(ready)
  say(workers)
  say(announced and whole(announced) or '')
  say(try('ZCARD', ready) or 0)
  say(try('ZCARD', key('parked', queue)) or 0)
  say(try('ZCARD', key('delayed', queue)) or 0)
  say(oldest and whole(oldest) or '')
end
return rows
