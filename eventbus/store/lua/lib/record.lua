-- Reading job records that may be missing, foreign or damaged, without raising.
local FIELDS = {
  'queue', 'state', 'order', 'attempts', 'stalls', 'token', 'reply', 'joined', 'key', 'created', 'due', 'lifo', 'body', 'v',
}

-- Returns the record as a table, or nil and what is wrong with it.
local function read(id)
  local values = redis.pcall('HMGET', key('job', id), unpack(FIELDS))
  if values.err then return nil, 'not a hash' end
  local record = {}
  for i, field in ipairs(FIELDS) do
    if values[i] then record[field] = values[i] end
  end
  if not record.state then return nil, 'missing' end
  if not record.queue then return nil, 'no queue' end
  for _, field in ipairs({ 'order', 'attempts', 'stalls', 'created', 'due' }) do
    if record[field] and not tonumber(record[field]) then return nil, 'bad ' .. field end
  end
  return record
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
