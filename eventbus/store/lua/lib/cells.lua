--needs shard commands
--exports cells
-- The history of queues: how many jobs ended how, how long they waited and ran, by the minute and by the hour.
--   minutes:<queue>:<hour>   60 minutes, each two fields: `m` has counts, gauges and waits, `m + 60` has runs
--   hours:<queue>:<day>      24 hours in the same way
-- A field is a msgpack map, code -> count, of what is not 0; a time without work has none. A chunk is named by its time and
-- expires by itself: no place is ever used again, so what comes late, or at a time that the clock comes back to, can add
-- to no count of another time. The time is the server's, that of the call which counts.
-- Who counts what: a worker what its jobs settle as (`tally.lua`); a script what ends without a settle, what a settle comes
-- to if that is not what the worker said, and stalls. A count may so be below 0 in one minute, not in the sum.
cells = {
  CODES = { completed = 1, failed = 2, retried = 3, cancelled = 4, stalled = 5, expired = 6 },
  WAITING = 7, -- the gauges: how many jobs wait, and the age of the oldest in ms
  OLDEST = 8,
  RUNS = 64, -- the first code of runs; those of waits begin at 16
}
local MOST = 2147483647 -- cmsgpack reads larger ones wrong on some servers
local HOUR = 3600000
local LONGEST = { minutes = bounds.MINUTE_CHUNKS, hours = bounds.HOUR_CHUNKS }
local noted = {} -- queue -> code -> count, of what this call has ended

local function name_of(kind, queue, chunk)
  return shard.key(kind, queue .. ':' .. commands.whole(chunk))
end

-- The counts of a field; nil where there are none, or what stands there is not ours.
local function read_field(text)
  if not text then return nil end
  local is_ours, counts = pcall(cmsgpack.unpack, text)
  return is_ours and type(counts) == 'table' and counts or nil
end

local function add_counts(counts, changes, gauges)
  for code, count in pairs(changes) do counts[code] = math.min((tonumber(counts[code]) or 0) + count, MOST) end
  for code, value in pairs(gauges) do counts[code] = math.min(value, MOST) end
  return cmsgpack.pack(counts)
end

-- One command reads a cell and one writes it. Somebody else's value in the place of the chunk stays.
local function write_cell(name, place, width, entry, kept)
  local found, fields = commands.try('HMGET', name, place, place + width), {}
  if not found then return end
  local counts, runs = read_field(found[1]), read_field(found[2])
  if next(entry.counts) or next(entry.gauges) then
    fields[1], fields[2] = place, add_counts(counts or {}, entry.counts, entry.gauges)
  end
  if next(entry.runs) then
    fields[#fields + 1] = place + width
    fields[#fields + 1] = add_counts(runs or {}, entry.runs, {})
  end
  if not fields[1] then return end
  redis.call('HSET', name, unpack(fields))
  if not (counts or runs) then redis.call('PEXPIRE', name, commands.whole(kept)) end -- after its last cell
end

-- entry: counts, gauges, runs: code -> value. minutes, hours: how long they are kept, ms.
function cells.add(queue, entry, now, minutes, hours)
  local hour = math.floor(now / HOUR)
  write_cell(name_of('minutes', queue, hour), math.floor(now % HOUR / 60000), 60, entry, minutes)
  write_cell(name_of('hours', queue, math.floor(now / (24 * HOUR))), hour % 24, 24, entry, hours)
end

-- One job more, or `count`, ended so: completed, failed ... In other states nothing has ended.
function cells.note(queue, state, count)
  local code = cells.CODES[state]
  if not code then return end
  local counts = noted[queue] or {}
  noted[queue] = counts
  counts[code] = (counts[code] or 0) + (count or 1)
end

-- Writes what was noted, if any worker keeps a history.
function cells.flush(now)
  if not next(noted) then return end
  local minutes, hours = string.match(commands.try('GET', shard.root .. ':history') or '', '^(%d+) (%d+)$')
  for queue, counts in pairs(minutes and noted or {}) do
    cells.add(queue, { counts = counts, gauges = {}, runs = {} }, now, tonumber(minutes), tonumber(hours))
  end
  noted = {}
end

-- Adds the cells of a chunk to a flat list: number of the minute or hour, how many values follow, code, count ...
function cells.read(kind, queue, chunk, rows)
  local width = kind == 'hours' and 24 or 60
  local flat = commands.try('HGETALL', name_of(kind, queue, chunk)) or {}
  for i = 1, #flat, 2 do
    local values = {}
    for code, count in pairs(read_field(flat[i + 1]) or {}) do values[#values + 1], values[#values + 2] = code, count end
    rows[#rows + 1], rows[#rows + 2] = chunk * width + (tonumber(flat[i]) or 0) % width, #values
    for _, value in ipairs(values) do rows[#rows + 1] = value end
  end
end

-- How many jobs completed in the minutes from `first` to `last`, and how many failed or expired. It reads these cells alone.
function cells.count_ended(queue, first, last)
  local completed, failed, minute = 0, 0, first
  while minute <= last do
    local hour, places = math.floor(minute / 60), {}
    for each = minute, math.min(last, hour * 60 + 59) do places[#places + 1] = each % 60 end
    for _, text in ipairs(commands.try('HMGET', name_of('minutes', queue, hour), unpack(places)) or {}) do
      local counts = read_field(text) or {}
      completed = completed + (tonumber(counts[cells.CODES.completed]) or 0)
      failed = failed + (tonumber(counts[cells.CODES.failed]) or 0) + (tonumber(counts[cells.CODES.expired]) or 0)
    end
    minute = minute + #places
  end
  return math.max(0, completed), math.max(0, failed)
end

-- The queue is removed. The hours that come are there if the clock was ahead.
function cells.forget(queue, now)
  for kind, span in pairs({ minutes = HOUR, hours = 24 * HOUR }) do
    local names, last = {}, math.floor(now / span) + 1
    for chunk = last, last - LONGEST[kind], -1 do names[#names + 1] = name_of(kind, queue, chunk) end
    redis.call('DEL', unpack(names))
  end
end
