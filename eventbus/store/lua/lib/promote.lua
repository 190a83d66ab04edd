-- Due delayed jobs: read first, then moved to ready with a new order.

-- The earliest due time, ms, or -1: of a delayed job, of a tree's deadline, or now for a chore that is left.
local function next_due()
  local job = redis.call('ZRANGE', root .. ':delayed', 0, 0, 'WITHSCORES')[2]
  local tree = redis.call('ZRANGE', root .. ':deadlines', 0, 0, 'WITHSCORES')[2]
  local due = math.min(tonumber(job or math.huge), tonumber(tree or math.huge))
  return due < math.huge and due or -1
end

local function read_due(now, limit)
  local due = { ids = {}, by_queue = {}, bad = {}, next = next_due() }
  due.is_due = due.next >= 0 and due.next <= now
  if not due.is_due then return due end
  local ids = redis.call('ZRANGEBYSCORE', root .. ':delayed', '-inf', whole(now), 'LIMIT', 0, limit)
  due.ids = ids
  for _, id in ipairs(ids) do
    local record, why, queue = read(id)
    if record and record.state ~= 'delayed' and not is_placed(id, record) then
      record, why, queue = nil, 'delayed in the state ' .. record.state, record.queue
    end
    if not record then
      due.bad[#due.bad + 1] = { id = id, queue = queue, why = why }
    elseif record.state == 'delayed' then
      record.id = id
      push(due.by_queue, record.queue, record)
    end
  end
  return due
end

local function write_due(due, ready, now)
  call_many('ZREM', root .. ':delayed', due.ids)
  for _, bad in ipairs(due.bad) do quarantine(bad.id, bad.queue, bad.why, now) end
  requeue(due.by_queue, ready)
end
