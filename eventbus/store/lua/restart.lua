-- Begins the next run of a tree that has ended: its root is given a new body and runs again, without what the
-- last run left there (its stop, outcome, attempts, checkpoints). Members of earlier runs stay as they ended;
-- the root adds those of the new one itself. The outcome of a run that failed is kept in the root's log.
-- Repeat-safe: a run is begun once, for its number is checked, and the call that began it hears so again.
-- The first write is one that a full server refuses.
-- flags: none
-- KEYS: the shard's book, and a key that never exists
-- head: now id call run body timeout keeps
--   call: fresh for each request, the same when it is sent again | run: the last one's number, counted from 1
--   timeout: of the new run, ms from now, or '' | keeps: what stays: `journal`, `inbox`; `live`: the texts whose names begin with `saved/kept/`; `texts`: with it, all of them
-- answer: restarted | open (it has not ended) | other (that was not the last run) |
--   member (of another tree, which alone can run it again) | unknown (no root of a tree, or removed)
--include base changes guard codec completed fields format ready record pointer putting_off outcomes waking

local ENDED = { completed = true, failed = true, cancelled = true }
local now = read_now(take())
local id, call, run, body, timeout, keeps = take(), take(), take(), take(), take(), take()
local record = fetch(id)
if not record or not record.tree or record.removed then return 'unknown' end
if record.root then return 'member' end
if record.restarter == call then return 'restarted' end
if (tonumber(record.run or 1) or 1) ~= run then return 'other' end
local state, queue = record.state, record.queue
if not ENDED[state] then return 'open' end

-- An earlier emission that its key stands for must not hear of the new run what it heard of the last one.
local function open_key(digest)
  local pointer = key('key', queue .. ':' .. digest)
  local values = try('HMGET', pointer, 'job', 'print') or {}
  if values[1] == id then pointers.point(pointer, id, values[2] or '') end
  redis.call('DEL', key('outcome', id))
end

local head = { state = 'waiting', created = record.created, queue = queue, flags = FLAG.MORE, limit = record.limit }
local entry = (tonumber(record.entry) or 0) + 1 -- the last run may have left a tombstone
local more = { 'restarter', call, 'run', run + 1, 'due', now, 'entry', entry }
for _, field in ipairs({ 'tree', 'on', 'key', 'priority', 'keep' }) do
  if record[field] then more[#more + 1], more[#more + 2] = field, record[field] end
end
local text = state ~= 'completed' and text_of(id, record) or ''
redis.call('HSET', key('more', id), 'restarter', call) -- a full server refuses it
for _, kind in ipairs({ 'more', 'result', 'progress', 'waiters', 'needs', 'leaves', 'checkpoints', 'body' }) do
  redis.call('DEL', key(kind, id)) -- whatever the last run left there
end
local kept = {}
for _, kind in ipairs(keeps) do kept[kind] = true end
for _, kind in ipairs({ 'journal', 'inbox', 'live' }) do
  if not kept[kind] then redis.call('DEL', key(kind, id)) end
end
local live = not kept.texts and try('HGETALL', key('live', id)) or {}
for i = 1, #live, 2 do
  if live[i]:sub(1, 11) ~= 'saved/kept/' then redis.call('HDEL', key('live', id), live[i]) end
end
if redis.call('EXISTS', key('inbox', id)) == 1 then more[#more + 1], more[#more + 2] = 'inbox', 1 end
redis.call('HSET', key('more', id), unpack(more))
keep_body(head, id, body)
redis.call('SET', job_root .. id, codec.encode(head))
if redis.call('EXISTS', key('log', id), key('lines', id), key('inbox', id), key('live', id)) > 0 then add_flag(id, FLAG.SIDE) end
if redis.call('EXISTS', key('journal', id)) == 1 then add_flag(id, FLAG.JOURNAL) end
note_error(id, add_times(text, record.due, record.ended - record.lasted, record.ended, record.worker, 'failed'))
if state == 'completed' then
  completed.unlist(queue, id, record.ended)
else
  redis.call('ZREM', key(state, queue), id)
end
try('ZREM', key('leaving', queue), id)
try('ZADD', key('roots', queue), now, id)
if record.key then open_key(record.key) end

if changes.is_on() then changes.note('added', queue, id, 'waiting') end
local ready = {}
line_up(ready, queue, { id = id, priority = record.priority, entry = entry, limit = record.limit })
place_ready(ready, now, put_off)
if timeout ~= '' then
  redis.call('ZADD', root .. ':due', now + timeout, 'timeout:' .. id)
  if redis.call('ZRANGE', root .. ':due', 0, 0)[1] == 'timeout:' .. id then wake(queue, now) end
end
return 'restarted'
