--needs shard commands idle waking
--exports presence
-- Who serves which queue: a worker announces itself for its pool each 5 s, and the pool for its queues.
-- One that stops says so (`leave.lua`); one that was killed is forgotten once it has been silent for ALIVE.
-- Workers of releases that name themselves nowhere are known as their pool alone, one for each. Needs `ready`.
local ALIVE = 20000

presence = {}

-- A score ahead of the clock is from before a step back of it, and no sign of life.
function presence.list(pool, now)
  return commands.try('ZRANGEBYSCORE', shard.key('serving', pool), commands.whole(now - ALIVE), commands.whole(now + ALIVE)) or {}
end

-- Takes a worker out of a pool, and a pool that has no live worker left out of its queues: nobody wakes it then.
function presence.leave(worker, pool, queues, now)
  redis.call('ZREM', shard.key('serving', pool), worker) -- a full server lets it through
  idle.forget(worker, pool)
  if #presence.list(pool, now) > 0 then return end
  for _, queue in ipairs(queues) do commands.try('ZREM', shard.key('pools', queue), pool) end
end

-- How many live workers a queue has, without `asker`, and when one of its pools was last announced (nil: not
-- lately, or the last one has left). A worker that serves more since a moment ago counts once.
function presence.count(queue, now, asker)
  local pools = commands.try('ZRANGEBYSCORE', shard.key('pools', queue), commands.whole(now - waking.SILENT), '+inf', 'WITHSCORES') or {}
  local seen, count, last = { [asker] = true }, 0, nil
  for i = 1, #pools, 2 do
    local workers = presence.list(pools[i], now)
    if redis.call('EXISTS', shard.key('serving', pools[i])) == 0 then workers = { 'one of ' .. pools[i] } end
    for _, worker in ipairs(workers) do
      if not seen[worker] then
        seen[worker], count = true, count + 1
      end
    end
    last = math.max(last or 0, tonumber(pools[i + 1]))
  end
  return count, last
end
