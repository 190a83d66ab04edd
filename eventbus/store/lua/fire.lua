-- Fires schedules that are due: for each it looks at the overlap, adds the job of one slot, and moves on to the next slot.
-- What must hold: a slot becomes one job. The job and the next slot are written in one call, so nobody dies in between,
-- and nobody leads: of two who fire one slot the second is `stale`. A failover that forgot the end of such a call is
-- followed by a call with the same job and the same key, which meets what is left of the first.
-- Repeat-safe: a repeat is `stale`. The first write is one that a full server refuses.
-- Crash windows: `dies-before-fire` (a turn of anybody says that they are due, 2 s later), `fired-not-answered` (stale),
-- `upsert-meets-fire` (gen decides), `failover-loses-fire` (the key decides).
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now key_ttl most bytes rows
--   most, bytes: of schedules that are due, which the answer brings
-- rows: id gen slot fire next due wait missed queue has_default job body key print overlap late pauses root timeout limit
--   gen, slot: as who calculated the row saw them | fire: the slot of the job, '' to let it pass
--   next, due: the next slot and when it is due, '' if there is none | wait: ms to put it off, for nobody here can fire it
--   late: 1 if the next one is late too, or the slot was it, so that one comes after the other
--   pauses: 1 to pause the schedule if its last job failed
--   root: 1 if the job is the root of a tree, as `add` has it | timeout: of a root, ms, 0 without one
--   limit: the digest of the limit key of the job, or ''
-- answer: now, when the first one is due or -1, for each row what became of it, then of those that are due:
--   id gen slot lastjob held due plan
--   became: fired | joined (a job had the key) | skipped (the last job is open) | missed | held (until the last job has ended) |
--     paused | stale | early | waits | later | foreign (somebody else's value stands in the place of a key of the queue)
--include shard args commands guard fields pointers agenda
--defer load_writing: enqueuing accepting holds cancelling epilogue trees firing

local now = args.take_now()
local key_ttl, most, bytes, row_count = args.take(), args.take(), args.take(), args.take()
local rows, words, is_any = {}, {}, false
for i = 1, row_count do
  local row = { id = args.take(), gen = args.take(), slot = args.take(), fire = args.take(), next = args.take(), due = args.take(), wait = args.take(), missed = args.take() }
  row.queue, row.has_default, row.job, row.body, row.key, row.print = args.take(), args.take() == 1, args.take(), args.take(), args.take(), args.take()
  row.overlap, row.late, row.pauses = args.take(), args.take() == 1, args.take() == 1
  row.is_root, row.timeout, row.limit = args.take() == 1, args.take(), args.take()
  rows[i] = row
end

local function judge(row)
  local known = commands.try('HMGET', shard.key('schedule', row.id), 'gen', 'slot', 'lastjob', 'paused', 'fired', 'limit', 'excused') or {}
  if known[1] ~= row.gen or known[2] ~= row.slot or known[4] then return 'stale' end
  if tonumber(redis.call('ZSCORE', shard.root .. ':schedules', row.id) or math.huge) > now then return 'early' end
  if row.wait > 0 then return 'waits' end
  local last = known[3] and fields.peek(known[3])
  local is_open = last and trees.OPEN[last.state]
  row.last_began = is_open and last.created
  row.is_last = tonumber(known[6] or 0) > 0 and tonumber(known[5] or 0) + 1 >= tonumber(known[6])
  if row.pauses and last and last.state == 'failed' and known[7] ~= known[3] then return 'paused' end
  if row.fire == '' then return 'missed' end
  if is_open and (row.overlap == 'queue' or row.late) then return 'held' end
  if is_open and row.overlap == 'skip' then return 'skipped' end
  row.cancels = is_open and row.overlap == 'cancel' and known[3]
  return 'fired'
end

if row_count > 0 then load_writing() end
for i, row in ipairs(rows) do
  words[i] = judge(row)
  is_any = is_any or words[i] ~= 'stale' and words[i] ~= 'early'
end
if is_any then firing.write(rows, words, key_ttl, now) end

local first, found = agenda.note_first(now), {}
local due = first >= 0 and commands.try('ZRANGEBYSCORE', shard.root .. ':schedules', '-inf', commands.whole(now), 'WITHSCORES', 'LIMIT', 0, most) or {}
for i = 1, #due, 2 do
  if bytes <= 0 then break end -- before it reads the next plan
  local id, n = due[i], #found
  local known = commands.try('HMGET', shard.key('schedule', id), 'gen', 'slot', 'lastjob', 'held') or {}
  local plan = known[1] and commands.try('GET', shard.key('plan', id))
  if not plan then -- nobody can fire what is lost
    agenda.put(id, '')
  else
    bytes = bytes - #plan
    found[n + 1], found[n + 2], found[n + 3], found[n + 4] = id, known[1], known[2] or '', known[3] or ''
    found[n + 5], found[n + 6], found[n + 7] = known[4] or '', commands.whole(due[i + 1]), plan
  end
end
return { now, first, words, found }
