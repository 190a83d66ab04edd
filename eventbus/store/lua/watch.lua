-- Somebody watches scopes (`changes.lua`), for LIFE from now on. A scope that nobody watched is marked in the stream.
-- Repeat-safe: a repeat finds the scopes watched, and lets them live on.
-- The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: queues
-- queues: queue
--   queue: without its group, or `*` for all
-- answer: the number of the last change, as text
--include shard args commands changes guard

local LIFE, KEPT = 30000, 600000 -- ms
local count = args.take()
local names = {}
for i = 1, count do names[i] = args.take() end
local watched, stream, now = shard.root .. ':watched', shard.root .. ':changes', args.read_now('')
local live, last, all = {}, nil, commands.try('HGETALL', watched)
local is_gone = redis.call('EXISTS', stream) == 0 or not changes.is_on() -- somebody deleted the stream or the book
if not all then return redis.error_reply('FOREIGN the key ' .. watched .. ' has a value of another program; delete it, and watch again') end
for i = 1, #all, 2 do
  if all[i] == '#' then last = changes.is_number(all[i + 1]) and all[i + 1] or nil elseif (tonumber(all[i + 1]) or 0) > now then live[all[i]] = true end
end

shard.begin_writing()
if not last then -- nobody watched, so nothing was written for a while
  last = commands.whole(now * 1000)
  redis.call('HSET', watched, '#', last)
elseif is_gone then
  redis.call('HINCRBY', watched, '#', 1) -- by this number everybody sees a gap
end
for _, name in ipairs(names) do
  if is_gone or not live[name] and not live['*'] then
    local others = {}
    for other in pairs(live) do others[#others + 1] = other end
    last = commands.whole(changes.begin(name, others))
  end
  live[name] = true
  redis.call('HSET', watched, name, commands.whole(now + LIFE))
end
redis.call('PEXPIRE', watched, LIFE)
commands.try('PEXPIRE', stream, KEPT)
changes.set(true)
return last
