-- Looks at queues: who serves them, and what waits there. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: now asker queues
-- queues: queue
--   asker: a worker that is not counted, or ''
-- answer: for each queue: workers announced waiting parked delayed oldest
--   announced: when a pool of it was last announced, ms, '' if not lately
--   oldest: when the first or the last job in line was added, or due if that was later, whichever of the two was earlier, ms,
--     '' if none waits
--include shard args commands entry fields flag lanes presence lines

local now = args.take_now()
local asker, count = args.take(), args.take()

-- The first entries of a line, or the last ones, are mostly jobs, else tombstones.
local LOOKS = { { 'ready', 0, 9, 1 }, { 'ready', -10, -1, -1 }, { 'ready+', 0, 0, 1 }, { 'ready+', -1, -1, 1 }, { 'suspects', 0, 0, 1 } }

-- Since when the first job that waits among these entries has been there: one that was delayed, or is retried, since it was due.
local function find_first_time(ids, step)
  for i = step > 0 and 1 or #ids, step > 0 and #ids or 1, step do
    local id = Entry.job(ids[i])
    local record = fields.peek(id)
    if record and record.state == 'waiting' then
      local due = bit.band(record.flags, FLAG.MORE) ~= 0 and commands.try('HGET', shard.key('more', id), 'due')
      return math.max(record.created, tonumber(due or 0) or 0)
    end
  end
  return math.huge
end

local function oldest_of(queue)
  local oldest = math.huge
  for _, look in ipairs(LOOKS) do
    local ids = commands.try(look[1] == 'ready+' and 'ZRANGE' or 'LRANGE', shard.key(look[1], queue), look[2], look[3]) or {}
    oldest = math.min(oldest, find_first_time(ids, look[4]))
  end
  local lane = (commands.try('LRANGE', shard.key('turns', queue), 0, 0) or {})[1] or commands.try('SRANDMEMBER', shard.key('resting', queue))
  local ids = lane and commands.try('LRANGE', lanes.key_of(queue, lane), 0, 9) or {}
  oldest = math.min(oldest, find_first_time(ids, 1))
  return oldest < math.huge and oldest
end

local rows = {}
local function say(value)
  rows[#rows + 1] = value
end

for _ = 1, count do
  local queue = args.take()
  local workers, announced = presence.count(queue, now, asker)
  local oldest = oldest_of(queue)
  say(workers)
  say(announced and commands.whole(announced) or '')
  say(lines.count(queue))
  say(commands.try('ZCARD', shard.key('parked', queue)) or 0)
  say(commands.try('ZCARD', shard.key('delayed', queue)) or 0)
  say(oldest and commands.whole(oldest) or '')
end
return rows
