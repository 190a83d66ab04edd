-- Ends leases that ran out: back to ready, failed past the stall limit, or cancelled if that was asked.
-- A stall is no attempt, and its job keeps its place. But one that stalled twice may have killed its
-- process, and those beside it: it goes to the end of its priority, and is claimed alone.
-- Any worker may do this, also several at once. The first write is one that a full server allows.
-- KEYS: the shard's book, and a key that never exists
-- head: now lease limit max_stalls key_ttl
-- answer: ms until the next lease ends (-1: nothing active), then for each job: id verdict worker age lag
--   verdict: rescued | failed | cancelled
--   worker held it, renewed it `age` ms ago, and its event loop was `lag` ms behind when last heard
--include base guard ready finish record stopping heard epilogue marks

local SUSPECT = 2
local now = read_now(take())
local lease, limit, max_stalls, key_ttl = take(), take(), take(), take()
local active = root .. ':active'
local found = redis.call('ZRANGEBYSCORE', active, '-inf', whole(now), 'WITHSCORES', 'LIMIT', 0, limit)
local ids, stalled, bad = {}, {}, {}

-- Who held the job, when it renewed the lease for the last time, and how its event loop was then.
local function read_holder(token, deadline)
  local worker = string.match(token or '', '^[^+:]+') or ''
  local v = try('HMGET', key('worker', worker), 'lag', 'lease') or {}
  return { worker = worker, lag = tonumber(v[1]) or 0, age = now - deadline + (tonumber(v[2]) or lease) }
end

for i = 1, #found, 2 do
  local id = found[i]
  ids[#ids + 1] = id
  local record, why, queue = read(id)
  if record and record.state ~= 'active' and not is_placed(id, record) then
    record, why, queue = nil, 'active in the state ' .. record.state, record.queue
  end
  if not record then
    bad[#bad + 1] = { id = id, queue = queue, why = why }
  elseif record.state == 'active' then
    record.id, record.lease = id, read_lease(id)
    record.stalls = (tonumber(record.stalls) or 0) + 1
    record.holder = read_holder(record.lease.token, tonumber(found[i + 1]))
    stalled[#stalled + 1] = record
  end
end

redis.call('ZREM', active, '')
note_heard(now, lease)
cut_leases(now, lease)
local grace = left_of_grace(now, lease)
if grace > 0 then return { grace } end

-- Keeps what is known of the stall in the job's log; returns it as text.
local function note_stall(job)
  local holder = job.holder
  local text = cjson.encode({
    type = 'StalledError',
    message = string.format(
      'the lease ran out %d times; the last one was held by worker %s, which renewed it %.0f ms before, '
        .. 'its event loop %.0f ms behind when last heard',
      job.stalls, holder.worker == '' and '?' or holder.worker, holder.age, holder.lag
    ),
    attempts = tonumber(job.attempts) or 0,
    stalls = job.stalls,
    worker = holder.worker,
  })
  note_error(job.id, text)
  return text
end

local ready, suspects, answer = {}, {}, { 0 }
local function rescue(job)
  local text = note_stall(job)
  redis.call('HDEL', job_root .. job.id, 'token') -- what its holder still sends is refused
  redis.call('HSET', job_root .. job.id, 'stalls', job.stalls)
  local lease = job.lease
  if lease.tree and (marks[job.id] or '') ~= '' then lease.stop = marks[job.id] end -- since it was read
  if lease.cancel and lease.cancel ~= lease.root then
    return finish_cancelled(job.id, lease, now, key_ttl)
  elseif lease.root and not lease.tree and mark_of(lease.root) ~= '' then
    return finish(job.id, lease, 'failed', text, now, key_ttl) -- not run again; whether it took effect is not known
  elseif lease.tree and lease.stop and not lease.acked and not lease.knows then
    settle_stopped_root(job.id, now)
  elseif job.stalls > max_stalls and lease.tree and lease.stop == 'cancelled' then
    local text = try('GET', key('result', job.id)) or '' -- who cancelled it was told that it ends so
    if #text > 2 then text = string.sub(text, 1, -2) .. ',"stalls":' .. job.stalls .. '}' end
    return finish(job.id, lease, 'cancelled', text, now, key_ttl)
  elseif job.stalls > max_stalls then
    if not (lease.tree and lease.on == 'wake' and stop_tree(job.id, 'failed', job.id, text, now)) then
      return finish(job.id, lease, 'failed', text, now, key_ttl)
    end
    settle_stopped_root(job.id, now)
  else
    redis.call('HSET', job_root .. job.id, 'state', 'waiting')
    if job.stalls >= SUSPECT then push(suspects, job.queue, job) else push(ready, job.queue, job.order, job.id) end
  end
  return 'rescued'
end

call_many('ZREM', active, ids)
for _, job in ipairs(bad) do quarantine(job.id, job.queue, job.why, now) end
for _, job in ipairs(stalled) do
  local verdict = rescue(job)
  for _, value in ipairs({ job.id, verdict, job.holder.worker, job.holder.age, job.holder.lag }) do
    answer[#answer + 1] = value
  end
end
requeue(suspects, ready)
end_call(ready, now)
local first = redis.call('ZRANGE', active, 0, 0, 'WITHSCORES')
answer[1] = first[2] and math.max(0, tonumber(first[2]) - now) or -1
return answer
