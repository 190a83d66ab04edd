-- Bulk operations (`engine/operations`): what is to be done to which jobs, how far that is, and who does it now.
--   begin  -> running, for anybody to take
--   take   -> held by a runner until its lease ends; the same again for whoever takes it after that
--   save   -> the runner tells how far it is, and which jobs it does next; the lease begins anew
--   stop   -> stopped at once; its runner hears so when it saves. Until then it stays with those that may be taken, so that
--             whoever comes after a lost runner counts what was under way.
-- running -> completed | failed (by its runner, or because five runners in a row came to nothing) | stopped
-- Repeat-safe: `begin` knows its id, `save` sets and adds nothing, `stop` finds it stopped. A repeated `take` may take none,
-- or another one: what the first one took is free when its lease ends.
-- Crash windows: `take-not-answered` (free when the lease ends), `runner-lost` (the same, and whoever takes it does again the
-- jobs that were saved last, under the same name), `stopped-meanwhile` (what the runner did last is counted when it saves),
-- `stopped-and-lost` (the next runner does so, once the lease of the lost one has ended).
-- A full server lets it through, because to remove jobs frees it. The first write is one that a full server allows.
-- flags: allow-oom
-- KEYS: the shard's book, and a key that never exists
-- head: now what id token lease state fields following
--   what: begin | take | save | stop | state: save: that in which it ended, or '' | fields: name, value ...
--   following: save: the same, and written only while it runs
-- answer: begin: begun | known; take: the id and all fields of one, or nothing; save: lost | its state; stop: its state | unknown
--include shard args commands guard

local KEPT, MOST, TRIES = 604800000, 1000, 5 -- a week; operations that are listed; runners
local now = args.take_now()
local what, id, token, lease, state, fields, following = args.take(), args.take(), args.take(), args.take(), args.take(), args.take(), args.take()
local all, open = shard.root .. ':operations', shard.root .. ':unfinished'
local name = shard.key('operation', id)

local function finish(of, ending, has_more)
  redis.call('HSET', shard.key('operation', of), 'state', ending, 'ended', commands.whole(now))
  if not has_more then redis.call('ZREM', open, of) end
  redis.call('PEXPIRE', shard.key('operation', of), KEPT)
  return ending
end

local function read_state(of)
  return commands.try('HGET', shard.key('operation', of), 'state') or 'unknown'
end

local function forget_old()
  local over = redis.call('ZCARD', all) - MOST
  for _, old in ipairs(redis.call('ZRANGE', all, 0, 99)) do
    local found = read_state(old)
    if found == 'unknown' or over > 0 and found ~= 'running' then
      redis.call('DEL', shard.key('operation', old))
      redis.call('ZREM', all, old)
    end
    over = over - 1
  end
end

local function hold(of, found_in)
  if redis.call('HINCRBY', shard.key('operation', of), 'tries', 1) > TRIES then
    if found_in == 'stopped' then
      redis.call('ZREM', open, of)
      return nil
    end
    redis.call('HSET', shard.key('operation', of), 'problem', TRIES .. ' processes in a row took it and were lost, or could not go on')
    finish(of, 'failed')
    return nil
  end
  redis.call('HSET', shard.key('operation', of), 'token', token)
  redis.call('ZADD', open, commands.whole(now + lease), of)
  local found = redis.call('HGETALL', shard.key('operation', of))
  table.insert(found, 1, of)
  return found
end

shard.begin_writing()
if what == 'begin' then
  if redis.call('EXISTS', name) == 1 then return 'known' end
  forget_old()
  redis.call('HSET', name, 'state', 'running', 'begun', commands.whole(now), unpack(fields))
  redis.call('ZADD', all, commands.whole(now), id)
  redis.call('ZADD', open, commands.whole(now), id)
  return 'begun'
elseif what == 'take' then
  for _, free in ipairs(redis.call('ZRANGEBYSCORE', open, '-inf', commands.whole(now), 'LIMIT', 0, 10)) do
    local found = read_state(free)
    if found == 'unknown' then
      redis.call('ZREM', open, free) -- somebody deleted its record
    else
      local held = hold(free, found)
      if held then return held end
    end
  end
  return {}
end
local found = read_state(id)
if what == 'stop' then
  if found ~= 'running' then return found end
  redis.call('HSET', name, unpack(fields))
  return finish(id, 'stopped', (commands.try('HGET', name, 'batch') or '') ~= '')
end
if commands.try('HGET', name, 'token') ~= token then return 'lost' end
redis.call('HSET', name, 'tries', 0, unpack(fields))
if found ~= 'running' then
  redis.call('ZREM', open, id) -- what was under way when it was stopped is counted now
  return found
end
if #following > 0 then redis.call('HSET', name, unpack(following)) end
if state ~= '' then return finish(id, state) end
redis.call('ZADD', open, commands.whole(now + lease), id)
return found
