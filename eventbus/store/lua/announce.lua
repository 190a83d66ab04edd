-- A worker says which queues its pool serves; groups come to exist by it.
-- Takes parked jobs back when asked to: a worker that cannot run them parks them again.
-- KEYS: the shard's root
-- head: now pool unpark queues
-- queues: queue base group
-- answer: how many jobs were taken back
--include base
--include ready
--include record
--include groups

local SILENCE = 120000
local now = read_now(take())
local pool, unpark, count = take(), take() == 1, take()
local queues, back, taken = {}, {}, 0
for i = 1, count do
  local queue = { name = take(), base = take(), group = take() }
  queue.parked = unpark and redis.call('ZRANGE', key('parked', queue.name), 0, 99) or {}
  for _, id in ipairs(queue.parked) do
    local record = read(id)
    if record and record.state == 'parked' and not record.v then
      push(back, queue.name, record.order, id)
      taken = taken + 1
    end
  end
  queues[i] = queue
end

for _, queue in ipairs(queues) do
  local pools = key('pools', queue.name)
  redis.call('ZREMRANGEBYSCORE', pools, '-inf', whole(now - SILENCE)) -- a full server lets it through
  redis.call('ZADD', pools, now, pool)
  redis.call('PEXPIRE', pools, SILENCE)
  if queue.group ~= '' then add_group(queue.base, queue.group) end
end
for queue, list in pairs(back) do
  for i = 2, #list, 2 do
    redis.call('HSET', key('job', list[i]), 'state', 'waiting')
    redis.call('ZREM', key('parked', queue), list[i])
  end
end
place_ready(back, now)
return taken
