--needs base lanes windows
--exports limit_keys
-- The numbers of limit keys: how many jobs of each key run, and have started lately.
--   slots:<queue>   `:` and a key: how many of its jobs run, u32; then its windows (`windows.lua`). Absent: none
-- counts: of the queue (`slots.lua`); `lanes` of it has the keys that this call has read.
limit_keys = {}

-- Reads the numbers of keys, those that this call has not read yet, by one command.
function limit_keys.read(counts, queue, names, now)
  local fields, missing = {}, {}
  for _, lane in ipairs(names) do
    if not counts.lanes[lane] then fields[#fields + 1], missing[#missing + 1] = ':' .. lane, lane end
  end
  if not fields[1] then return end
  for i, text in ipairs(redis.call('HMGET', key('slots', queue), unpack(fields))) do
    local own = { running = text and #text >= 4 and struct.unpack('>I4', text) or 0, planned = 0 }
    own.windows = windows.read(counts.each_rates, text or '', 5, now)
    own.is_changed = own.windows.is_ahead
    counts.lanes[missing[i]] = own
  end
end

-- How many jobs of a key may be claimed now.
function limit_keys.count_free(counts, own)
  return math.max(0, math.min(counts.each - own.running, windows.count_free(own.windows)) - own.planned)
end

function limit_keys.has_free(counts, queue, lane, now)
  limit_keys.read(counts, queue, { lane }, now)
  return limit_keys.count_free(counts, counts.lanes[lane]) > 0
end

function limit_keys.note_start(counts, queue, lane, now)
  limit_keys.read(counts, queue, { lane }, now)
  local own = counts.lanes[lane]
  own.running, own.planned, own.is_changed = own.running + 1, 0, true
  windows.count_start(own.windows)
end

-- Counts a job that runs when a limit begins.
function limit_keys.count_held(counts, queue, lane, now)
  limit_keys.read(counts, queue, { lane }, now)
  local own = counts.lanes[lane]
  own.running, own.is_changed = own.running + 1, true
end

-- Gives the slot of a key back; returns whether the key has turns again.
function limit_keys.note_stop(counts, queue, lane, now)
  limit_keys.read(counts, queue, { lane }, now)
  local own = counts.lanes[lane]
  local was_full = own.running >= counts.each
  own.running, own.is_changed = math.max(0, own.running - 1), true
  local opens = was_full and windows.find_opening(own.windows)
  if opens then redis.call('ZADD', root .. ':due', opens, 'lane:' .. lane .. '/' .. queue) end
  return was_full and limit_keys.count_free(counts, own) > 0 and lanes.end_rest(queue, lane)
end

-- Writes the numbers of keys that have changed; a key with none needs none.
function limit_keys.flush(counts, queue)
  local set, gone = {}, {}
  for lane, own in pairs(counts.lanes) do
    local is_empty = own.running == 0 and windows.is_empty(own.windows)
    if own.is_changed and is_empty then
      gone[#gone + 1] = ':' .. lane
    elseif own.is_changed then
      set[#set + 1], set[#set + 2] = ':' .. lane, struct.pack('>I4', own.running) .. windows.encode(own.windows)
    end
  end
  call_many('HSET', key('slots', queue), set)
  call_many('HDEL', key('slots', queue), gone)
end
