-- Ends leases that ran out: back to ready in the old place, or failed past the stall limit.
-- A stall is no attempt. Any worker may do this, also several at once.
-- A job that kills its process takes those beside it along. So what stalls for the second time
-- is not given back together, to be claimed together again, but one by one over a lease.
-- KEYS: the shard's root
-- head: now lease limit max_stalls key_ttl
-- answer: ms until the next lease ends (-1: nothing active), rescued ids, failed ids
--include base
--include ready
--include finish
--include record
--include heard

local now = read_now(take())
local lease, limit, max_stalls, key_ttl = take(), take(), take(), take()
local active = root .. ':active'
local ids = redis.call('ZRANGEBYSCORE', active, '-inf', whole(now), 'LIMIT', 0, limit)
local stalled, bad = {}, {}
for _, id in ipairs(ids) do
  local record, why, queue = read(id)
  if record and record.state ~= 'active' and not is_placed(id, record) then
    record, why, queue = nil, 'active in the state ' .. record.state, record.queue
  end
  if not record then
    bad[#bad + 1] = { id = id, queue = queue, why = why }
  elseif record.state == 'active' then
    record.lease = read_lease(id)
    stalled[#stalled + 1] = { id = id, record = record, stalls = (tonumber(record.stalls) or 0) + 1 }
  end
end

redis.call('ZREM', active, '')
note_heard(now, lease)
local grace = tonumber(redis.call('HGET', root .. ':clock', 'grace') or 0)
if now < grace then return { grace - now, {}, {} } end

local function fail(job)
  local text = cjson.encode({
    type = 'StalledError',
    message = string.format('the lease ran out %d times, the last one held by %s', job.stalls, job.record.lease.token or '?'),
    attempts = tonumber(job.record.attempts) or 0,
    stalls = job.stalls,
  })
  redis.call('HSET', key('job', job.id), 'stalls', job.stalls)
  finish(job.id, job.record.lease, 'failed', text, now, key_ttl)
end

local ready, rescued, failed, suspects = {}, {}, {}, {}
call_many('ZREM', active, ids)
for _, job in ipairs(bad) do quarantine(job.id, job.queue, job.why, now) end
for _, job in ipairs(stalled) do
  redis.call('HDEL', key('job', job.id), 'token') -- what its holder still sends is refused
  if job.stalls > max_stalls then
    fail(job)
    failed[#failed + 1] = job.id
  else
    redis.call('HSET', key('job', job.id), 'state', 'waiting', 'stalls', job.stalls)
    if job.stalls > 1 then
      suspects[#suspects + 1] = job
    else
      push(ready, job.record.queue, job.record.order, job.id)
    end
    rescued[#rescued + 1] = job.id
  end
end
local later = {} -- queues whose workers must hear when the next is due
for i, job in ipairs(suspects) do
  if i == 1 then
    push(ready, job.record.queue, job.record.order, job.id)
  else
    local due = now + math.floor(lease * (i - 1) / #suspects)
    redis.call('HSET', key('job', job.id), 'state', 'delayed', 'due', due)
    redis.call('ZADD', root .. ':delayed', due, job.id)
    later[job.record.queue] = true
  end
end
place_ready(ready, now)
for queue in pairs(later) do wake(queue, now) end
flush_ends()
local first = redis.call('ZRANGE', active, 0, 0, 'WITHSCORES')
return { first[2] and math.max(0, tonumber(first[2]) - now) or -1, rescued, failed }
