--needs base candidate holds
--exports read_claims remove_claimed write_claims
-- Claiming: choosing and reading come first, then the moves.
-- A move writes the hold and then removes the job from `ready`; nothing is popped, so nothing can be
-- lost between two commands.

local AHEAD = 200 -- so many ids of a queue are read at most to get past suspects

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

-- Suspects that are left must not hold up what waits behind them: reads on, up to a bound.
-- Returns the next id, if there is one.
local function read_on(queue)
  local seen = #queue.ids
  if not queue.left or seen >= AHEAD then return nil end
  local ids = redis.call('ZRANGE', key('ready', queue.name), seen, seen + 49)
  for _, id in ipairs(ids) do queue.ids[#queue.ids + 1] = id end
  return ids[1]
end

-- At most `want` jobs and `bytes` of bodies, but always one job. One id more than may be
-- taken is asked for, to see whether more is left.
function read_claims(queues, want, bytes, suspects)
  local plan = { ids = {}, rows = {}, odd = {}, stopped = {}, foreign = {}, members = {}, more = {}, suspects = suspects }
  if want <= 0 then return plan end
  for _, queue in ipairs(queues) do
    queue.ids = {}
    if queue.quota > 0 then
      queue.ids = try('ZRANGE', key('ready', queue.name), 0, math.min(queue.quota, want))
      if not queue.ids then
        queue.ids, plan.foreign[#plan.foreign + 1] = {}, queue.name
      end
    end
  end
  for i, count in ipairs(share(queues, want)) do
    local queue, seen = queues[i], 0
    while seen - (queue.left_count or 0) < count and not plan.is_alone and (bytes > 0 or not plan.ids[1]) do
      if not (queue.ids[seen + 1] or read_on(queue)) then break end
      seen = seen + 1
      bytes = bytes - choose(plan, i, queue, queue.ids[seen])
    end
    queue.seen = seen
    -- Where only suspects were seen, which this worker may not claim now, there is no more for it.
    local has_more = not (queue.left_count == seen and not suspects) and (queue.ids[seen + 1] or read_on(queue))
    if has_more or (queue.left and suspects) then plan.more[#plan.more + 1] = i end
  end
  return plan
end

-- Removes what was seen and not left from `ready`: mostly its first members, by their rank.
local function remove_seen(queue)
  local name = key('ready', queue.name)
  if not queue.left then
    redis.call('ZREMRANGEBYRANK', name, 0, queue.seen - 1)
    return
  end
  local gone = {}
  for i = 1, queue.seen do
    if not queue.left[queue.ids[i]] then gone[#gone + 1] = queue.ids[i] end
  end
  call_many('ZREM', name, gone)
end

function remove_claimed(queues)
  for _, queue in ipairs(queues) do
    if queue.seen and queue.seen > 0 then remove_seen(queue) end
  end
end

-- Of most jobs no record is written: the hold says it all.
function write_claims(plan, held, token, now)
  if not plan.ids[1] then return end
  local hold, fields = make_hold(token, now), {}
  for i, id in ipairs(plan.ids) do
    if plan.members[id] == 'knows' then
      redis.call('HSET', job_root .. id, 'token', token, 'claimed', now, 'knows', now)
    elseif plan.members[id] then
      redis.call('HSET', job_root .. id, 'token', token, 'claimed', now)
    end
    fields[2 * i - 1], fields[2 * i] = id, hold
  end
  call_many('HSET', held, fields)
end
