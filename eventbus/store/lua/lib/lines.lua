--needs shard commands entry lanes
--exports lines
-- Taking jobs out of where they wait, and how many wait there.
--   ready:<queue>     list, priority 0: the next one first; at its head what is lifo or was given back
--   ready+:<queue>    sorted set: all other priorities
--   lane:<queue>:<key>  lists, of jobs that have a limit key (`lanes.lua`)
--   suspects:<queue>  list: jobs that stalled so often that they may kill whatever process runs them
-- `dead` counts the tombstones in the lists of each queue, so that the number of waiting jobs is exact.
local SUSPECT = 3 -- stalls that such a job is blamed for

lines = {}
-- Jobs that wait and have no entry now, for this call has cut it, or is going to place them: job -> where, or 'nowhere'.
lines.unlisted = {}

-- For how many of its stalls a job is to blame (`blame.lua`).
function lines.blames(record)
  return (tonumber(record.stalls) or 0) - (tonumber(record.spared) or 0)
end

function lines.is_suspect(record)
  return lines.blames(record) >= SUSPECT
end

-- Takes a waiting job out of where it waits. Returns whether a tombstone is left there: then its next entry must be another.
function lines.leave(id, record)
  if lines.unlisted[id] then
    lines.unlisted[id] = 'nowhere'
    return false
  end
  local queue, entry = record.queue, Entry.of(id, record)
  if record.limit and not lines.is_suspect(record) then -- a lane is cut by claims alone
    commands.try('HINCRBY', shard.root .. ':dead', queue, 1)
    return true
  end
  if not lines.is_suspect(record) and (tonumber(record.priority) or 0) ~= 0 then
    commands.try('ZREM', shard.key('ready+', queue), id)
    return false
  end
  local name = lines.is_suspect(record) and shard.key('suspects', queue) or shard.key('ready', queue)
  if commands.try('LINDEX', name, -1) == entry then
    redis.call('RPOP', name)
  elseif commands.try('LINDEX', name, 0) == entry then
    redis.call('LPOP', name)
  else
    commands.try('HINCRBY', shard.root .. ':dead', queue, 1)
    return true
  end
  return false
end

function lines.count_dead(queue)
  return tonumber(commands.try('HGET', shard.root .. ':dead', queue) or 0) or 0
end

-- Counts tombstones no more that were dropped.
function lines.drop_dead(queue, count)
  if count > 0 and (commands.try('HINCRBY', shard.root .. ':dead', queue, -count) or 1) <= 0 then redis.call('HDEL', shard.root .. ':dead', queue) end
end

function lines.count(queue)
  local listed = (commands.try('LLEN', shard.key('ready', queue)) or 0) + (commands.try('LLEN', shard.key('suspects', queue)) or 0) + lanes.count(queue)
  return math.max(0, listed - lines.count_dead(queue)) + (commands.try('ZCARD', shard.key('ready+', queue)) or 0)
end
