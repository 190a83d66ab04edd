--needs base ready refusing
--exports are_fresh add_plain
-- The short way of emissions that ask for nothing but perhaps a reply, into queues without groups
-- or limits. Most emissions are such; a job costs one command here beside its share of the batches.
local PLAIN = 4 -- fields of a row

-- Whether none of the rows is known: one question for all. A repeat goes the long way.
function are_fresh(count)
  for first = 1, count, 1000 do
    local names = {}
    for i = first, math.min(first + 999, count) do
      names[#names + 1] = job_root .. args[at + 1 + (i - 1) * PLAIN]
    end
    if redis.call('EXISTS', unpack(names)) > 0 then return false end
  end
  return true
end

-- Where a queue cannot be written, its rows alone are refused: nothing of them stays.
function add_plain(queues, count, emitter, now, answer)
  local ready, order, first = {}, MIDDLE + reserve(count), at
  now = whole(now)
  for i = 1, count do
    local id, queue, body, has_reply = args[at + 1], queues[args[at + 2]].name, args[at + 3], args[at + 4] == 1
    at = at + PLAIN
    local name, score, list = job_root .. id, whole(order + i), ready[queue]
    if not list then
      list = {}
      ready[queue] = list
    end
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
  local refused, refuse = begin_refusing()
  place_ready(ready, now, refuse)
  for i = 1, next(refused) and count or 0 do
    local id = args[first + 1 + (i - 1) * PLAIN]
    if refused[id] then tell_refused(answer, i - 1, id, refused[id]) end
  end
end
