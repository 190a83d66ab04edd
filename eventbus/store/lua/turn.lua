-- One turn of a worker: settles what ended, promotes what is due, claims the next jobs.
-- Repeat-safe: the worker numbers its calls; the last one's answer is kept and given
-- again. An older number is a late copy of a call that was repeated, and is refused.
-- Everything is read and checked before the first write; that write is one that a full
-- server allows, so running jobs still end when emits are refused.
-- KEYS: the shard's root
-- head: now worker call lease pool want bytes queues settles
-- queues: queue quota keep_completed age_completed keep_failed age_failed key_ttl
-- settles: id token state attempts text delay
--   state: completed | failed | cancelled | delayed (a retry) | waiting (given back) | parked
-- answer: now, next due or -1, lost ids, woken queues, indexes of queues with more, claims
--   claims: id queue body attempts stalls created due
--include base
--include ready
--include finish
--include retain
--include record
--include settle
--include promote
--include claim

local now = read_now(take())
local worker, call, lease, pool = take(), take(), take(), take()
local want, bytes, queue_count, settle_count = take(), take(), take(), take()
local token = worker .. ':' .. whole(call)
local last = key('last', worker)

local queues, by_name = {}, {}
for i = 1, queue_count do
  local queue = { name = take(), quota = take() }
  queue.keep_completed, queue.age_completed = take(), take()
  queue.keep_failed, queue.age_failed, queue.key_ttl = take(), take(), take()
  queues[i], by_name[queue.name] = queue, queue
end

local function claim_rows(jobs)
  local rows = {}
  for i, job in ipairs(jobs) do
    local record = job.record
    local n = (i - 1) * 7
    rows[n + 1], rows[n + 2], rows[n + 3] = job.id, job.index, job.body
    rows[n + 4], rows[n + 5] = record.attempts or '0', record.stalls or '0'
    rows[n + 6], rows[n + 7] = record.created or '0', record.due or record.created or '0'
  end
  return rows
end

-- What the last call claimed and this worker still holds, read again from the records.
local function answer_again(kept)
  local jobs, ids = {}, cmsgpack.unpack(kept[2])
  for i = 1, #ids do
    local record, lease_record = read(ids[i]), read_lease(ids[i])
    local body = record and read_body(ids[i], record)
    if body and record.state == 'active' and lease_record.token == token then
      for index, queue in ipairs(queues) do
        if queue.name == record.queue then
          jobs[#jobs + 1] = { id = ids[i], index = index, record = record, body = body }
        end
      end
    end
  end
  return { now, next_due(), cmsgpack.unpack(kept[3]), cmsgpack.unpack(kept[4]), {}, claim_rows(jobs) }
end

local kept = redis.call('HMGET', last, 'call', 'claimed', 'lost', 'woken')
if kept[1] then
  if tonumber(kept[1]) == call then return answer_again(kept) end
  if tonumber(kept[1]) > call then return redis.error_reply('STALE an older call of worker ' .. worker) end
end

local settles, lost = read_settles(settle_count)
local due = read_due(now, 100)
local plan = read_claims(queues, want, bytes)

redis.call('PEXPIRE', last, 600000)
local ready = {}
local changed = write_settles(settles, by_name, ready, now)
write_due(due, ready, now)
write_claims(plan, token, now + lease, now)
place_ready(ready, now) -- after the claims, which may have left the queue empty: then it wakes
flush_ends()
for _, queue in ipairs(queues) do
  local limit = 2 * settle_count + 10
  if queue.completed then retain('completed', queue.name, queue.keep_completed, queue.age_completed, limit, now) end
  if queue.failed then retain('failed', queue.name, queue.keep_failed, queue.age_failed, limit, now) end
end

local woken, claimed = {}, {}
if want > 0 then
  local popped = redis.call('ZPOPMIN', key('wake', pool), 32)
  for i = 1, #popped, 2 do woken[#woken + 1] = popped[i] end
end
for _, index in ipairs(plan.more) do
  redis.call('ZADD', key('wake', pool), now, queues[index].name)
end
if #plan.more > 0 then redis.call('PEXPIRE', key('wake', pool), 120000) end
for i, job in ipairs(plan.jobs) do claimed[i] = job.id end
redis.call(
  'HSET', last, 'call', call, 'claimed', cmsgpack.pack(claimed),
  'lost', cmsgpack.pack(lost), 'woken', cmsgpack.pack(woken)
)
if not kept[1] then redis.call('PEXPIRE', last, 600000) end
local earliest = due.next
if #due.ids > 0 or changed then earliest = next_due() end
return { now, earliest, lost, woken, plan.more, claim_rows(plan.jobs) }
