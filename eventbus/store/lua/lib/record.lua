--needs base finish holds outcomes
--exports read read_lease note_error is_placed quarantine
-- Reading job records that may be missing, foreign or damaged, without raising.

-- What a claim, a promotion or a rescue must know. Absent fields are false.
-- Returns the record; or nil, what is wrong with it, and its queue if that can be read.
function read(id)
  local v = redis.pcall(
    'HMGET', job_root .. id, 'state', 'queue', 'order', 'attempts', 'stalls', 'created', 'due', 'body', 'v', 'lifo'
  )
  if v.err then return nil, 'not a hash' end
  local state, queue, order = v[1], v[2], v[3]
  if not queue or queue == '' then return nil, state and 'no queue' or 'missing' end
  if not state then return nil, 'no state', queue end
  if not order or not is_number(order) then return nil, 'bad order', queue end
  if not (is_number(v[4]) and is_number(v[5])) then return nil, 'bad attempts or stalls', queue end
  if not (is_number(v[6]) and is_number(v[7])) then return nil, 'bad created or due', queue end
  return {
    state = state, queue = queue, order = order, attempts = v[4], stalls = v[5],
    created = v[6], due = v[7], body = v[8], v = v[9], lifo = v[10],
  }
end

-- What settling must know, or nil: the lease, and who is to be told. A job whose record names its holder is `active`
-- while that one holds it; of others only a search tells (`find_hold`).
function read_lease(id)
  local v = redis.pcall(
    'HMGET', job_root .. id, 'state', 'token', 'queue', 'reply', 'joined', 'key', 'cancel',
    'root', 'up', 'tree', 'on', 'stop', 'stopper', 'acked', 'knows'
  )
  if v.err or not v[1] or not v[3] then return nil end
  local state = v[1]
  if state == 'waiting' and v[2] and read_hold(id, v[2]) then state = 'active' end
  return {
    state = state, token = v[2], queue = v[3], reply = v[4], joined = v[5], key = v[6], cancel = v[7],
    root = v[8], up = v[9], tree = v[10], on = v[11], stop = v[12], stopper = v[13], acked = v[14], knows = v[15],
  }
end

-- Appends the end of an attempt or of a lease to the job's log.
function note_error(id, text)
  if text == '' then return end
  if not try('RPUSH', key('log', id), text) then return end
  redis.call('LTRIM', key('log', id), -50, -1)
end

-- Whether a job found where its state does not belong also stands where it does: then the
-- other entry is a stray. If not, the job is lost unless somebody is told.
function is_placed(id, record)
  local place = record.state == 'waiting' and 'ready' or record.state
  return try('ZSCORE', key(place, record.queue), id) or record.state == 'waiting' and find_hold(id)
end

-- Sets a damaged job apart as failed: what stood there is kept under `raw`. Where no queue
-- is known it is listed under `unknown`, which nobody sweeps; so that goes by itself.
function quarantine(id, queue, why, now)
  local name, raw = key('job', id), key('raw', id)
  local record = { queue = queue or 'unknown' }
  if redis.call('EXISTS', name) == 1 then
    local kept = try('HMGET', name, 'reply', 'joined', 'key', 'root', 'up', 'tree') or {}
    record.reply, record.joined, record.key = kept[1], kept[2], kept[3]
    record.root, record.up, record.tree = kept[4], kept[5], kept[6]
    redis.call('RENAME', name, raw)
    redis.call('PEXPIRE', raw, KEPT)
  end
  local dependent = not record.root and try('LINDEX', key('feeds', id), 0)
  if dependent then -- who needs it knows which tree it was part of
    local kept = try('HMGET', job_root .. dependent, 'tree', 'root') or {}
    record.root = kept[1] and dependent or kept[2]
  end
  redis.call('HSET', name, 'queue', record.queue)
  if record.root then redis.call('HSET', name, 'root', record.root) end -- it goes when its tree does
  if record.tree then redis.call('HSET', name, 'tree', 1, 'stop', 'failed') end -- its members do not start
  local text = cjson.encode({
    type = 'StoreCorrupt',
    -- What it quotes may be no UTF-8, and would make its whole reply unreadable.
    message = 'the record of job ' .. id .. ' cannot be read: ' .. string.gsub(why, '[^\32-\126]', '?'),
    attempts = 0,
  })
  finish(id, record, 'failed', text, now, 0)
  if queue or record.root then return end
  redis.call('ZADD', key('failed', 'unknown'), now, id)
  for _, each in ipairs({ name, key('result', id), key('body', id), key('failed', 'unknown') }) do
    redis.call('PEXPIRE', each, KEPT)
  end
  for _, each in ipairs(try('SMEMBERS', root .. ':rooted') or {}) do try('ZREM', key('roots', each), id) end
  if redis.call('EXISTS', key('members', id)) == 1 then redis.call('ZADD', root .. ':due', now + KEPT, 'forget:' .. id) end
end
