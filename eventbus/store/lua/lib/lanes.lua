--needs shard commands book
--exports lanes
-- Lanes: jobs that have a limit key wait apart, in `lane:<queue>:<key>`, each in the order in which it came; so what one
-- key holds back delays no other. A lane is a list as `ready` is, with tombstones. What has another priority than 0 goes
-- to the end too, or before the others if it comes first.
--   turns:<queue>     the keys that have jobs and may have some claimed, the next one first
--   resting:<queue>   those that have jobs and may not: so many of them run, or have started lately (`turns.lua`)
-- What must hold: a key is in one of these exactly while its lane is not empty; the queue has the flag BY_KEY while any is;
-- `#` in `slots:<queue>` is the number of all entries of its lanes.
lanes = {}

-- In the lines of a call (`placing.lua`) a lane has the name of its queue, a NUL and the key.
function lanes.read_name(line)
  return string.match(line, '^(%Z*)%z?(.*)$')
end

function lanes.key_of(queue, lane)
  return shard.key('lane', queue .. ':' .. lane)
end

-- Notes entries that were placed in a lane. was_empty: before them.
function lanes.note_placed(queue, lane, count, was_empty)
  commands.try('HINCRBY', shard.key('slots', queue), '#', count)
  if not was_empty then return end
  commands.try('RPUSH', shard.key('turns', queue), lane)
  book.set(queue, book.BY_KEY)
end

-- Notes entries that were cut from lanes of a queue.
function lanes.note_cut(queue, count)
  if count > 0 and (commands.try('HINCRBY', shard.key('slots', queue), '#', -count) or 1) <= 0 then commands.try('HDEL', shard.key('slots', queue), '#') end
end

function lanes.is_left(queue, lane)
  return redis.call('EXISTS', lanes.key_of(queue, lane)) == 1
end

-- Notes what another call than a claim has cut.
function lanes.cut(queue, lane, count)
  lanes.note_cut(queue, count)
  if lanes.is_left(queue, lane) then return end
  redis.call('LREM', shard.key('turns', queue), 1, lane)
  redis.call('SREM', shard.key('resting', queue), lane)
end

function lanes.count(queue)
  return tonumber(commands.try('HGET', shard.key('slots', queue), '#') or 0) or 0
end

-- Those of the keys that rest have turns again. Returns whether any did.
function lanes.end_rests(queue, names)
  local resting = {}
  for i, does_rest in ipairs(names[1] and commands.try('SMISMEMBER', shard.key('resting', queue), unpack(names)) or {}) do
    if does_rest == 1 then resting[#resting + 1] = names[i] end
  end
  commands.call_many('SREM', shard.key('resting', queue), resting)
  commands.call_many('RPUSH', shard.key('turns', queue), resting)
  return resting[1] ~= nil
end

function lanes.end_all_rests(queue)
  local names = commands.try('SMEMBERS', shard.key('resting', queue)) or {}
  commands.call_many('RPUSH', shard.key('turns', queue), names)
  if names[1] then redis.call('DEL', shard.key('resting', queue)) end
end

-- All keys of the queue that have jobs, in a lasting order.
function lanes.list(queue)
  local all = commands.try('LRANGE', shard.key('turns', queue), 0, -1) or {}
  for _, lane in ipairs(commands.try('SMEMBERS', shard.key('resting', queue)) or {}) do all[#all + 1] = lane end
  table.sort(all)
  return all
end

-- Clears the flag of a queue whose lanes are all empty.
function lanes.close(queue)
  if redis.call('EXISTS', shard.key('turns', queue), shard.key('resting', queue)) == 0 then book.clear(queue, book.BY_KEY) end
end
