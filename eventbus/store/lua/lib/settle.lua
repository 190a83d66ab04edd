-- Settling: first every lease is checked, then the outcomes are written.

-- Where a retried or given-back job goes; one with a damaged order goes to the middle.
local function add_place(id, record)
  local whole_record = read(id) or {}
  record.order, record.lifo = whole_record.order or MIDDLE, whole_record.lifo
end

local function read_settles(count)
  local settles, lost = {}, {}
  for _ = 1, count do
    local row = { id = take(), token = take(), state = take(), attempts = take(), text = take(), delay = take() }
    local record = read_lease(row.id)
    if record and record.token == row.token then
      -- Not active any more but settled with this very token: a repeat, already done.
      if record.state == 'active' then
        row.record = record
        if row.state == 'delayed' or row.state == 'waiting' then add_place(row.id, record) end
        settles[#settles + 1] = row
      end
    else
      lost[#lost + 1] = row.id
    end
  end
  return settles, lost
end

local function note_error(id, text)
  if text == '' then return end
  if not try('RPUSH', key('log', id), text) then return end
  redis.call('LTRIM', key('log', id), -50, -1)
end

-- A retry takes a new place at its priority: behind what waits already, or before it if lifo.
local function settle_retry(row, now, retried, delayed)
  note_error(row.id, row.text)
  if row.delay > 0 then
    redis.call('HSET', key('job', row.id), 'state', 'delayed', 'attempts', row.attempts, 'due', now + row.delay)
    delayed[#delayed + 1] = now + row.delay
    delayed[#delayed + 1] = row.id
  else
    redis.call('HSET', key('job', row.id), 'state', 'waiting', 'attempts', row.attempts)
    push(retried, row.record.queue, row)
  end
end

local function place_again(retried, ready)
  for queue, rows in pairs(retried) do
    local order = reserve(queue, #rows)
    for i, row in ipairs(rows) do
      local score = score_of(priority_of(tonumber(row.record.order)), order + i, row.record.lifo)
      redis.call('HSET', key('job', row.id), 'order', score)
      push(ready, queue, score, row.id)
    end
  end
end

-- policies: queue -> its row of the call; ready: where given-back and retried jobs are put.
-- Returns whether `delayed` changed.
local function write_settles(settles, policies, ready, now)
  local ended, delayed, retried = {}, {}, {}
  for _, row in ipairs(settles) do
    local record = row.record
    local policy = policies[record.queue]
    if policy then policy[row.state] = true end
    ended[#ended + 1] = row.id
    if row.state == 'delayed' then
      settle_retry(row, now, retried, delayed)
    elseif row.state == 'waiting' then
      redis.call('HSET', key('job', row.id), 'state', 'waiting')
      push(ready, record.queue, record.order, row.id)
    elseif row.state == 'parked' then
      redis.call('HSET', key('job', row.id), 'state', 'parked', 'why', string.sub(row.text, 1, FIELD))
      redis.call('ZADD', key('parked', record.queue), now, row.id)
    else
      if row.attempts ~= '' then redis.call('HSET', job_root .. row.id, 'attempts', row.attempts) end
      finish(row.id, record, row.state, row.text, now, policy and policy.key_ttl or 86400000)
    end
  end
  call_many('ZREM', root .. ':active', ended)
  call_many('ZADD', root .. ':delayed', delayed)
  place_again(retried, ready)
  return #delayed > 0
end
