--needs shard commands
--exports waking
-- Waking who serves a queue.
waking = {}
waking.SILENT = 60000 -- a pool that did not announce itself for so long has no worker

-- The live pools of a queue.
function waking.list_pools(queue, now)
  return commands.try('ZRANGEBYSCORE', shard.key('pools', queue), commands.whole(now - waking.SILENT), '+inf') or {}
end

-- One wake for each of the live pools; a blocked worker of it takes the wake and looks. A queue that nobody serves is noted
-- for people who look (`roster.lua`).
function waking.wake_queue(queue, now, pools)
  pools = pools or waking.list_pools(queue, now)
  if not pools[1] then commands.try('ZADD', shard.root .. ':served', now, queue) end
  for _, pool in ipairs(pools) do
    if commands.try('ZADD', shard.key('wake', pool), now, queue) then redis.call('PEXPIRE', shard.key('wake', pool), bounds.MESSAGES_MS) end
  end
end

-- For a call that placed jobs in these queues, which were empty, and then claimed: wakes for what is left.
function waking.wake_filled(queues, now)
  for _, queue in ipairs(queues) do
    if redis.call('EXISTS', shard.key('ready', queue), shard.key('ready+', queue), shard.key('suspects', queue), shard.key('turns', queue)) > 0 then waking.wake_queue(queue, now) end
  end
end
