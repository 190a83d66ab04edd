--needs base format
--exports MIDDLE gone SILENT reserve score_of requeue wake without_gone place_ready wake_filled
-- Into `ready`, and waking whoever serves the queue.
MIDDLE = 549755813888 -- 2^39: orders rise from here, those of lifo jobs fall
local SPAN = 1099511627776 -- 2^40 orders within one priority; 4000 * 2^40 stays below 2^53
gone = {} -- jobs that a stop took out while this call was about to put them into ready
SILENT = 60000 -- a pool that did not announce itself for so long has no worker

-- Reserves `count` orders and returns the one before the first. One counter serves all queues of
-- the shard: an order only has to rise, and a call with many queues asks once.
function reserve(count)
  return redis.call('INCRBY', root .. ':order', count) - count
end

function score_of(priority, order, lifo)
  if lifo then order = -order end
  return priority * SPAN + MIDDLE + order
end

-- Puts jobs into `ready` at a new place: the end of their priority, or its head if lifo.
-- records: queue -> list of what was read of each job, with its id; one that waits already keeps its record.
function requeue(records, ready)
  for queue, list in pairs(records) do
    local order = reserve(#list)
    for i, record in ipairs(list) do
      if not gone[record.id] then
        local score = score_of(tonumber(record.priority) or 0, order + i, record.lifo)
        if record.state ~= 'waiting' then set_waiting(record.id) end
        push(ready, queue, score, record.id)
      end
    end
  end
end

-- One wake for each live pool; a blocked worker of it takes the wake and looks.
function wake(queue, now)
  for _, pool in ipairs(try('ZRANGEBYSCORE', key('pools', queue), whole(now - SILENT), '+inf') or {}) do
    if try('ZADD', key('wake', pool), now, queue) then redis.call('PEXPIRE', key('wake', pool), 120000) end
  end
end

-- A flat list of score, job without what is gone.
function without_gone(list)
  if not next(gone) then return list end
  local left = {}
  for i = 1, #list, 2 do
    if not gone[list[i + 1]] then left[#left + 1], left[#left + 2] = list[i], list[i + 1] end
  end
  return left
end

-- members: queue -> flat list of score, job. Wakes queues that had nothing waiting:
-- where something waits already, the worker that leaves it there re-arms the wake. A call that
-- claims next wakes later, by `wake_filled` and for what it leaves: then the queues are returned.
-- refuse: called with job, now, queue, key where somebody else's value stands in the place of the queue.
function place_ready(members, now, refuse, is_claiming)
  local queues, names, filled = {}, {}, {}
  for queue in pairs(members) do
    queues[#queues + 1], names[#names + 1] = queue, key('ready', queue)
  end
  if #names == 0 then return filled end
  -- Mostly all have something waiting, or the one queue has not: one question tells.
  local known = #names <= 1000 and redis.call('EXISTS', unpack(names))
  for i, queue in ipairs(queues) do
    local was_empty = known == 0 or known ~= #names and redis.call('EXISTS', names[i]) == 0
    local list = without_gone(members[queue])
    if not try_many('ZADD', names[i], list) then
      for j = 2, #list, 2 do refuse(list[j], now, queue, names[i]) end
    elseif was_empty then
      filled[#filled + 1] = queue
    end
  end
  if is_claiming then return filled end
  for _, queue in ipairs(filled) do wake(queue, now) end
end

function wake_filled(queues, now)
  for _, queue in ipairs(queues) do
    if redis.call('EXISTS', key('ready', queue)) == 1 then wake(queue, now) end
  end
end
