-- Claiming: choosing and reading come first, then the moves.
-- A move adds to active and removes from ready; nothing is popped, so nothing can be
-- lost between two commands.

-- How many ids each queue gives: equal shares first, then what is left in order.
local function share(queues, want)
  local takes, left = {}, want
  local asked = 0
  for i, queue in ipairs(queues) do
    takes[i] = 0
    if queue.quota > 0 then asked = asked + 1 end
  end
  for round = 1, 2 do
    local part = round == 1 and math.ceil(want / math.max(asked, 1)) or want
    for i, queue in ipairs(queues) do
      local more = math.min(part, queue.quota - takes[i], #queue.ids - takes[i], left)
      if more > 0 then
        takes[i] = takes[i] + more
        left = left - more
      end
    end
  end
  return takes
end

local function read_body(id, record)
  if record.body then return record.body end
  return try('GET', key('body', id)) or nil
end

-- Reads one candidate into `plan`; returns its size in bytes.
local function choose(plan, index, queue, id)
  plan.taken[#plan.taken + 1] = { queue = queue.name, id = id }
  local record, why = read(id)
  local body = record and read_body(id, record)
  if record and not body then why = 'no body' end
  if record and record.queue ~= queue.name then why = 'belongs to queue ' .. record.queue end
  if why then
    plan.bad[#plan.bad + 1] = { id = id, queue = queue.name, why = why }
  elseif record.state ~= 'waiting' then
    if not is_placed(id, record) then
      plan.bad[#plan.bad + 1] = { id = id, queue = queue.name, why = 'waits in the state ' .. record.state }
    end -- else a stray entry, which is only removed
  elseif record.v then
    plan.foreign[#plan.foreign + 1] = { id = id, queue = queue.name }
  else
    plan.jobs[#plan.jobs + 1] = { id = id, index = index, record = record, body = body }
    return #body
  end
  return 0
end

-- At most `want` jobs and `bytes` of bodies, but always one job. One id more than may be
-- taken is asked for, to see whether more is left.
local function read_claims(queues, want, bytes)
  local plan = { taken = {}, jobs = {}, bad = {}, foreign = {}, more = {} }
  if want <= 0 then return plan end
  for _, queue in ipairs(queues) do
    queue.ids = {}
    if queue.quota > 0 then
      queue.ids = redis.call('ZRANGE', key('ready', queue.name), 0, math.min(queue.quota, want))
    end
  end
  for i, count in ipairs(share(queues, want)) do
    local queue, took = queues[i], 0
    while took < count and (bytes > 0 or #plan.jobs == 0) do
      took = took + 1
      bytes = bytes - choose(plan, i, queue, queue.ids[took])
    end
    if #queue.ids > took then plan.more[#plan.more + 1] = i end
  end
  return plan
end

local function write_claims(plan, token, lease_end, now)
  local gone, active = {}, {}
  for _, each in ipairs(plan.taken) do push(gone, each.queue, each.id) end
  for queue, ids in pairs(gone) do call_many('ZREM', key('ready', queue), ids) end
  for _, bad in ipairs(plan.bad) do quarantine(bad.id, bad.queue, bad.why, now) end
  for _, each in ipairs(plan.foreign) do
    redis.call('HSET', key('job', each.id), 'state', 'parked')
    redis.call('ZADD', key('parked', each.queue), now, each.id)
  end
  for _, job in ipairs(plan.jobs) do
    redis.call('HSET', job_root .. job.id, 'state', 'active', 'token', token)
    active[#active + 1] = lease_end
    active[#active + 1] = job.id
  end
  call_many('ZADD', root .. ':active', active)
end
