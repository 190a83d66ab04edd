-- Makes, changes, removes, pauses and resumes one schedule.
-- Repeat-safe: what is as it should be stays so, and who saw an older state is told (`stale`) and looks again.
-- What must hold: each change has a `gen` of its own, higher than all before it, also those of a schedule of the same name
-- that was removed; so no job of the one is taken for a job of the other. A change does not resume what was paused.
-- A slot that was fired meanwhile comes back by no change: a firing moves the slot, not the gen, so both are compared.
-- The highest version of each owner that declares stays in `clock`: what it removed no older release makes again.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now word id seen seen_slot slot due plan digest owner version limit reason queue
--   word: put | remove | pause | resume
--   seen, seen_slot: the gen and the slot that the caller saw, '' for none | slot, due: the next slot and when it is due, '' if there is none
--   owner, version: of a program that declares; without an owner both stay what they are
--   limit: how often it fires in all, 0 without one; a schedule that fired so often stays at its end
-- answer: word, gen
--   word: new | changed | same | removed | paused | resumed | stale | older (a newer release decides) | unknown
--include shard args commands guard agenda waking

local now = args.take_now()
local word, id, seen, seen_slot, slot, due = args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local plan, digest, owner, version, limit, reason, queue = args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local name, field = shard.key('schedule', id), 'declared:' .. owner
local known = redis.call('HMGET', name, 'gen', 'digest', 'version', 'paused', 'fired', 'limit', 'lastjob', 'slot', 'owner')
local gen, known_version, newest = known[1], tonumber(known[3] or 0), 0
if owner == '' then
  owner, version = known[9] or '', known_version
else
  newest = tonumber(redis.call('HGET', shard.root .. ':clock', field) or 0)
end

-- Behind the first write of a call: a full server lets a schedule go.
local function note_version()
  if field ~= 'declared:' and version > newest then redis.call('HSET', shard.root .. ':clock', field, version) end
end

local is_older = version < math.max(newest, known_version)
if word == 'put' and gen and known[2] == digest then
  if not is_older and (known[9] ~= owner or known_version ~= version) then
    redis.call('HSET', name, 'owner', owner, 'version', version)
  end
  note_version()
  return { 'same', gen }
end
if is_older then return { 'older', gen or '' } end
if word ~= 'put' and not gen then return { 'unknown', '' } end
if (gen or '') ~= seen then return { 'stale', gen or '' } end
if word == 'resume' and not known[4] then return { 'same', gen } end
if (word == 'put' or word == 'resume') and (known[8] or '') ~= seen_slot then return { 'stale', gen or '' } end

local most = word == 'put' and limit or tonumber(known[6] or 0)
if most > 0 and tonumber(known[5] or 0) >= most then slot, due = '', '' end
if word == 'remove' then
  redis.call('DEL', name, shard.key('plan', id))
  redis.call('ZREM', shard.root .. ':schedules', id)
elseif word == 'pause' then
  redis.call('HDEL', name, 'held')
  redis.call('HSET', name, 'paused', reason)
  agenda.put(id, '')
elseif word == 'resume' then
  redis.call('HSET', name, 'slot', slot, 'excused', known[7] or '') -- its failure pauses the schedule no more
  redis.call('HDEL', name, 'paused', 'held')
  agenda.put(id, due)
else
  local next_gen = commands.whole(math.max(tonumber(gen or 0) + 1, now))
  redis.call('SET', shard.key('plan', id), plan)
  redis.call('HSET', name, 'gen', next_gen, 'slot', slot, 'digest', digest, 'owner', owner, 'version', version, 'limit', limit)
  redis.call('HDEL', name, 'held')
  agenda.put(id, known[4] and '' or due)
  word, gen = gen and 'changed' or 'new', next_gen
end
note_version()
agenda.note_first(now, 0) -- who calls fires nothing
if word ~= 'remove' and word ~= 'pause' then waking.wake_queue(queue, now) end -- its next turn hears when the first one is due
return { ({ remove = 'removed', pause = 'paused', resume = 'resumed' })[word] or word, gen }
