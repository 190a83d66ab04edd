--needs shard commands flag tables
--exports outcomes
-- What ended in this call: it is listed, and its emitters are told, by the last writes of the call.
outcomes = {
  KEPT = 604800000, -- a week
  INLINE = 8192, -- larger outcomes are announced to emitters, not carried
}
outcomes.apart = {} -- jobs that this call has set apart as failed; a worker is told of them
local ends = {} -- state .. ':' .. queue -> flat list of time, job
local done = {} -- queue -> entries of its list (`completed.lua`)
local leaves = {} -- queue -> flat list of time, job (`leaving.lua`)
local roots = {} -- queue -> roots that are open no more
local replies = {} -- emitter -> flat list of job, state, carried, text

function outcomes.reply(emitter, id, state, text)
  local rows, is_carried = replies[emitter], #text <= outcomes.INLINE
  if not rows then
    rows = {}
    replies[emitter] = rows
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, state, is_carried and 1 or 0, is_carried and text or ''
end

-- The time of the call is written many times: as text of 13 digits, made once.
local stamps = {}
local function stamp(now)
  local text = stamps[now]
  if not text then
    text = string.format('%013.0f', now)
    stamps[now] = text
  end
  return text
end

function outcomes.list(state, queue, id, now)
  if state == 'completed' then
    tables.push(done, queue, stamp(now) .. id)
  else
    tables.push(ends, state .. ':' .. queue, stamp(now), id)
  end
end

-- It goes at a time of its own: not in the list of all.
function outcomes.leave(queue, id, at)
  tables.push(leaves, queue, commands.whole(at), id)
end

-- A root that ended is open no more, and its deadline is none.
function outcomes.unlist_root(queue, id)
  tables.push(roots, queue, id)
end

-- What cannot be listed, because somebody else's value stands in the place of the set, goes by itself after a week.
function outcomes.expire_record(id)
  for _, kind in ipairs(FLAG.KEYS) do
    redis.call('PEXPIRE', shard.key(kind, id), outcomes.KEPT)
  end
end

local function unlist_roots(queue, list)
  local deadlines = {}
  for i, id in ipairs(list) do deadlines[i] = 'timeout:' .. id end
  commands.try_many('ZREM', shard.key('roots', queue), list)
  commands.call_many('ZREM', shard.root .. ':due', deadlines)
end

-- What goes by itself is looked at a second later, for emitters read first. Returns what is due first, as `next_due.read`.
local function place_leaving(due_at)
  for queue, list in pairs(leaves) do
    if commands.try_many('ZADD', shard.key('leaving', queue), list) then
      local first = math.huge
      for i = 1, #list, 2 do first = math.min(first, tonumber(list[i]) + 1000) end
      redis.call('ZADD', shard.root .. ':due', 'LT', commands.whole(first), 'leave:' .. queue)
      if due_at < 0 or first < due_at then due_at = first end
    else
      for i = 2, #list, 2 do outcomes.expire_record(list[i]) end
    end
  end
  return due_at
end

-- The last write of a call: what ended is listed, and each emitter gets one entry. Returns how long the lists of
-- completed jobs are now, and what is due first; `due_at`: what was before this write.
-- NOMKSTREAM: the stream of an emitter that is gone does not come back.
function outcomes.flush(due_at)
  local lengths = {}
  for queue, list in pairs(done) do
    lengths[queue] = commands.try_many('RPUSH', shard.key('completed', queue), list)
    if not lengths[queue] then
      for _, entry in ipairs(list) do outcomes.expire_record(string.sub(entry, 14)) end
    end
  end
  for name, list in pairs(ends) do
    if not commands.try_many('ZADD', shard.root .. ':' .. name, list) then
      for i = 2, #list, 2 do outcomes.expire_record(list[i]) end
    end
  end
  for queue, list in pairs(roots) do unlist_roots(queue, list) end
  for emitter, rows in pairs(replies) do
    commands.try('XADD', shard.key('replies', emitter), 'NOMKSTREAM', '*', 'd', cmsgpack.pack(rows))
  end
  if next(leaves) then due_at = place_leaving(due_at or -1) end
  return lengths, due_at
end
