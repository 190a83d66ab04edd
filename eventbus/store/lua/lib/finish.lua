-- The end of jobs: record, finished set, key pointer, replies. Used by settle and rescue.
local FIELD = 64 -- larger values get a key of their own, so that the record stays a listpack
local INLINE = 8192 -- larger outcomes are announced to emitters, not carried
local ends = {} -- state .. ':' .. queue -> flat list of time, job
local tells = {} -- members of trees that ended in this call; see `trees.lua`
local replies = {} -- emitter -> flat list of job, state, carried, text

local function reply(emitter, id, state, text)
  local rows, is_carried = replies[emitter], #text <= INLINE
  if not rows then
    rows = {}
    replies[emitter] = rows
  end
  local n = #rows
  rows[n + 1], rows[n + 2], rows[n + 3], rows[n + 4] = id, state, is_carried and 1 or 0, is_carried and text or ''
end

-- Tells the job's emitter and everybody who joined it later, each emitter once.
local function tell(id, record, state, text)
  local told = {}
  if record.reply then
    told[record.reply] = true
    reply(record.reply, id, state, text)
  end
  if not record.joined then return end
  for _, emitter in ipairs(try('HVALS', key('waiters', id)) or {}) do
    if emitter ~= '' and not told[emitter] then
      told[emitter] = true
      reply(emitter, id, state, text)
    end
  end
end

-- The pointer keeps the outcome longer than the record is kept; a large one by its side.
local function end_key(id, record, state, text, ttl)
  local pointer = key('key', record.queue .. ':' .. record.key)
  if try('HGET', pointer, 'job') ~= id then return end
  redis.call('HSET', pointer, 'state', state)
  if #text <= INLINE then
    redis.call('HSET', pointer, 'text', text)
  elseif ttl > 0 then
    redis.call('SET', key('outcome', id), text, 'PX', ttl)
  end
  redis.call('PEXPIRE', pointer, ttl) -- last: a ttl of 0 removes it
end

-- A root that ended is open no more, and its deadline is none.
local function end_root(id, record)
  redis.call('ZREM', key('roots', record.queue), id)
  redis.call('ZREM', root .. ':deadlines', 'timeout:' .. id)
end

-- Writes the final state. `text` is the result or the error, JSON.
local function finish(id, record, state, text, now, key_ttl)
  if #text <= FIELD then
    redis.call('HSET', job_root .. id, 'state', state, 'ended', stamp(now), 'result', text)
  else
    redis.call('HSET', job_root .. id, 'state', state, 'ended', stamp(now))
    redis.call('SET', key('result', id), text)
  end
  if record.root then -- kept and removed with its root, so no finished set lists it
    if state == 'completed' then try('RPUSH', key('done', record.root), id) end
    tells[#tells + 1] = { id = id, root = record.root, state = state, up = record.up }
  elseif not record.is_removed then
    push(ends, state .. ':' .. record.queue, stamp(now), id)
  end
  if record.tree then end_root(id, record) end
  if record.key then end_key(id, record, state, text, key_ttl) end
  tell(id, record, state, text)
end

-- Ends a job that was asked to be cancelled while it ran; its outcome was written then. A root that has
-- undone its tree knows more.
local function finish_cancelled(id, record, now, key_ttl, text)
  local kept = not record.tree and try('GET', key('result', id))
  finish(id, record, 'cancelled', kept or text or '{"type":"JobCancelled"}', now, key_ttl)
end

-- The last write of a call: finished sets, and one stream entry for each emitter.
-- NOMKSTREAM: the stream of an emitter that is gone does not come back.
local function flush_ends()
  for name, list in pairs(ends) do
    call_many('ZADD', root .. ':' .. name, list)
  end
  for emitter, rows in pairs(replies) do
    try('XADD', key('replies', emitter), 'NOMKSTREAM', '*', 'd', cmsgpack.pack(rows))
  end
end
