-- Removing finished jobs: bounded work in each call, oldest first.
local WINDOW = 120000 -- an outcome younger than this may still be asked for by its emitter

local function forget(ids)
  local names = {}
  for _, id in ipairs(ids) do
    for _, kind in ipairs({ 'job', 'body', 'result', 'progress', 'log', 'waiters' }) do
      names[#names + 1] = key(kind, id)
    end
  end
  for first = 1, #names, 1000 do
    redis.call('UNLINK', unpack(names, first, math.min(first + 999, #names)))
  end
end

-- Removes at most `limit` jobs past `count` or `age` (ms) from one finished set;
-- returns how many.
local function retain(state, queue, count, age, limit, now)
  local name = key(state, queue)
  local first = redis.call('ZRANGE', name, 0, 0, 'WITHSCORES')[2]
  if not first or tonumber(first) >= now - WINDOW then return 0 end
  local over = math.min(redis.call('ZCARD', name) - count, limit)
  local too_old = '(' .. whole(now - math.max(age, WINDOW))
  local gone = redis.call('ZRANGEBYSCORE', name, '-inf', too_old, 'LIMIT', 0, limit)
  if over > #gone then
    gone = redis.call('ZRANGEBYSCORE', name, '-inf', '(' .. whole(now - WINDOW), 'LIMIT', 0, over)
  end
  if #gone > 0 then
    call_many('ZREM', name, gone)
    forget(gone)
  end
  return #gone
end
