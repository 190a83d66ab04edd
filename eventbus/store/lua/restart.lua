-- Begins the next run of a tree that has ended: its root is given a new body and runs again, without what the
-- last run left there (its stop, outcome, attempts, checkpoints). Members of earlier runs stay as they ended;
-- the root adds those of the new one itself. The outcome of a run that failed is kept in the root's log.
-- Repeat-safe: a run is begun once, for its number is checked, and the call that began it hears so again.
-- Crash windows: `signal-then-restarted` (a signal of the last run is sent again: its id is kept, and it is no signal of this one).
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now id call run body timeout keeps forgets
--   call: fresh for each request, the same when it is sent again | run: the last one's number, counted from 1
--   timeout: of the new run, ms from now, or '' | keeps: what stays: `journal`, `inbox`; `live`: the texts whose names begin with `saved/kept/`; `texts`: with it, all of them |
--   forgets: of an inbox that stays, signals that the last run took, and that the new one may be sent once more
-- answer: restarted | open (it has not ended) | other (that was not the last run) |
--   member (of another tree, which alone can run it again) | unknown (no root of a tree, or removed)
--include shard args commands changes guard codec completed fields flag journals placing records pointers putting_off outcomes waking

local ENDED = { completed = true, failed = true, cancelled = true }
local now = args.take_now()
local id, call, run, body, timeout = args.take(), args.take(), args.take(), args.take(), args.take()
local keeps, forgets = args.take(), args.take()
local record = fields.fetch(id)
if not record or not record.tree or record.removed then return 'unknown' end
if record.root then return 'member' end
if record.restarter == call then return 'restarted' end
if (tonumber(record.run or 1) or 1) ~= run then return 'other' end
local state, queue = record.state, record.queue
if not ENDED[state] then return 'open' end

-- An earlier emission that its key stands for must not hear of the new run what it heard of the last one.
local function open_key(digest)
  local pointer = shard.key('key', queue .. ':' .. digest)
  local values = commands.try('HMGET', pointer, 'job', 'print') or {}
  if values[1] == id then pointers.point(pointer, id, values[2] or '') end
  redis.call('DEL', shard.key('outcome', id))
end

local head = { state = 'waiting', created = record.created, queue = queue, flags = FLAG.MORE, limit = record.limit }
local entry = (tonumber(record.entry) or 0) + 1 -- the last run may have left a tombstone
local more = { 'restarter', call, 'run', run + 1, 'due', now, 'entry', entry }
record.stopped = record.stop == 'cancelled' and record.stopper or record.cancel or record.stopped
for _, field in ipairs({ 'tree', 'on', 'key', 'priority', 'keep', 'stopped' }) do
  if record[field] then more[#more + 1], more[#more + 2] = field, record[field] end
end
local text = state ~= 'completed' and fields.text_of(id, record) or ''
redis.call('HSET', shard.key('more', id), 'restarter', call) -- a full server refuses it
for _, kind in ipairs({ 'more', 'result', 'progress', 'waiters', 'needs', 'leaves', 'checkpoints', 'body' }) do
  redis.call('DEL', shard.key(kind, id)) -- whatever the last run left there
end
local kept = {}
for _, kind in ipairs(keeps) do kept[kind] = true end
-- A signal of the last run that is sent again must not reach this one. An id that a caller chose (those of the library begin
-- with a `~`) counts as long as what took the signal does: whoever runs that again may be sent the same signal once more.
local taken, forgotten, inbox = {}, {}, shard.key('inbox', id)
for _, signal in ipairs(forgets) do forgotten[journals.name_signal(signal)] = signal end
local function is_kept(word)
  if string.sub(word, 1, 1) == '~' then return true end
  local signal = forgotten[word]
  return kept.inbox and (not signal or commands.try('HGET', inbox, signal))
end
for word in string.gmatch(commands.try('HGET', shard.key('live', id), '#taken') or '', '%S+') do
  if is_kept(word) then taken[#taken + 1] = word end
end
for _, kind in ipairs({ 'journal', 'inbox', 'live' }) do
  if not kept[kind] then redis.call('DEL', shard.key(kind, id)) end
end
local live = not kept.texts and commands.try('HGETALL', shard.key('live', id)) or {}
for i = 1, #live, 2 do
  if live[i]:sub(1, 11) ~= 'saved/kept/' then redis.call('HDEL', shard.key('live', id), live[i]) end
end
if taken[1] then
  redis.call('HSET', shard.key('live', id), '#taken', table.concat(taken, ' '))
else
  redis.call('HDEL', shard.key('live', id), '#taken') -- if all texts stay, the old one is still there
end
if redis.call('EXISTS', shard.key('inbox', id)) == 1 then more[#more + 1], more[#more + 2] = 'inbox', 1 end
redis.call('HSET', shard.key('more', id), unpack(more))
fields.keep_body(head, id, body)
redis.call('SET', shard.job_root .. id, codec.encode(head))
if redis.call('EXISTS', shard.key('log', id), shard.key('lines', id), shard.key('inbox', id), shard.key('live', id)) > 0 then FLAG.add(id, FLAG.SIDE) end
if redis.call('EXISTS', shard.key('journal', id)) == 1 then FLAG.add(id, FLAG.JOURNAL) end
records.note_error(id, records.add_times(text, record.due, record.ended - record.lasted, record.ended, record.worker, 'failed'))
if state == 'completed' then
  completed.unlist(queue, id, record.ended)
else
  redis.call('ZREM', shard.key(state, queue), id)
end
commands.try('ZREM', shard.key('leaving', queue), id)
commands.try('ZADD', shard.key('roots', queue), now, id)
if record.key then open_key(record.key) end

if changes.is_on() then changes.note('added', queue, id, 'waiting') end
local ready = {}
placing.line_up(ready, queue, { id = id, priority = record.priority, entry = entry, limit = record.limit })
placing.flush(ready, now, putting_off.put_off)
if timeout ~= '' then
  redis.call('ZADD', shard.root .. ':due', now + timeout, 'timeout:' .. id)
  if redis.call('ZRANGE', shard.root .. ':due', 0, 0)[1] == 'timeout:' .. id then waking.wake_queue(queue, now) end
end
return 'restarted'
