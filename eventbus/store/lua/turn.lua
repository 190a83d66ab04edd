-- One turn of a worker: settles what ended, promotes what is due, claims the next jobs.
-- Repeat-safe: each lane of the worker numbers its calls, and the number stands beside its holds; the last call is answered
-- again from them. An older number is a late copy of a call that was repeated, and is refused.
-- Settles are read and checked before the first write, which a full server allows, so that running jobs still end when emits
-- are refused. What a settle or a promotion made ready can be claimed in the same call. If claims fail, the settles stay.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now lane call lease pool offer want most watched alone bytes queues appends settles
-- queues: queue quota keep_completed age_completed keep_failed age_failed key_ttl
-- appends: id token place live taken entries
-- live: name text
-- taken: signal
-- entries: text
-- settles: id token state attempts text delay
--   state: completed | failed | cancelled | delayed (a retry) | waiting (given back; text: `begun` if its run had) | parked |
--     shelved (text: the shelf) | suspended (delay: until it wakes, or -1; text: how many signals it knows of, or '' if none wakes it)
-- most: how many suspects may be claimed; watched: how many the worker has; alone: 1 if it made room for one (`suspects.lua`)
-- offer: whether lone jobs may be handed to the worker (`idle.lua`)
-- answer: now, next due or -1, lost ids, woken queues, indexes of queues with more, claims,
--   queues that cannot be read, because somebody else's value stands in their place; and if there is any of these:
--   id, cap, fatal of suspects that it claims; indexes of queues whose next suspect needs a worker for itself;
--   of appends, and of claims with a journal or an inbox, what `appends.lua` and `journals.lua` tell; 1 if schedules are due;
--   ids of jobs that it set apart as failed, because their records cannot be read
--   claims: id queue body attempts stalls created due stop
--     stop: why the tree of a claimed root stops (failed | cancelled | timeout), or ''
--include shard args book changes turn_queues outcomes hold holds settling next_due candidate claims idle
--defer load_slots: slots lanes quotas turns
--defer load_retention: retention completed
--defer load_trees: placing waking appends settle_rows chores telling stopping unusual suspects odd_claims putting_off repeats

local now = args.take_now()
local lane, call, lease, pool, offer = args.take(), args.take(), args.take(), args.take(), args.take()
local want, most, watched, alone, bytes, queue_count, append_count, settle_count = args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local token, worker = lane .. ':' .. call, Hold.worker_of(lane)
local held, room = shard.key('held', worker), { worker = worker, now = now, left = most, watched = watched, is_alone = alone == 1 }
local share = call * 40503 % 65536 / 65536 -- by the golden ratio: spread evenly also where each second call alone claims
room.has_lanes_first, room.is_first = share < 1 / 2, room.is_alone or share < 1 / 8 -- no long line keeps others for ever

local queues, by_name, is_limited = turn_queues.read(queue_count)
if not queues then return shard.refuse() end
if append_count > 0 then load_trees() end
local rows = append_count > 0 and appends.read_rows(append_count, args.take)
local known = settling.read_holds(held, lane, settle_count)
if known[2] then
  local last = cmsgpack.unpack(known[2])
  if last[1] > call then return redis.error_reply('STALE an older call of lane ' .. lane) end
  if last[1] == call then
    load_trees()
    return repeats.answer(queues, held, token, now, last)
  end
end

if rows then shard.begin_writing() end -- before the settles, which read what appends change; appends are known if they come again
local appended = rows and appends.write_rows(rows, held) or {}
local settles, lost = settling.read(known, settle_count)
local due_at = next_due.read()
local is_plain, filled, has_duty = #settles.rows == 0 and (due_at < 0 or due_at > now), {}, false
if not is_plain then
  load_trees()
  settles.rows = settle_rows.complete(settles.rows, lost)
end
shard.begin_writing()
if not known[1] then holds.register(worker, now + lease) end -- its first turn, or the first one since it was rescued
settling.write_simple(settles.simple, held, worker, by_name, now)
if is_limited or settles.slotted then load_slots() slots.release_all(settles.slotted, now) end
if not is_plain then
  local ready = {}
  settle_rows.write(settles.rows, held, by_name, ready, now)
  due_at = next_due.read()
  if due_at >= 0 and due_at <= now then has_duty = chores.do_due(now, ready) end
  telling.flush(ready, now)
  filled = placing.flush(ready, now, putting_off.put_off, true)
  for _, queue in ipairs(queues) do queue.flags = book.changed[queue.name] or queue.flags end
end

if is_limited and want > 0 then quotas.cut(queues, now) end
local plan = claims.read(queues, want, bytes, room, function(which, ...)
  if which == 'lanes' then load_slots() else load_trees() end
  return (which == 'lanes' and turns.take or which == 'suspects' and suspects.take or unusual.choose)(...)
end)
if is_limited then quotas.claim(plan, queues, now) end
claims.write(plan, held, token, now, unusual and unusual.name_holder) -- what is named, `candidate.choose` has found
if plan.ids[1] and known[1] then redis.call('ZADD', shard.root .. ':workers', now + lease, worker) end
claims.remove(plan)
if plan.moves[1] then turns.write_moves(plan) end
if changes.is_on() then changes.note_claims(plan, queues, worker) end
if plan.is_unusual then
  is_plain = false
  load_trees()
  odd_claims.set_apart(plan, now)
  suspects.keep_room(plan, room, lease)
end
if not is_plain then
  local ready = {}
  telling.flush(ready, now)
  placing.flush(ready, now, putting_off.put_off)
  waking.wake_filled(filled, now)
  due_at = next_due.read()
end
if is_limited or settles.slotted or not is_plain then due_at = slots.flush(now, due_at) end
local lengths, next_at = outcomes.flush(due_at)
turn_queues.retain(queues, now, function(queue, is_eighth)
  load_retention()
  completed.retain_ended(queue, is_eighth, now, lengths)
end)

local woken = claims.exchange_wakes(pool, want, plan.more, queues, now)
if offer > 0 then idle.turn(offer, worker, pool, now, not (plan.ids[1] or plan.more[1] or woken[1]), plan.ids[1]) end
redis.call('HSET', held, '#' .. lane, cmsgpack.pack({ call, lost, woken, appended, outcomes.apart }))
local answer = { now, next_at, lost, woken, plan.more, plan.rows, plan.foreign }
if plan.watched[1] or plan.lonely[1] or appended[1] or plan.journals[1] or has_duty or outcomes.apart[1] then
  load_trees()
  answer[8], answer[9], answer[10], answer[11] = plan.watched, suspects.list_lonely(plan), appended, plan.journals
  answer[12], answer[13] = has_duty and 1 or 0, outcomes.apart
end
return answer
