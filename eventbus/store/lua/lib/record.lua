-- Reading job records that may be missing, foreign or damaged, without raising.
local function is_number(value)
  return not value or tonumber(value) ~= nil
end

-- What a claim, a promotion or a rescue must know. Absent fields are false.
-- Returns the record, or nil and what is wrong with it.
local function read(id)
  local v = redis.pcall(
    'HMGET', job_root .. id, 'state', 'queue', 'order', 'attempts', 'stalls', 'created', 'due', 'body', 'v', 'lifo'
  )
  if v.err then return nil, 'not a hash' end
  local state, queue, order = v[1], v[2], v[3]
  if not state then return nil, 'missing' end
  if not queue then return nil, 'no queue' end
  if not tonumber(order) then return nil, 'bad order' end
  if not (is_number(v[4]) and is_number(v[5])) then return nil, 'bad attempts or stalls' end
  if not (is_number(v[6]) and is_number(v[7])) then return nil, 'bad created or due' end
  return {
    state = state, queue = queue, order = order, attempts = v[4], stalls = v[5],
    created = v[6], due = v[7], body = v[8], v = v[9], lifo = v[10],
  }
end

-- What settling must know, or nil: the lease, and who is to be told.
local function read_lease(id)
  local v = redis.pcall('HMGET', job_root .. id, 'state', 'token', 'queue', 'reply', 'joined', 'key')
  if v.err or not v[1] or not v[3] then return nil end
  return { state = v[1], token = v[2], queue = v[3], reply = v[4], joined = v[5], key = v[6] }
end

-- Sets a damaged job apart as failed: what stood there is kept under `raw`, a week.
local function quarantine(id, queue, why, now)
  local name = key('job', id)
  local record = { queue = queue }
  if redis.call('EXISTS', name) == 1 then
    if redis.call('TYPE', name).ok == 'hash' then
      record.reply = redis.call('HGET', name, 'reply') or nil
    else
      redis.call('RENAME', name, key('raw', id))
      redis.call('PEXPIRE', key('raw', id), 604800000)
    end
  end
  redis.call('HSET', name, 'queue', queue)
  local text = cjson.encode({
    type = 'StoreCorrupt',
    message = 'the record of job ' .. id .. ' cannot be read: ' .. why,
    attempts = 0,
  })
  finish(id, record, 'failed', text, now, 0)
end
