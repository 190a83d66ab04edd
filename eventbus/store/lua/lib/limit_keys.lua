--needs shard commands lanes windows
--exports limit_keys
-- The numbers of limit keys: how many jobs of each key run, and have started lately.
--   slots:<queue>   `:` and a key: how many of its jobs run, u32; then its windows (`windows.lua`). Absent: none
-- counts: of the queue (`slots.lua`); `lanes` of it has the keys that this call has read, `freed` those that have a slot
-- again and may rest still.
limit_keys = {}
limit_keys.opens = {} -- queue -> when the first of its keys may start again that this call lets rest

-- text: as it stands in the hash, or nil.
function limit_keys.decode(counts, text, now)
  local own = { running = text and #text >= 4 and struct.unpack('>I4', text) or 0, planned = 0 }
  own.windows = counts.each_rates[1] and windows.read(counts.each_rates, text or '', 5, now) or {}
  own.is_changed = own.windows.is_ahead
  return own
end

local function encode(own)
  return struct.pack('>I4', own.running) .. (own.windows[1] and windows.encode(own.windows) or '')
end

function limit_keys.is_empty(own)
  return own.running == 0 and windows.is_empty(own.windows)
end

-- Reads the numbers of keys, those that this call has not read yet, by one command.
function limit_keys.read(counts, queue, names, now)
  local fields, missing, n = {}, {}, 0
  for _, lane in ipairs(names) do
    if not counts.lanes[lane] then
      n = n + 1
      fields[n], missing[n], counts.lanes[lane] = ':' .. lane, lane, true
    end
  end
  if n == 0 then return end
  for i, text in ipairs(redis.call('HMGET', shard.key('slots', queue), unpack(fields))) do
    counts.lanes[missing[i]] = limit_keys.decode(counts, text, now)
  end
end

-- The numbers of one key.
local function find(counts, queue, lane, now)
  if not counts.lanes[lane] then limit_keys.read(counts, queue, { lane }, now) end
  return counts.lanes[lane]
end

-- How many jobs of a key may be claimed now.
function limit_keys.count_free(counts, own)
  local free = counts.each - own.running
  if own.windows[1] then free = math.min(free, windows.count_free(own.windows)) end
  return math.max(0, free - own.planned)
end

function limit_keys.has_free(counts, queue, lane, now)
  return limit_keys.count_free(counts, find(counts, queue, lane, now)) > 0
end

-- A job of the key is going to be claimed by this call.
function limit_keys.note_planned(counts, queue, lane, now)
  local own = find(counts, queue, lane, now)
  own.planned = own.planned + 1
end

function limit_keys.note_start(counts, queue, lane, now)
  local own = find(counts, queue, lane, now)
  own.running, own.planned, own.is_changed = own.running + 1, 0, true
  if own.windows[1] then windows.count_start(own.windows) end
end

-- Counts a job that runs when a limit begins.
function limit_keys.count_held(counts, queue, lane, now)
  local own = find(counts, queue, lane, now)
  own.running, own.is_changed = own.running + 1, true
end

-- Adds to a list for `due` when a key that rests because of its rates may start again.
function limit_keys.note_opening(list, queue, lane, own)
  local opens = own.windows[1] and windows.find_opening(own.windows)
  if opens then list[#list + 1], list[#list + 2], limit_keys.opens[queue] = opens, 'lane:' .. lane .. '/' .. queue, math.min(opens, limit_keys.opens[queue] or opens) end
end

-- Gives slots of a key back.
function limit_keys.note_stop(counts, queue, lane, now, number)
  local own = find(counts, queue, lane, now)
  if own.running >= counts.each and not own.is_freed then
    own.is_freed = true
    counts.freed[#counts.freed + 1] = lane
  end
  own.running, own.is_changed = math.max(0, own.running - number), true
end

-- Keys of which this call gave slots back have turns again, if they rested and may start one more. Returns whether any has.
function limit_keys.end_rests(counts, queue)
  if not counts.freed[1] then return false end
  local open, opens = {}, {}
  for _, lane in ipairs(counts.freed) do
    local own = counts.lanes[lane]
    own.is_freed = nil
    if limit_keys.count_free(counts, own) > 0 then open[#open + 1] = lane else limit_keys.note_opening(opens, queue, lane, own) end
  end
  counts.freed = {}
  commands.call_many('ZADD', shard.root .. ':due', opens)
  local is_any = lanes.end_rests(queue, open)
  return is_any or open[1] and redis.call('EXISTS', shard.key('suspects', queue)) == 1 -- which have lines of their own
end

-- Writes the numbers of keys that have changed; a key with none needs none.
function limit_keys.flush(counts, queue)
  local set, gone, n = {}, {}, 0
  for lane, own in pairs(counts.lanes) do
    if own.is_changed and limit_keys.is_empty(own) then
      gone[#gone + 1] = ':' .. lane
    elseif own.is_changed then
      set[n + 1], set[n + 2] = ':' .. lane, encode(own)
      n = n + 2
    end
  end
  commands.call_many('HSET', shard.key('slots', queue), set)
  commands.call_many('HDEL', shard.key('slots', queue), gone)
end
