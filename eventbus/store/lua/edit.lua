-- Changes a job that waits for its turn, is delayed or parked: when it is due, its priority, its body.
-- Not one that somebody runs, or that has ended; not a member of a tree, which follows its root; not a root that has begun or stops.
-- The record and the place change in this one call: so whoever claims, cancels or promotes the job finds it as it was
-- before, or as it is then. An entry that cannot be cut is a tombstone (`entry.lua`).
-- The next job of a key begins with the end of the job before it, whatever is asked: a change of its due time is one of
-- when it is ripe (`succession.lua`).
-- Repeat-safe: the record names the call that changed it last, and that call is answered the same.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now id call due priority print body limit states
--   call: fresh for each request, the same when it is sent again
--   due: ms from now (0: now), or '' | priority: or '' | print: SHA-1 of the body that `body` replaces, or ''
--   limit: the limit key of `body`, '' if it stays
--   states: in which it may be changed
-- answer: changed | other (its body is not the one that `print` says) | member | begun | unknown | or else its state
--include shard args commands changes guard codec delays next_due entry fields flag holds lines putting_off placing records waking

local now = args.take_now()
local id, call, due, priority, print, body, limit, states = args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local record = records.read(id)
if not record or record.is_later then return 'unknown' end
if record.edited == call then return 'changed' end
local state, queue = record.state, record.queue
if state == 'waiting' and (record.token or holds.find(id)) then state = 'active' end
local is_allowed = false
for _, each in ipairs(states) do is_allowed = is_allowed or each == state end
if not is_allowed then return state end
if record.root then return 'member' end
if bit.band(record.flags, FLAG.JOURNAL) ~= 0 or record.waited or record.wakes or record.listens or record.pending or record.stop then return 'begun' end
if print ~= '' and redis.sha1hex(record.size and commands.try('GET', shard.key('body', id)) or record.body or '') ~= print then return 'other' end

if limit == '' then limit = record.limit end
local moves = state == 'waiting' and (priority ~= '' or due ~= '' and due > 0 or limit ~= record.limit)
  or state == 'delayed' and due ~= '' and (due > 0 or not record.after)
redis.call('HSET', shard.key('more', id), 'edited', call) -- a full server refuses it
if moves and state == 'delayed' then
  commands.try('ZREM', shard.key('delayed', queue), id)
  delays.forget(queue)
elseif moves and lines.leave(id, record) then
  record.entry = (tonumber(record.entry) or 0) + 1
  fields.change(id, 'entry', record.entry)
end
fields.change(id, 'edited', call)
if priority ~= '' then
  record.priority = priority
  fields.change(id, 'priority', priority)
end
if limit ~= record.limit then
  record.limit = limit
  fields.change(id, 'limit', limit)
end
if body ~= '' then
  local head = fields.peek(id)
  if head.size then redis.call('DEL', shard.key('body', id)) end
  fields.keep_body(head, id, body)
  redis.call('SET', shard.job_root .. id, codec.encode(head))
end

if record.after and due ~= '' then fields.change(id, 'ripe', commands.whole(now + due)) end
if moves and due ~= '' and due > 0 then
  local earliest = next_due.read()
  fields.change(id, 'state', 'delayed', 'due', commands.whole(now + due))
  delays.place({ [queue] = { now + due, id } }, now, putting_off.set_apart)
  if changes.is_on() then changes.note('delayed', queue, id, 'delayed', { due = now + due }) end
  if earliest < 0 or now + due < earliest then waking.wake_queue(queue, now) end
elseif moves then
  if state == 'delayed' then
    fields.change(id, 'state', 'waiting', 'due', commands.whole(now))
    if changes.is_on() then changes.note('promoted', queue, id, 'waiting') end
  end
  local ready = {}
  record.id = id
  placing.line_up(ready, queue, record)
  placing.flush(ready, now, putting_off.put_off)
end
return 'changed'
