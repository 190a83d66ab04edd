-- Begins the next run of a tree that has ended: its root is given a new body and runs again, without what the
-- last run left there (its stop, outcome, attempts, checkpoints). Members of earlier runs stay as they ended;
-- the root adds those of the new one itself. The outcome of a run that failed is kept in the root's log.
-- Repeat-safe: a run is begun once, for its number is checked, and the call that began it hears so again.
-- The first write is one that a full server refuses.
-- KEYS: the shard's book, and a key that never exists
-- head: now id call run body timeout
--   call: fresh for each request, the same when it is sent again | run: the last one's number, counted from 1
--   timeout: of the new run, ms from now, or ''
-- answer: restarted | open (it has not ended) | other (that was not the last run) |
--   member (of another tree, which alone can run it again) | unknown (no root of a tree)
--include base guard ready record pointer putting_off outcomes

local ENDED = { completed = true, failed = true, cancelled = true }
local now = read_now(take())
local id, call, run, body, timeout = take(), take(), take(), take(), take()
local name = job_root .. id

local v = try('HMGET', name, 'state', 'queue', 'tree', 'root', 'run', 'restarter', 'key', 'order') or {}
local state, queue = v[1], v[2]
if not state or not queue or not v[3] then return 'unknown' end
if v[4] then return 'member' end
if v[6] == call then return 'restarted' end
if (tonumber(v[5] or 1) or 1) ~= run then return 'other' end
if not ENDED[state] then return 'open' end

-- An earlier emission that its key stands for must not hear of the new run what it heard of the last one.
local function open_key(digest)
  local pointer = key('key', queue .. ':' .. digest)
  local values = try('HMGET', pointer, 'job', 'print') or {}
  if values[1] == id then point(pointer, id, values[2] or '') end
  redis.call('DEL', key('outcome', id))
end

redis.call('HSET', name, 'restarter', call)
if state ~= 'completed' then note_error(id, try('HGET', name, 'result') or try('GET', key('result', id)) or '') end
local fields = { 'restarter', call, 'run', run + 1, 'due', now, 'body', #body <= FIELD and body or '' }
for _, field in ipairs({ 'queue', 'tree', 'on', 'created', 'key' }) do
  local value = redis.call('HGET', name, field)
  if value then fields[#fields + 1], fields[#fields + 2] = field, value end
end
redis.call('DEL', name) -- whatever else the last run left there
redis.call('HSET', name, unpack(fields))
for _, kind in ipairs({ 'result', 'progress', 'waiters', 'needs', 'leaves', 'checkpoints', 'body' }) do
  redis.call('DEL', key(kind, id))
end
if #body > FIELD then redis.call('SET', key('body', id), body) end
redis.call('ZREM', key(state, queue), id)
try('ZADD', key('roots', queue), now, id)
if v[7] then open_key(v[7]) end

local ready = {}
requeue({ [queue] = { { id = id, order = v[8] and is_number(v[8]) and v[8] or MIDDLE } } }, ready)
place_ready(ready, now, put_off)
if timeout ~= '' then
  redis.call('ZADD', root .. ':due', now + timeout, 'timeout:' .. id)
  if redis.call('ZRANGE', root .. ':due', 0, 0)[1] == 'timeout:' .. id then wake(queue, now) end
end
return 'restarted'
