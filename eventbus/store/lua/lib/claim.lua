--needs base candidate candidates holds
--exports read_claims remove_claimed write_claims
-- Claiming: choosing and reading come first, then the moves.
-- A move writes the hold and then removes the job from `ready`; nothing is popped, so nothing can be
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

-- At most `want` jobs and `bytes` of bodies, but always one job. One id more than may be
-- taken is asked for, to see whether more is left. choose_other: `choose_unusual`.
function read_claims(queues, want, bytes, suspects, choose_other)
  local plan = { ids = {}, orders = {}, rows = {}, odd = {}, stopped = {}, foreign = {}, named = {}, more = {}, suspects = suspects }
  if want <= 0 then return plan end
  for _, queue in ipairs(queues) do
    queue.ids, queue.orders, queue.records = {}, {}, {}
    if queue.quota > 0 and not read_ids(queue, 0, math.min(queue.quota, want)) then
      plan.foreign[#plan.foreign + 1] = queue.name
    end
  end
  local counts = share(queues, want)
  read_records(queues, counts)
  for i, count in ipairs(counts) do
    local queue, seen = queues[i], 0
    while seen - (queue.left_count or 0) < count and not plan.is_alone and (bytes > 0 or not plan.ids[1]) do
      if not (queue.ids[seen + 1] or read_on(queue)) then break end
      seen = seen + 1
      bytes = bytes - (choose(plan, i, queue, seen) or choose_other(plan, i, queue, seen))
    end
    queue.seen = seen
    -- Where only suspects were seen, which this worker may not claim now, there is no more for it.
    local has_more = not (queue.left_count == seen and not suspects) and (queue.ids[seen + 1] or read_on(queue))
    if has_more or (queue.left and suspects) then plan.more[#plan.more + 1] = i end
  end
  add_bodies(plan, queues)
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

-- Of most jobs no record is written: the hold says it all. name_holder: of those whose record names who holds them.
function write_claims(plan, held, token, now, name_holder)
  if not plan.ids[1] then return end
  local fields = {}
  for i, id in ipairs(plan.ids) do
    if plan.named[id] then name_holder(id, plan.named[id], token, now) end
    fields[2 * i - 1], fields[2 * i] = id, make_hold(token, now, plan.orders[i])
  end
  call_many('HSET', held, fields)
end
