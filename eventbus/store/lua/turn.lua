-- One turn of a worker: settles what ended, promotes what is due, claims the next jobs.
-- Repeat-safe: each lane of the worker numbers its calls, and the number stands beside its holds; the last call is
-- answered again from them. An older number is a late copy of a call that was repeated, and is refused.
-- Settles are read and checked before the first write; that write is one that a full
-- server allows, so running jobs still end when emits are refused. Claims come after: what a settle or
-- a promotion made ready can be claimed in the same call. If they fail, the settles stay, and are none again.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now lane call lease pool want suspects bytes queues settles
-- queues: queue quota keep_completed age_completed keep_failed age_failed key_ttl
-- settles: id token state attempts text delay
--   state: completed | failed | cancelled | delayed (a retry) | waiting (given back) | parked
-- suspects: whether a job that stalled twice may be claimed: then it is claimed alone
-- answer: now, next due or -1, lost ids, woken queues, indexes of queues with more, claims,
--   queues that cannot be read, because somebody else's value stands in their place
--   claims: id queue body attempts stalls created due stop
--     stop: why the tree of a claimed root stops (failed | cancelled | timeout), or ''
--include base book outcomes holds settle due candidate claim
--defer load_retention: retain completed
--defer load_trees: ready waking settle_rows chores telling stopping candidate_unusual claim_odd putting_off answer_again

local now = read_now(take())
local lane, call, lease, pool = take(), take(), take(), take()
local want, suspects, bytes, queue_count, settle_count = take(), take() == 1, take(), take(), take()
local token, worker = lane .. ':' .. call, worker_of(lane)
local held, wakes = key('held', worker), key('wake', pool)

local queues, names, by_name = {}, {}, {}
for i = 1, queue_count do
  local queue = { name = take(), quota = take(), index = i }
  queue.keep_completed, queue.age_completed = take(), take()
  queue.keep_failed, queue.age_failed, queue.key_ttl = take(), take(), take()
  queues[i], names[i], by_name[queue.name] = queue, queue.name, queue
end
local flags = book.read(names)
if not flags then return redis.error_reply(CLOSED) end
for i, queue in ipairs(queues) do queue.flags = flags[i] end

local holds = read_holds(held, lane, settle_count)
if holds[2] then
  local number, was_lost, was_woken = unpack(cmsgpack.unpack(holds[2]))
  if number > call then return redis.error_reply('STALE an older call of lane ' .. lane) end
  if number == call then
    load_trees()
    return answer_again(queues, held, token, now, was_lost, was_woken)
  end
end

local settles, lost = read_settles(holds, settle_count)
local due_at = next_due()
local is_plain, filled = #settles.rows == 0 and (due_at < 0 or due_at > now), {}
if not is_plain then
  load_trees()
  settles.rows = complete_rows(settles.rows, lost)
end
begin_writing()
if not holds[1] then -- the worker's first turn, or the first one since it was rescued
  register(worker, now + lease)
end
write_simple(settles.simple, held, worker, by_name, now)
if not is_plain then
  local ready = {}
  write_rows(settles.rows, held, by_name, ready, now)
  due_at = next_due()
  if due_at >= 0 and due_at <= now then
    do_chores(now, ready)
  end
  flush_tells(ready, now)
  filled = place_ready(ready, now, put_off, true)
  for _, queue in ipairs(queues) do queue.flags = book.changed[queue.name] or queue.flags end
end

local order = suspects and (call % 8 == 0 and 'first' or 'last') or ''
local plan = read_claims(queues, want, bytes, order, function(...)
  load_trees()
  return choose_unusual(...)
end)
write_claims(plan, held, token, now, name_holder)
if plan.ids[1] and holds[1] then redis.call('ZADD', root .. ':workers', now + lease, worker) end
remove_claimed(plan)
if plan.is_unusual then
  is_plain = false
  load_trees()
  set_odd_apart(plan, now)
end
if not is_plain then
  local ready = {}
  flush_tells(ready, now)
  place_ready(ready, now, put_off)
  wake_filled(filled, now)
  due_at = next_due()
end
local lengths = flush_ends()
-- Where few ended, one turn of eight asks; the time decides which, for calls that settle may all have even numbers.
for i, queue in ipairs(queues) do
  local most = math.max(queue.completed or 0, queue.failed or 0, queue.cancelled or 0)
  if most >= 8 or most > 0 and (now + i) % 8 == 0 then
    load_retention()
    completed.retain_ended(queue, (now + i) % 8 == 0, now, lengths)
  end
end

local woken = {}
if want > 0 then
  local popped = try('ZPOPMIN', wakes, 32) or {}
  for i = 1, #popped, 2 do woken[#woken + 1] = popped[i] end
end
for _, index in ipairs(plan.more) do try('ZADD', wakes, now, queues[index].name) end
if #plan.more > 0 then redis.call('PEXPIRE', wakes, 120000) end

redis.call('HSET', held, '#' .. lane, cmsgpack.pack({ call, lost, woken }))
return { now, due_at, lost, woken, plan.more, plan.rows, plan.foreign }
