--needs shard commands fields moments placing
--exports delays
-- Delayed jobs: each queue has a set of its own, so that they are counted and looked at by queue.
-- What must hold: a queue with delayed jobs stands in `due`, not later than its first one. Its entry may be early: the
-- turn that finds nothing due there moves it.
local AGAIN = 60000 -- when a job is tried again whose queue cannot be written

delays = {}

-- Notes in `due` when the first delayed job of the queue is due, if it has any.
function delays.note(queue)
  local first = (commands.try('ZRANGE', shard.key('delayed', queue), 0, 0, 'WITHSCORES') or {})[2]
  if first then redis.call('ZADD', shard.root .. ':due', 'LT', commands.whole(math.floor(first)), 'q:' .. queue) end
end

-- A queue whose last delayed job was taken out stands in `due` no more.
function delays.forget(queue)
  if redis.call('EXISTS', shard.key('delayed', queue)) == 0 then redis.call('ZREM', shard.root .. ':due', 'q:' .. queue) end
end

-- lists: queue -> flat list of due, job.
-- refuse: called with job, now, queue, key where somebody else's value stands in the place of the set.
function delays.place(lists, now, refuse)
  for queue, all in pairs(lists) do
    local list, earliest = placing.without_gone(all), math.huge
    for i = 1, #list, 2 do earliest = math.min(earliest, tonumber(list[i])) end
    if #list > 0 and moments.add(shard.key('delayed', queue), list) then
      local is_first = redis.call('ZADD', shard.root .. ':due', 'LT', earliest, 'q:' .. queue) == 1
      if is_first then commands.try('ZADD', shard.root .. ':served', now, queue) end -- nobody may serve it (`roster.lua`)
    else
      for i = 2, #list, 2 do refuse(list[i], now, queue, shard.key('delayed', queue)) end
    end
  end
end

-- Delays a job whose queue cannot be written: it comes back each minute until it can, and is seen meanwhile.
function delays.again(id, now, queue, refuse)
  fields.change(id, 'state', 'delayed', 'token', false, 'due', commands.whole(now + AGAIN))
  delays.place({ [queue] = { now + AGAIN, id } }, now, refuse)
end
