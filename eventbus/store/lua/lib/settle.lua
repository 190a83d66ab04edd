-- Settling: first every lease is checked, then the outcomes are written.
-- Most jobs simply complete: nothing to count, nobody but their emitter to tell, a small result.
-- These go a short way of their own, which is what a busy worker's turn mostly does.

-- Where a retried or given-back job goes; one with a damaged order goes to the middle.
local function add_place(id, record)
  local whole_record = read(id) or {}
  record.order, record.lifo = whole_record.order or MIDDLE, whole_record.lifo
end

-- settles.simple: flat list of job, queue, emitter or false, result. settles.rows: all others.
local function read_settles(count)
  local settles, lost = { simple = {}, rows = {} }, {}
  local simple, n = settles.simple, 0
  for _ = 1, count do
    local id, token, state, attempts, text = args[at + 1], args[at + 2], args[at + 3], args[at + 4], args[at + 5]
    at = at + 6
    local v = redis.pcall('HMGET', job_root .. id, 'token', 'state', 'queue', 'reply', 'joined', 'key', 'cancel', 'root', 'tree')
    if v[1] ~= token or not v[2] or not v[3] then
      lost[#lost + 1] = id
    elseif v[2] ~= 'active' then -- settled with this very token: a repeat, already done
    elseif state == 'completed' and attempts == '' and #text <= FIELD and not (v[5] or v[6] or v[7] or v[8] or v[9]) then
      simple[n + 1], simple[n + 2], simple[n + 3], simple[n + 4] = id, v[3], v[4], text
      n = n + 4
    else
      local record = { queue = v[3], reply = v[4], joined = v[5], key = v[6], cancel = v[7], root = v[8] }
      if v[9] or v[8] and state ~= 'completed' then record = read_lease(id) or record end
      local row = { id = id, state = state, attempts = attempts, text = text, delay = args[at], record = record }
      if state == 'delayed' or state == 'waiting' then add_place(id, record) end
      settles.rows[#settles.rows + 1] = row
    end
  end
  return settles, lost
end

local function write_simple(simple, policies, ended, now)
  for i = 1, #simple, 4 do
    local id, queue, text = simple[i], simple[i + 1], simple[i + 3]
    local policy = policies[queue]
    if policy then policy.completed = (policy.completed or 0) + 1 end
    ended[#ended + 1] = id
    redis.call('HSET', job_root .. id, 'state', 'completed', 'ended', now, 'result', text)
    push(ends, 'completed:' .. queue, now, id)
    if simple[i + 2] then reply(simple[i + 2], id, 'completed', text) end
  end
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
    row.record.id = row.id
    push(retried, row.record.queue, row.record)
  end
end

local function settle_row(row, record, key_ttl, now, lists)
  if row.state == 'delayed' then
    settle_retry(row, now, lists.retried, lists.delayed)
  elseif row.state == 'waiting' then
    redis.call('HSET', key('job', row.id), 'state', 'waiting')
    push(lists.ready, record.queue, record.order, row.id)
  elseif row.state == 'parked' then
    redis.call('HSET', key('job', row.id), 'state', 'parked', 'why', string.sub(row.text, 1, FIELD))
    redis.call('ZADD', key('parked', record.queue), now, row.id)
  else
    if row.attempts ~= '' and not record.cancel then redis.call('HSET', job_root .. row.id, 'attempts', row.attempts) end
    if row.state == 'cancelled' then
      finish_cancelled(row.id, record, now, key_ttl, row.text)
    else
      finish(row.id, record, row.state, row.text, now, key_ttl)
    end
  end
end

-- policies: queue -> its row of the call; ready: where given-back and retried jobs are put.
-- Returns whether `delayed` changed.
local function write_settles(settles, policies, ready, now)
  local ended, lists = {}, { delayed = {}, retried = {}, ready = ready }
  write_simple(settles.simple, policies, ended, whole(now))
  for _, row in ipairs(settles.rows) do
    local record = row.record
    local policy = policies[record.queue]
    row.state = decide_in_tree(row, record, now)
    ended[#ended + 1] = row.id
    if row.state then
      if policy then policy[row.state] = (policy[row.state] or 0) + 1 end
      settle_row(row, record, policy and policy.key_ttl or KEY_TTL, now, lists)
    end
  end
  call_many('ZREM', root .. ':active', ended)
  call_many('ZADD', root .. ':delayed', without_gone(lists.delayed))
  requeue(lists.retried, ready)
  return #lists.delayed > 0
end
