--needs shard commands
--exports ranks
-- The places of jobs of other priorities than 0, in the sorted set `ready+`.
local MIDDLE = 549755813888 -- 2^39: orders rise from here, those of jobs that go to the head fall
local SPAN = 1099511627776 -- 2^40 orders within one priority; 4000 * 2^40 stays below 2^53

ranks = {}

-- Places jobs by their priorities. One counter serves all queues of the shard: an order only has to rise. Returns whether
-- the set was empty; nil where somebody else's value stands there.
function ranks.place(name, jobs)
  local list, count = {}, #jobs
  local order = redis.call('INCRBY', shard.root .. ':order', 2 * count) - 2 * count
  for i, each in ipairs(jobs) do
    local place = order + i
    if each.is_back then place = -(order + 2 * count + 1 - i) elseif each.is_lifo then place = -place end
    list[2 * i - 1], list[2 * i] = commands.whole(each.priority * SPAN + MIDDLE + place), each.id
  end
  if not commands.try_many('ZADD', name, list) then return nil end
  return redis.call('ZCARD', name) == count
end
