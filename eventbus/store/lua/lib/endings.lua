--needs shard commands cells chore_list fields floors outcomes succession
--exports endings
-- The end of jobs: record, finished set, key pointer, replies. Used by settle and rescue.
endings = {}
endings.of_members = {} -- members of trees that ended in this call; see `trees.lua`

local to_hear = bounds.CALL_ROWS -- emitters that joined jobs, whom one call tells

-- Tells those who joined the job, a bounded number of them; a chore tells the rest. Those of a job that goes at once
-- are told at once.
function endings.tell_waiters(id, record, state, text)
  local name = shard.key('waiters', id)
  local waiters = commands.try('SMEMBERS', name) or {}
  local last = record.is_removed and #waiters or math.min(#waiters, to_hear)
  to_hear = math.max(0, to_hear - last)
  for i = 1, last do
    if waiters[i] ~= record.reply then outcomes.reply(waiters[i], id, state, text) end
  end
  if last == #waiters then return end
  if last > 0 then commands.call_many('SREM', name, { unpack(waiters, 1, last) }) end
  chore_list.add('hear', id)
end

-- Tells the job's emitter and everybody who joined it later, each emitter once.
function endings.tell(id, record, state, text)
  if record.reply then outcomes.reply(record.reply, id, state, text) end
  if record.joined then endings.tell_waiters(id, record, state, text) end
end

-- The pointer keeps the outcome longer than the record is kept; a large one by its side. Of a throttled key it stays to
-- the end of the window.
local function end_key(id, record, state, text, ttl, now)
  local pointer = shard.key('key', record.queue .. ':' .. record.key)
  local known = commands.try('HMGET', pointer, 'job', 'next', 'nextprint', 'until') or {}
  if known[1] ~= id or known[2] and succession.begin(pointer, id, known[2], known[3], now) then return end
  if known[4] then ttl = math.max(ttl, (tonumber(known[4]) or 0) - now) end
  redis.call('HSET', pointer, 'state', state)
  if #text <= outcomes.INLINE then
    redis.call('HSET', pointer, 'text', text)
  elseif ttl > 0 then
    redis.call('SET', shard.key('outcome', id), text, 'PX', ttl)
  end
  redis.call('PEXPIRE', pointer, ttl) -- last: a ttl of 0 removes it
end

-- A root that ended is open no more, and its deadline is none.
local function end_root(id, record)
  commands.try('ZREM', shard.key('roots', record.queue), id)
  redis.call('ZREM', shard.root .. ':due', 'timeout:' .. id)
end

-- An emission may say how long its job is kept (`leaving.lua`). What did not complete stays for WINDOW, as any other does.
local function list_ended(state, record, id, now)
  local completed, failed = string.match(record.keep or '', '^(%d*),(%d*)$')
  local keep = tonumber(state == 'completed' and completed or failed)
  if not keep then return outcomes.list(state, record.queue, id, now) end
  outcomes.leave(record.queue, id, now + (state == 'completed' and keep or math.max(keep, floors.WINDOW)))
end

-- Writes the final state, and returns it. `text` is the result or the error, JSON.
function endings.write(id, record, state, text, now, key_ttl)
  fields.close(id, state, text, now, record.hold)
  if not record.hold then cells.note(record.queue, state) end -- no worker settles it, so none counts it
  if record.root then -- kept and removed with its root, so no finished set lists it
    local is_unlisted = state == 'completed' and not commands.try('RPUSH', shard.key('done', record.root), id)
    endings.of_members[#endings.of_members + 1] = { id = id, root = record.root, state = state, up = record.up, is_unlisted = is_unlisted }
  elseif not record.is_removed then
    list_ended(state, record, id, now)
  end
  if record.tree then end_root(id, record) end
  if record.wakes then redis.call('ZREM', shard.root .. ':due', 'wake:' .. id) end
  if record.key then end_key(id, record, state, text, key_ttl, now) end
  endings.tell(id, record, state, text)
  return state
end

-- Ends a job that was asked to be cancelled while it ran; its outcome was written then. A root that has
-- undone its tree knows more.
function endings.write_cancelled(id, record, now, key_ttl, text)
  local kept = not record.tree and commands.try('GET', shard.key('result', id))
  return endings.write(id, record, 'cancelled', kept or text or '{"type":"JobCancelled"}', now, key_ttl)
end
