-- One turn of a worker: settles what ended, promotes what is due, claims the next jobs.
-- Repeat-safe: the worker numbers its calls; the last one's answer is kept and given
-- again. An older number is a late copy of a call that was repeated, and is refused.
-- Settles are read and checked before the first write; that write is one that a full
-- server allows, so running jobs still end when emits are refused. Claims come after: what a settle or
-- a promotion made ready can be claimed in the same call. If they fail, the settles stay, and are none again.
-- KEYS: the shard's root
-- head: now worker call lease pool want suspects bytes queues settles
-- queues: queue quota keep_completed age_completed keep_failed age_failed key_ttl
-- settles: id token state attempts text delay
--   state: completed | failed | cancelled | delayed (a retry) | waiting (given back) | parked
-- suspects: whether a job that stalled twice may be claimed: then it is claimed alone
-- answer: now, next due or -1, lost ids, woken queues, indexes of queues with more, claims
--   claims: id queue body attempts stalls created due stop
--     stop: why the tree of a claimed root stops (failed | cancelled | timeout), or ''
--include base
--include ready
--include finish
--include retain
--include record
--include trees
--include telling
--include stopping
--include leaves
--include chores
--include verdict
--include settle
--include promote
--include candidate
--include claim

local now = read_now(take())
local worker, call, lease, pool = take(), take(), take(), take()
local want, suspects, bytes, queue_count, settle_count = take(), take() == 1, take(), take(), take()
local token = worker .. ':' .. call
local last, wakes = key('last', worker), key('wake', pool)

local queues, by_name = {}, {}
for i = 1, queue_count do
  local queue = { name = take(), quota = take() }
  queue.keep_completed, queue.age_completed = take(), take()
  queue.keep_failed, queue.age_failed, queue.key_ttl = take(), take(), take()
  queues[i], by_name[queue.name] = queue, queue
end

-- What the last call claimed and this worker still holds, read again from the records.
local function answer_again(lost, woken, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local record, lease_record = read(id), read_lease(id)
    local body = record and lease_record and read_body(id, record.body, lease_record.root)
    if body and record.state == 'active' and lease_record.token == token then
      for index, queue in ipairs(queues) do
        if queue.name == record.queue then
          local stop = lease_record.knows and lease_record.stop -- not one that came after the claim
          add_claim(rows, id, index, body, record.created, record.attempts, record.stalls, record.due, stop)
        end
      end
    end
  end
  return { now, next_due(), lost, woken, {}, rows }
end

local kept = redis.call('GET', last)
if kept then
  local number, was_lost, was_woken, ids = unpack(cmsgpack.unpack(kept))
  if number == call then return answer_again(was_lost, was_woken, ids) end
  if number > call then return redis.error_reply('STALE an older call of worker ' .. worker) end
end

local settles, lost = read_settles(settle_count)
redis.call('PEXPIRE', last, 600000)
local ready = {}
local changed = write_settles(settles, by_name, ready, now)
local due = read_due(now, 100)
write_due(due, ready, now)
if due.is_due then do_chores(now, ready) end
flush_tells(ready, now)
local filled = place_ready(ready, now, true)
local plan = read_claims(queues, want, bytes, suspects)
write_claims(queues, plan, token, whole(now + lease), now)
ready = {}
flush_tells(ready, now)
place_ready(ready, now)
wake_filled(filled, now)
flush_ends()
for i, queue in ipairs(queues) do
  retain_ended(queue, (now + i) % 8 == 0, now) -- the time decides: calls that settle may all have even numbers
end

local woken = {}
if want > 0 then
  local popped = redis.call('ZPOPMIN', wakes, 32)
  for i = 1, #popped, 2 do woken[#woken + 1] = popped[i] end
end
for _, index in ipairs(plan.more) do redis.call('ZADD', wakes, now, queues[index].name) end
if #plan.more > 0 then redis.call('PEXPIRE', wakes, 120000) end

redis.call('SET', last, cmsgpack.pack({ call, lost, woken, plan.ids }), 'PX', 600000)
return { now, next_due(), lost, woken, plan.more, plan.rows }
