--needs shard commands tables book changes delays endings fields hold journals lines moments placing putting_off records slots trees verdict
--exports settle_rows
-- Settling what did not simply complete: retries, failures, jobs of trees, with a key, or that were cancelled.
settle_rows = {}

-- Reads what the rows are to be settled by; returns those that can be. Writes nothing.
function settle_rows.complete(rows, lost)
  local sound = {}
  for _, row in ipairs(rows) do
    local record = fields.fetch(row.id, row.recorded)
    if record and not record.is_later and record.state == 'waiting' then
      record.id, record.hold, row.record = row.id, row.hold, record
      sound[#sound + 1] = row
    else
      lost[#lost + 1] = row.id
    end
  end
  return sound
end

-- A retry takes a new place at its priority: behind what waits already, or before it if lifo.
local function settle_retry(row, now, retried, delayed)
  local record, began, worker = row.record, Hold.time(row.hold), Hold.worker_of(Hold.token(row.hold))
  records.note_error(row.id, records.add_times(row.text, record.due, began, now, worker, row.attempts == '' and 'put-off' or 'failed'))
  if row.delay > 0 then
    fields.change(row.id, 'state', 'delayed', 'token', false, 'attempts', row.attempts, 'due', now + row.delay, 'began', began, 'first', record.first or began)
    tables.push(delayed, record.queue, now + row.delay, row.id)
  else
    fields.change(row.id, 'token', false, 'attempts', row.attempts, 'first', record.first or began)
    lines.unlisted[row.id] = 'nowhere' -- a row behind may stop its tree
    tables.push(retried, record.queue, record)
  end
end

-- Sleeps until a time, until it is sent a signal, or both. It has got on, so its trouble is forgotten. text: how many
-- signals it knows of, or '' if it listens to none; one that came since wakes it at once.
local function suspend(row, record, now, lists)
  local listens, wakes, began = row.text ~= '' and 1 or nil, row.delay >= 0, Hold.time(row.hold)
  fields.clear(row.id, 'stalls', 'spared', 'alone', 'crowd', 'fatal', 'attempts', 'hears')
  record.stalls, record.spared = nil, nil
  if listens and journals.count_signals(row.id) ~= tonumber(row.text) then -- a failover may have lost some
    fields.change(row.id, 'token', false, 'attempts', 0, 'first', record.first or began)
    lines.unlisted[row.id], row.goes_on = 'nowhere', true
    return tables.push(lists.retried, record.queue, record)
  end
  local given = { 'state', wakes and 'delayed' or 'waiting-children', 'token', false, 'attempts', 0, 'began', began, 'first', record.first or began }
  local function set(field, value) given[#given + 1], given[#given + 2] = field, value end
  if listens then set('listens', 1) end
  if wakes then
    set('due', now + row.delay)
    tables.push(lists.delayed, record.queue, now + row.delay, row.id)
  end
  fields.change(row.id, unpack(given))
end

local function put_back(row, record, lists)
  lines.unlisted[row.id] = 'nowhere'
  record.time, record.place = Hold.time(row.hold), Hold.place(row.hold)
  lists.backs[#lists.backs + 1] = record
end

-- text: the shelf. A job that finds it paused no more goes back to where it was (`shelves.lua`).
local function put_on_shelf(row, record, lists)
  local name = shard.key('limits', row.text)
  if not commands.try('HGET', name, 'paused') then
    if record.token then fields.change(row.id, 'token', false) end
    return put_back(row, record, lists)
  end
  redis.call('HSET', name, 'home', record.queue)
  book.set(record.queue, book.SHELVED)
  fields.change(row.id, 'token', false, 'queue', row.text)
  lines.unlisted[row.id], record.queue = 'nowhere', row.text
  tables.push(lists.retried, row.text, record)
end

local function settle_row(row, record, key_ttl, now, lists)
  if row.state == 'delayed' then
    settle_retry(row, now, lists.retried, lists.delayed)
  elseif row.state == 'waiting' then
    if record.token or record.is_root or row.text == 'begun' then fields.change(row.id, 'token', false, 'began', Hold.time(row.hold)) end
    if row.text == 'begun' and not record.first then fields.change(row.id, 'first', Hold.time(row.hold)) end
    put_back(row, record, lists)
  elseif row.state == 'shelved' then
    put_on_shelf(row, record, lists)
  elseif row.state == 'suspended' then
    suspend(row, record, now, lists)
  elseif row.state == 'parked' then
    fields.change(row.id, 'state', 'parked', 'token', false, 'why', string.sub(row.text, 1, bounds.WHY_BYTES), 'began', Hold.time(row.hold))
    if not moments.add(shard.key('parked', record.queue), { now, row.id }) then putting_off.put_off(row.id, now, record.queue) end
  else
    if row.attempts ~= '' and not (record.cancel and record.cancel ~= record.root) then fields.change(row.id, 'attempts', row.attempts) end
    if row.state == 'cancelled' then
      endings.write_cancelled(row.id, record, now, key_ttl, row.text)
    else
      endings.write(row.id, record, row.state, row.text, now, key_ttl)
    end
  end
end

-- policies: queue -> its row of the call; ready: where given-back and retried jobs are put.
function settle_rows.write(rows, held, policies, ready, now)
  local lists = { delayed = {}, retried = {}, backs = {} }
  for _, row in ipairs(rows) do
    local record, policy = row.record, policies[row.record.queue]
    if policy and policy.keep_completed == 0 and not record.keep then record.keep = '0,' end
    row.state = verdict.decide(row, record, now)
    if row.state then
      if policy then policy[row.state] = (policy[row.state] or 0) + 1 end
      settle_row(row, record, policy and policy.key_ttl or trees.KEY_TTL, now, lists)
      if changes.is_on() then verdict.note(row, record, Hold.worker_of(Hold.token(row.hold)), now) end
    end
    redis.call('HDEL', held, row.id)
    slots.release(row.hold, now)
  end
  delays.place(lists.delayed, now, putting_off.set_apart)
  placing.requeue(lists.retried, ready)
  table.sort(lists.backs, Hold.is_older)
  for _, record in ipairs(lists.backs) do placing.line_up(ready, record.queue, record, true) end
end
