-- Removes a group of a queue, some of it in each call: from the first call on no emission makes a job for it. What waits,
-- is parked or delayed there ends as cancelled; what ended there is not listed any more, and goes by itself; what runs
-- is left alone. Repeat-safe: each call begins with what is there. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now queue group force limit age_completed age_failed key_ttl call text
--   force: also while live workers serve it, though they make it again when they announce themselves
--   call, text: as for `cancelling.cancel`
-- answer: word, live workers, how many jobs were cancelled
--   word: served (refused, nothing was done) | more (call again) | done
--include shard args commands guard cells entry floors retention completed records holds cancelling presence lanes lines orders epilogue

local LONGEST = 604800000 -- a week: nobody counts what is kept of a queue without workers
local now = args.take_now()
local queue, group, force, limit = args.take(), args.take(), args.take() == 1, args.take()
local age_completed, age_failed, key_ttl, call, text = args.take(), args.take(), args.take(), args.take(), args.take()
local name = queue .. '@' .. group
local cancelled, is_done = 0, true

local workers = presence.count(name, now, '')
if workers > 0 and not force then return { 'served', workers, 0 } end
for _, kind in ipairs({ 'ready', 'suspects' }) do
  if not commands.try('LLEN', shard.key(kind, name)) then
    return redis.error_reply('FOREIGN the key ' .. shard.key(kind, name) .. ' has a value of another program; nothing was removed. Delete it, and remove the group again')
  end
end
redis.call('SREM', shard.key('groups', queue), group)
if redis.call('EXISTS', shard.key('groups', queue)) == 0 then redis.call('SREM', shard.root .. ':grouped', queue) end

-- Cancels a job that stands where jobs in `state` do. Returns whether it was one.
local function cancel_one(id, state)
  local record = records.read_lease(id)
  if not record or record.queue ~= name or record.state ~= state then return false end
  if cancelling.cancel(id, call, text, now, key_ttl) == 'ended' then cancelled = cancelled + 1 end
  return true
end

for _, state in ipairs({ 'parked', 'delayed' }) do
  local place = shard.key(state, name)
  for _, id in ipairs(redis.call('ZRANGE', place, 0, limit - 1)) do
    if not cancel_one(id, state) then redis.call('ZREM', place, id) end -- a stray
  end
  is_done = is_done and redis.call('EXISTS', place) == 0
end

-- What waits: the first entries of a line go, whatever they stand for.
local function cancel_waiting(ids)
  holds.load(ids)
  for _, id in ipairs(ids) do
    lines.unlisted[id] = 'nowhere'
    if not holds.find(id) then cancel_one(id, 'waiting') end
  end
end

for _, kind in ipairs({ 'ready', 'suspects' }) do
  local place, ids = shard.key(kind, name), {}
  for i, entry in ipairs(redis.call('LRANGE', place, 0, limit - 1)) do ids[i] = Entry.job(entry) end
  cancel_waiting(ids)
  redis.call('LTRIM', place, limit, -1)
  is_done = is_done and redis.call('EXISTS', place) == 0
end
for _, lane in ipairs(lanes.list(name)) do
  local place, ids = lanes.key_of(name, lane), {}
  for i, entry in ipairs(commands.try('LRANGE', place, 0, limit - 1) or {}) do ids[i] = Entry.job(entry) end
  cancel_waiting(ids)
  redis.call('LTRIM', place, #ids, -1)
  lanes.cut(name, lane, #ids)
  limit = limit - #ids
  if limit <= 0 then break end
end
is_done = is_done and redis.call('EXISTS', shard.key('turns', name), shard.key('resting', name)) == 0
limit = math.max(limit, 1)
local ranked = redis.call('ZRANGE', shard.key('ready+', name), 0, limit - 1)
cancel_waiting(ranked)
commands.call_many('ZREM', shard.key('ready+', name), ranked)
is_done = is_done and redis.call('EXISTS', shard.key('ready+', name)) == 0
if is_done then
  redis.call('HDEL', shard.root .. ':dead', name)
  redis.call('HDEL', KEYS[1], name)
  orders.forget(name)
end
local ready = {}
epilogue.end_call(ready, now)

-- No worker sweeps this queue any more: what ended in it gets an expiry in the place of its entry.
local function expire(id, ended, age)
  local rest = commands.whole(math.max(ended + math.min(age, LONGEST) - now, floors.WINDOW))
  for _, each in ipairs(retention.list_keys({ id })) do redis.call('PEXPIRE', each, rest) end
end

for _, state in ipairs(is_done and { 'failed', 'cancelled' } or {}) do
  local place = shard.key(state, name)
  local ended = redis.call('ZRANGE', place, 0, limit - 1, 'WITHSCORES')
  for i = 1, #ended, 2 do
    expire(ended[i], tonumber(ended[i + 1]), age_failed)
    redis.call('ZREM', place, ended[i])
  end
  is_done = is_done and redis.call('EXISTS', place) == 0
end
if is_done then
  for _, each in ipairs(completed.read(name, 0, limit - 1)) do expire(each.id, each.ended or now, age_completed) end
  redis.call('LTRIM', shard.key('completed', name), limit, -1)
  is_done = redis.call('EXISTS', shard.key('completed', name)) == 0
  if is_done then commands.try('HDEL', shard.root .. ':cuts', name) end
end
if is_done then cells.forget(name, now) end
return { is_done and 'done' or 'more', workers, cancelled }
