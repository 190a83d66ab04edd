-- Looks at a page of the roots of queues: the last added or ended first, those of all queues in one row. Writes nothing.
-- flags: no-writes
-- KEYS: the shard's book, and a key that never exists
-- head: time id limit kinds queues
--   time, id: the place of the last root that was seen; '' for the first page
--   kinds: joined by spaces: open (by when it was added), completed, failed, cancelled (by their ends), leaving (by when it goes)
-- queues: queue
-- answer: for each: id time kind is_there, the highest time first and then the highest id
--   is_there: 0 where its record does not confirm the place: it is gone, was removed or runs again
--include shard args commands tables completed fields hold

local time, id, limit, kinds, count = tonumber(args.take()) or math.huge, args.take(), args.take(), args.take(), args.take()
local CHUNK = bounds.CALL_ROWS
local rows = {}

local function is_behind(at, own)
  return at < time or at == time and own < id
end

local function is_first(a, b)
  return a.at > b.at or a.at == b.at and a.id > b.id
end

-- In sets roots of one time are in the order of their ids.
local function read_set(name, kind)
  local first, left = time == math.huge and 0 or commands.try('ZCOUNT', name, '(' .. commands.whole(time), '+inf') or 0, limit
  while left > 0 do
    local found = commands.try('ZREVRANGE', name, first, first + CHUNK - 1, 'WITHSCORES') or {}
    for i = 1, #found, 2 do
      local at = tonumber(found[i + 1])
      if left > 0 and is_behind(at, found[i]) then
        rows[#rows + 1], left = { id = found[i], at = at, kind = kind }, left - 1
      end
    end
    if #found < 2 * CHUNK then return end
    first = first + CHUNK
  end
end

-- How many entries of a list ended at `time` or before.
local function count_until(queue, length)
  local low, high = 0, length
  while low < high do
    local middle = math.floor((low + high) / 2)
    local entry = completed.read(queue, middle, middle)[1]
    if entry and (entry.ended or 0) <= time then low = middle + 1 else high = middle end
  end
  return low
end

-- In lists roots of one time have no order, so all of the last time are read.
local function read_list(queue)
  local last = count_until(queue, commands.try('LLEN', shard.key('completed', queue)) or 0) - 1
  local found, lowest = 0, nil
  while last >= 0 do
    local first = math.max(0, last - CHUNK + 1)
    local entries = completed.read(queue, first, last)
    for i = #entries, 1, -1 do
      local entry = entries[i]
      if found >= limit and entry.ended < lowest then return end
      if is_behind(entry.ended, entry.id) then
        rows[#rows + 1], found, lowest = { id = entry.id, at = entry.ended, kind = 'completed' }, found + 1, entry.ended
      end
    end
    last = first - 1
  end
end

for _ = 1, count do
  local queue = args.take()
  for kind in string.gmatch(kinds, '%S+') do
    if kind == 'completed' then read_list(queue) else read_set(shard.key(kind == 'open' and 'roots' or kind, queue), kind) end
  end
end
table.sort(rows, is_first)

local function is_there(row)
  local record = fields.fetch(row.id)
  if not record or record.removed then return 0 end
  local has_ended = record.state == 'completed' or record.state == 'failed' or record.state == 'cancelled'
  if row.kind == 'open' then return has_ended and 0 or 1 end
  if row.kind == 'leaving' then return has_ended and 1 or 0 end
  return record.state == row.kind and (row.kind ~= 'completed' or record.ended == row.at) and 1 or 0
end

local answer = {}
for i = 1, math.min(#rows, limit) do
  local row = rows[i]
  tables.push(answer, 1, row.id, row.at)
  tables.push(answer, 1, row.kind, is_there(row))
end
return answer[1] or {}
