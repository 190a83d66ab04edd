--needs base
--exports SILENT list_pools wake wake_filled
-- Waking who serves a queue.
SILENT = 60000 -- a pool that did not announce itself for so long has no worker

-- The live pools of a queue.
function list_pools(queue, now)
  return try('ZRANGEBYSCORE', key('pools', queue), whole(now - SILENT), '+inf') or {}
end

-- One wake for each of the live pools; a blocked worker of it takes the wake and looks. A queue that nobody serves is noted
-- for people who look (`roster.lua`).
function wake(queue, now, pools)
  pools = pools or list_pools(queue, now)
  if not pools[1] then try('ZADD', root .. ':served', now, queue) end
  for _, pool in ipairs(pools) do
    if try('ZADD', key('wake', pool), now, queue) then redis.call('PEXPIRE', key('wake', pool), 120000) end
  end
end

-- For a call that placed jobs in these queues, which were empty, and then claimed: wakes for what is left.
function wake_filled(queues, now)
  for _, queue in ipairs(queues) do
    if redis.call('EXISTS', key('ready', queue), key('ready+', queue), key('suspects', queue), key('turns', queue)) > 0 then wake(queue, now) end
  end
end
