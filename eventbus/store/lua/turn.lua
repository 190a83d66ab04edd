-- One turn of a worker: settles what ended, promotes what is due, claims the next jobs.
-- Repeat-safe: each lane of the worker numbers its calls, and the number stands beside its holds; the last call is
-- answered again from them. An older number is a late copy of a call that was repeated, and is refused.
-- Settles are read and checked before the first write; that write is one that a full
-- server allows, so running jobs still end when emits are refused. Claims come after: what a settle or
-- a promotion made ready can be claimed in the same call. If they fail, the settles stay, and are none again.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now lane call lease pool offer want most watched alone bytes queues settles
-- queues: queue quota keep_completed age_completed keep_failed age_failed key_ttl
-- settles: id token state attempts text delay
--   state: completed | failed | cancelled | delayed (a retry) | waiting (given back) | parked
-- most: how many suspects may be claimed; watched: how many the worker has; alone: 1 if it made room for one (`suspects.lua`)
-- offer: whether lone jobs may be handed to the worker (`idle.lua`)
-- answer: now, next due or -1, lost ids, woken queues, indexes of queues with more, claims,
--   queues that cannot be read, because somebody else's value stands in their place; if it met suspects, also:
--   id, cap, fatal of those that it claims; indexes of queues whose next suspect needs a worker for itself
--   claims: id queue body attempts stalls created due stop
--     stop: why the tree of a claimed root stops (failed | cancelled | timeout), or ''
--include base book outcomes hold holds settle due candidate claim
--defer load_retention: retain completed
--defer load_idle: idle
--defer load_trees: ready waking settle_rows chores telling stopping candidate_unusual suspects claim_odd putting_off answer_again

local now = read_now(take())
local lane, call, lease, pool, offer = take(), take(), take(), take(), take()
local want, most, watched, alone, bytes, queue_count, settle_count = take(), take(), take(), take(), take(), take(), take()
local token, worker = lane .. ':' .. call, Hold.worker_of(lane)
local room = { worker = worker, now = now, left = most, watched = watched, is_alone = alone == 1 }
room.is_first = room.is_alone or call % 8 == 0 -- a long line does not keep suspects for ever
local held = key('held', worker)

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

local plan = read_claims(queues, want, bytes, room, function(is_of_suspects, ...)
  load_trees()
  if is_of_suspects then return suspects.take(...) end
  return choose_unusual(...)
end)
write_claims(plan, held, token, now, name_holder)
if plan.ids[1] and holds[1] then redis.call('ZADD', root .. ':workers', now + lease, worker) end
remove_claimed(plan)
if plan.is_unusual then
  is_plain = false
  load_trees()
  set_odd_apart(plan, now)
  suspects.keep_room(plan, room, lease)
end
if not is_plain then
  local ready = {}
  flush_tells(ready, now)
  place_ready(ready, now, put_off)
  wake_filled(filled, now)
  due_at = next_due()
end
local lengths = outcomes.flush()
-- Where few ended, one turn of eight asks; the time decides which, for calls that settle may all have even numbers.
for i, queue in ipairs(queues) do
  local most = math.max(queue.completed or 0, queue.failed or 0, queue.cancelled or 0)
  if most >= 8 or most > 0 and (now + i) % 8 == 0 then
    load_retention()
    completed.retain_ended(queue, (now + i) % 8 == 0, now, lengths)
  end
end

local woken = exchange_wakes(pool, want, plan.more, queues, now)
if offer > 0 then
  load_idle()
  idle.turn(offer, worker, pool, now, not (plan.ids[1] or plan.more[1] or woken[1]), plan.ids[1])
end
redis.call('HSET', held, '#' .. lane, cmsgpack.pack({ call, lost, woken }))
local answer = { now, due_at, lost, woken, plan.more, plan.rows, plan.foreign }
return (plan.watched[1] or plan.lonely[1]) and suspects.tell(answer, plan) or answer
