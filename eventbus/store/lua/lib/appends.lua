--needs shard commands codec fields flag hold journals marks plain
--exports appends
-- Appending to journals (`journals.lua`).
-- Who holds the job appends, by rows of its turns. A row names the place of its first entry, counted from 0.
-- A row with the live text `#cut` keeps the newest entries alone: that many of the first ones are gone then, and count on.
-- What must hold: a row is written whole or not at all, and once: one whose entries stand at its place already is a repeat.
-- Crash windows: `append-not-answered` (the turn is sent again with its number; or given up, and the row goes with
-- another one: then it is known by its place), `lost-in-failover` (the server forgot the last entries: the row is
-- `behind`, and its sender has them), `dies-after-append` (the next holder is given the entries).
local TROUBLE = { 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'attempts' }

appends = {}

-- Rows, and behind all of them their texts: of all rows the live ones, then the taken signals, then the entries.
function appends.read_rows(count, take)
  local rows = {}
  for i = 1, count do
    rows[i] = { id = take(), token = take(), place = take(), live = {}, taken = {}, entries = {}, counts = { take(), take(), take() } }
  end
  for part, name in ipairs({ 'live', 'taken', 'entries' }) do
    for _, row in ipairs(rows) do
      for i = 1, row.counts[part] * (name == 'live' and 2 or 1) do row[name][i] = take() end
      if name == 'live' and row.live[#row.live - 1] == '#cut' then row.cut = tonumber(row.live[#row.live]) end -- it comes last
    end
  end
  return rows
end

-- Whether these very entries stand at that place.
local function has_entries(name, row)
  local first = row.place - row.gone
  local found = first >= 0 and commands.try('LRANGE', name, first, first + #row.entries - 1) or {}
  for i, text in ipairs(row.entries) do
    if found[i] ~= text then return false end
  end
  return true
end

-- nil: to be written; `done`: it is there; behind, torn: as below. The second value: the length.
local function judge(row, flags)
  local name = shard.key('journal', row.id)
  local length = bit.band(flags, FLAG.JOURNAL) == 0 and 0 or commands.try('LLEN', name)
  row.gone = row.cut and journals.count_gone(row.id) or 0
  length = length and length + row.gone
  if length == row.place then return nil, length end
  if not length or length > row.place then return length and has_entries(name, row) and 'done' or 'torn', length or 0 end
  return 'behind', length
end

local function take_signals(row)
  local inbox, bytes = shard.key('inbox', row.id), 0
  for _, signal in ipairs(row.taken) do bytes = bytes + #(commands.try('HGET', inbox, signal) or '') end
  if bytes == 0 then return end
  commands.call_many('HDEL', inbox, row.taken)
  redis.call('HINCRBY', inbox, '#b', -bytes)
end

-- Whether all entries stand in the list now; nothing of them stays where it is somebody else's.
local function push_entries(row, flags)
  local name = shard.key('journal', row.id)
  local length = commands.try_many('RPUSH', name, row.entries)
  if length and bit.band(flags, FLAG.JOURNAL) == 0 and length > #row.entries then
    redis.call('LTRIM', name, 0, length - #row.entries - 1)
    return false
  end
  return length
end

-- An empty text takes its name away.
local function write_live(id, live)
  local name, gone = shard.key('live', id), {}
  if not commands.try('HLEN', name) then redis.call('DEL', name) end -- somebody else's value
  commands.call_many('HSET', name, live)
  for i = 2, #live, 2 do
    if live[i] == '' then gone[#gone + 1] = live[i - 1] end
  end
  if gone[1] then commands.call_many('HDEL', name, gone) end
end

-- Returns what is wrong.
local function write_row(row, flags, attempts)
  if row.entries[1] and not push_entries(row, flags) then return 'torn' end
  if row.cut and row.cut > row.gone then redis.call('LTRIM', shard.key('journal', row.id), row.cut - row.gone, -1) end
  if row.live[1] then write_live(row.id, row.live) end
  if row.taken[1] then take_signals(row) end
  if row.entries[1] then -- who gets on is in no trouble
    if attempts > 0 then codec.reset_attempts(row.id) end
    if bit.band(flags, FLAG.MORE) ~= 0 then fields.clear(row.id, unpack(TROUBLE)) end
  end
  local added = (row.entries[1] and FLAG.JOURNAL or 0) + (row.live[1] and FLAG.SIDE or 0)
  if bit.bor(flags, added) ~= flags then FLAG.add(row.id, added) end
end

-- Whether the tree of a job stops.
local function is_stopping(id, flags)
  if bit.band(flags, FLAG.STOP) ~= 0 then return true end
  return bit.band(flags, FLAG.MEMBER) ~= 0 and marks.find((fields.peek(id) or {}).root) ~= ''
end

-- Appends what its holder may append. Returns a flat list of index, word, length for each row that was not simply written:
--   lost (the lease) | behind (the journal has only `length` entries, and nothing was written) | torn (it has others) |
--   stopping (written, but its tree stops)
function appends.write_rows(rows, held)
  local answer, ids = {}, {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  local holds = redis.call('HMGET', held, unpack(ids))
  for i, row in ipairs(rows) do
    local word, length, flags, attempts = 'lost', 0, plain.read_head(row.id)
    if flags and holds[i] and Hold.token(holds[i]) == row.token then
      word, length = judge(row, flags)
      if not word then word = write_row(row, flags, attempts) end
      if (not word or word == 'done') and is_stopping(row.id, flags) then word = 'stopping' end
    end
    if word and word ~= 'done' then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = i, word, length
    end
  end
  return answer
end
