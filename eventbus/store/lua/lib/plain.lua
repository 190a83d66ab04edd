-- The short way of emissions that ask for nothing but perhaps a reply, into queues without groups
-- or limits. Most emissions are such; a job costs one command here beside its share of the batches.
local PLAIN = 4 -- fields of a row

-- Whether none of the rows is known: one question for all. A repeat goes the long way.
local function are_fresh(count)
  for first = 1, count, 1000 do
    local names = {}
    for i = first, math.min(first + 999, count) do
      names[#names + 1] = job_root .. args[at + 1 + (i - 1) * PLAIN]
    end
    if redis.call('EXISTS', unpack(names)) > 0 then return false end
  end
  return true
end

local function add_plain(queues, count, emitter, now)
  local ready, orders = {}, {}
  for i = 1, count do
    local queue = queues[args[at + 2 + (i - 1) * PLAIN]].name
    orders[queue] = (orders[queue] or 0) + 1
  end
  for queue, fresh in pairs(orders) do
    orders[queue], ready[queue] = reserve(queue, fresh), {}
  end
  now = whole(now)
  for i = 1, count do
    local id, queue, body, has_reply = args[at + 1], queues[args[at + 2]].name, args[at + 3], args[at + 4] == 1
    at = at + PLAIN
    local order, name, list = orders[queue] + 1, job_root .. id, ready[queue]
    orders[queue] = order
    local score = whole(MIDDLE + order)
    local n = #list
    list[n + 1], list[n + 2] = score, id
    if #body > 64 then
      redis.call('SET', key('body', id), body)
      redis.call('HSET', name, 'queue', queue, 'state', 'waiting', 'order', score, 'created', now)
      if has_reply then redis.call('HSET', name, 'reply', emitter) end
    elseif has_reply then
      redis.call(
        'HSET', name, 'queue', queue, 'state', 'waiting', 'order', score, 'created', now, 'body', body, 'reply', emitter
      )
    else
      redis.call('HSET', name, 'queue', queue, 'state', 'waiting', 'order', score, 'created', now, 'body', body)
    end
  end
  place_ready(ready, now)
end
