--needs base delays finish outcomes putting_off ready record trees verdict
--exports complete_rows write_rows
-- Settling what did not simply complete: retries, failures, jobs of trees, with a key, or that were cancelled.

-- Where a retried or given-back job goes; one with a damaged order goes to the middle.
local function add_place(id, record)
  local whole_record = read(id) or {}
  record.order, record.lifo = whole_record.order or MIDDLE, whole_record.lifo
end

-- Reads what the rows need beside what their leases were checked by. Writes nothing.
function complete_rows(rows)
  for _, row in ipairs(rows) do
    local record = row.record
    -- A member that was cancelled does not complete, whatever it says: its dependents need its policy for them.
    if record.tree or record.root and (record.cancel or row.state ~= 'completed') then
      row.record = read_lease(row.id) or record
    end
    if row.state == 'delayed' or row.state == 'waiting' then add_place(row.id, row.record) end
  end
end

-- A retry takes a new place at its priority: behind what waits already, or before it if lifo.
local function settle_retry(row, now, retried, delayed)
  note_error(row.id, row.text)
  if row.delay > 0 then
    redis.call('HSET', key('job', row.id), 'state', 'delayed', 'attempts', row.attempts, 'due', now + row.delay)
    push(delayed, row.record.queue, now + row.delay, row.id)
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
    if not try('ZADD', key('parked', record.queue), now, row.id) then put_off(row.id, now, record.queue) end
  else
    local is_called_off = record.cancel and record.cancel ~= record.root -- by itself; its outcome is no failure
    if row.attempts ~= '' and not is_called_off then redis.call('HSET', job_root .. row.id, 'attempts', row.attempts) end
    if row.state == 'cancelled' then
      finish_cancelled(row.id, record, now, key_ttl, row.text)
    else
      finish(row.id, record, row.state, row.text, now, key_ttl)
    end
  end
end

-- policies: queue -> its row of the call; ready: where given-back and retried jobs are put.
function write_rows(rows, held, policies, ready, now)
  local lists = { delayed = {}, retried = {}, ready = ready }
  for _, row in ipairs(rows) do
    local record = row.record
    local policy = policies[record.queue]
    row.state = decide_in_tree(row, record, now)
    if row.state then
      if policy then policy[row.state] = (policy[row.state] or 0) + 1 end
      settle_row(row, record, policy and policy.key_ttl or KEY_TTL, now, lists)
    end
    redis.call('HDEL', held, row.id)
  end
  place_delayed(lists.delayed, now, set_apart)
  requeue(lists.retried, ready)
end
