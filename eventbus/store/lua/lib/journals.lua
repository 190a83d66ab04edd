--needs shard commands flag
--exports journals
-- The journal of a job: what has happened in it, in order. And what goes with it:
--   journal:<id>  list, one text an entry; only ever appended to
--   live:<id>     hash of name -> text, each replaced whole; `#cut`: how many of the first entries are gone, if only the
--                 newest are kept; `#taken`: the ids of the last signals that came (`signal.lua`)
--   inbox:<id>    hash of signal -> `order name payload`, of those that no entry has taken; `#`: how many ever came;
--                 `#b`: the bytes of those that are there
-- Who holds the job appends (`appends.lua`). A record says by JOURNAL that it has entries, so that claims bring and
-- retention removes them; a record that says so and has none is damaged.
-- Weighed: a hash by step (95 to 130 bytes less for a short journal; but no order, no sign of a gap, and no pages).
local FIRST, MOST, BYTES = 4, 500, bounds.CALL_BYTES -- entries that are read first, and what a claim brings, and little more
local WORD = 40 -- bytes of an id of a signal that is remembered as it is

journals = {}

-- How many signals a job was ever sent.
function journals.count_signals(id)
  return tonumber(commands.try('HGET', shard.key('inbox', id), '#') or 0) or 0
end

-- The word that stands for a signal among the ids of the last signals.
function journals.name_signal(signal)
  return (#signal > WORD or string.find(signal, '%s')) and redis.sha1hex(signal) or signal
end

-- How many of the first entries are gone.
function journals.count_gone(id)
  return tonumber(commands.try('HGET', shard.key('live', id), '#cut') or 0) or 0
end

-- Whether the entries that a record tells of are gone, or somebody else's.
function journals.is_lost(id, record)
  return bit.band(record.flags, FLAG.JOURNAL) ~= 0 and (commands.try('LLEN', shard.key('journal', id)) or 0) == 0
end

-- What the holder of a job is told of its journal and its inbox: the job, length of the journal, how many signals ever came,
-- the first entries, and a flat list of signal, text. The second value: the size in bytes. Where only the newest entries are
-- kept, none are told: the live texts say all that their reader needs.
function journals.read(id)
  local name, entries, size = shard.key('journal', id), {}, 0
  local gone, length = commands.try('HGET', shard.key('live', id), '#cut'), commands.try('LLEN', name) or 0
  local page = FIRST
  while not gone and #entries < math.min(length, MOST) and size < BYTES do
    for _, text in ipairs(redis.call('LRANGE', name, #entries, #entries + page - 1)) do
      entries[#entries + 1], size = text, size + #text
    end
    page = 2 * page -- so that few large entries do not come together with many
  end
  local signals, came, inbox = {}, 0, commands.try('HGETALL', shard.key('inbox', id)) or {}
  for i = 1, #inbox, 2 do
    if inbox[i] == '#' then
      came = tonumber(inbox[i + 1]) or 0
    elseif inbox[i] ~= '#b' then
      signals[#signals + 1], signals[#signals + 2], size = inbox[i], inbox[i + 1], size + #inbox[i + 1]
    end
  end
  return { id, length + (tonumber(gone or 0) or 0), came, entries, signals }, size
end
