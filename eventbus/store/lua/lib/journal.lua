--needs base fields format hold
--exports journals
-- The journal of a job: what has happened in it, in order. And what goes with it:
--   journal:<id>  list, one text an entry; only ever appended to
--   live:<id>     hash of name -> text, each replaced whole
--   inbox:<id>    hash of signal -> `order name payload`, of those that no entry has taken; `#`: how many ever came;
--                 `#b`: the bytes of those that are there
-- Who holds the job appends, by rows of its turns. A row names the place of its first entry, counted from 0.
-- What must hold: a row is written whole or not at all, and once: if its entries stand at its place already, it is a
-- repeat; a record says by JOURNAL that it has entries, so that claims bring and retention removes them.
-- Crash windows: `append-not-answered` (the turn is sent again with its number; or given up, and the row goes with
-- another one: then it is known by its place), `lost-in-failover` (the server forgot the last entries: the row is
-- `behind`, and its sender has them), `dies-after-append` (the next holder is given the entries).
-- Weighed: a hash by step (95 to 130 bytes less for a short journal; but no order, no sign of a gap, and no pages).
local PAGE, MOST, BYTES = 64, 500, 1048576 -- entries that one command reads, and what a claim brings at most
local TROUBLE = { 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'attempts' }

journals = {}

-- How many signals a job was ever sent.
function journals.count_signals(id)
  return tonumber(try('HGET', key('inbox', id), '#') or 0) or 0
end

-- Rows, and behind all of them their texts: of all rows the live ones, then the taken signals, then the entries.
function journals.read_rows(count, take)
  local rows = {}
  for i = 1, count do
    rows[i] = { id = take(), token = take(), place = take(), live = {}, taken = {}, entries = {}, counts = { take(), take(), take() } }
  end
  for part, name in ipairs({ 'live', 'taken', 'entries' }) do
    for _, row in ipairs(rows) do
      for i = 1, row.counts[part] * (name == 'live' and 2 or 1) do row[name][i] = take() end
    end
  end
  return rows
end

-- Whether these very entries stand at that place.
local function has_entries(name, row)
  local found = try('LRANGE', name, row.place, row.place + #row.entries - 1) or {}
  for i, text in ipairs(row.entries) do
    if found[i] ~= text then return false end
  end
  return true
end

-- nil: to be written; `done`: it is there; behind, torn: as below. The second value: the length.
local function judge(row, flags)
  local name = key('journal', row.id)
  local length = bit.band(flags, FLAG.JOURNAL) == 0 and 0 or try('LLEN', name)
  if length == row.place then return nil, length end
  if not length or length > row.place then return length and has_entries(name, row) and 'done' or 'torn', length or 0 end
  return 'behind', length
end

local function take_signals(row)
  local inbox, bytes = key('inbox', row.id), 0
  for _, signal in ipairs(row.taken) do bytes = bytes + #(try('HGET', inbox, signal) or '') end
  if bytes == 0 then return end
  call_many('HDEL', inbox, row.taken)
  redis.call('HINCRBY', inbox, '#b', -bytes)
end

local function write_row(row, flags, attempts)
  if row.entries[1] then call_many('RPUSH', key('journal', row.id), row.entries) end
  if row.live[1] then
    if not try('HLEN', key('live', row.id)) then redis.call('DEL', key('live', row.id)) end -- somebody else's value
    call_many('HSET', key('live', row.id), row.live)
  end
  if row.taken[1] then take_signals(row) end
  if attempts > 0 then plain.reset_attempts(row.id) end -- who gets on is in no trouble
  if bit.band(flags, FLAG.MORE) ~= 0 then clear(row.id, unpack(TROUBLE)) end
  local added = (row.entries[1] and FLAG.JOURNAL or 0) + (row.live[1] and FLAG.SIDE or 0)
  if bit.bor(flags, added) ~= flags then add_flag(row.id, added) end
end

-- Appends what its holder may append. Returns a flat list of index, word, length for each row that was not simply written:
--   lost (the lease) | behind (the journal has only `length` entries, and nothing was written) | torn (it has others) |
--   stopping (written, but its tree stops)
function journals.append(rows, held)
  local answer, ids = {}, {}
  for i, row in ipairs(rows) do ids[i] = row.id end
  local holds = redis.call('HMGET', held, unpack(ids))
  for i, row in ipairs(rows) do
    local word, length, flags, attempts = 'lost', 0, plain.read_head(row.id)
    if flags and holds[i] and Hold.token(holds[i]) == row.token then
      word, length = judge(row, flags)
      if not word then write_row(row, flags, attempts) end
      if (not word or word == 'done') and bit.band(flags, FLAG.STOP) ~= 0 then word = 'stopping' end
    end
    if word and word ~= 'done' then
      answer[#answer + 1], answer[#answer + 2], answer[#answer + 3] = i, word, length
    end
  end
  return answer
end

-- What the holder of a job is told of its journal and its inbox: the job, length of the journal, how many signals ever came,
-- the first entries, and a flat list of signal, text. The second value: the size in bytes.
function journals.read(id)
  local name, entries, size = key('journal', id), {}, 0
  local length = try('LLEN', name) or 0
  while #entries < math.min(length, MOST) and size < BYTES do
    for _, text in ipairs(redis.call('LRANGE', name, #entries, #entries + PAGE - 1)) do
      entries[#entries + 1], size = text, size + #text
    end
  end
  local signals, came, inbox = {}, 0, try('HGETALL', key('inbox', id)) or {}
  for i = 1, #inbox, 2 do
    if inbox[i] == '#' then
      came = tonumber(inbox[i + 1]) or 0
    elseif inbox[i] ~= '#b' then
      signals[#signals + 1], signals[#signals + 2], size = inbox[i], inbox[i + 1], size + #inbox[i + 1]
    end
  end
  return { id, length, came, entries, signals }, size
end
