--needs shard commands book limiting
--exports orders
-- What people and programs order for a queue: `limits:<queue>`, a hash, and `limited`, the queues for which anything holds.
--   paused, by, reason   since when the queue is paused, ms; who paused it, and why
--   ordered              the limit that somebody set at run time, JSON: {"at_once": 20, "rates": [[100, 1000]], "each": 5,
--                        "each_rates": [[10, 1000]]}
--   home                 the queue whose jobs stand here while it is paused, and until the last one went home (`shelves.lua`)
--   declared, keeps      what a program declares: the limit, or '', and how long finished jobs are kept (`model/keep.py`), which
--                        is only shown, because each call brings it anew
--   since                when the worker came that declared these, ms
-- The limit that holds is the ordered one, else the declared one. It stands in `slots:<queue>` for claims (`slots.lua`).
-- What must hold: a queue is in `limited`, and has its flags in the book, exactly while the hash says so. All is written by
-- one call. An older worker does not overwrite what a newer one declared; so where only `since` is left, it stays a day.
-- Crash windows: `book-lost` (who opens the shard again sets the flags by these hashes), `limit-begins` (jobs run when a
-- limit begins: the call that sets it counts them and names the queue in their holds, of the first 20,000 of the fleet).
local REMEMBERED = 86400000 -- a day

orders = {}

local function set_flag(queue, flag, is_set)
  if is_set then book.set(queue, flag) else book.clear(queue, flag) end
end

-- Makes all else what the hash says. Returns the limit that holds, or nil.
function orders.note(queue, now)
  local name = shard.key('limits', queue)
  local known = redis.call('HMGET', name, 'paused', 'ordered', 'declared', 'since', 'home', 'keeps')
  local limit = known[2] or known[3] ~= '' and known[3] or nil
  limiting.set(queue, limit, now)
  set_flag(queue, book.PAUSED, known[1])
  set_flag(queue, book.LIMITED, limit)
  set_flag(queue, book.KEEPS, known[6])
  if known[5] then book.set(known[5], book.SHELVED) end
  if known[1] or known[5] or limit or known[6] then
    redis.call('SADD', shard.root .. ':limited', queue)
    redis.call('PERSIST', name)
  else
    redis.call('SREM', shard.root .. ':limited', queue)
    if known[4] then redis.call('PEXPIRE', name, REMEMBERED) end
  end
  return limit
end

-- A worker that came at `since` declares the limit and what is kept, '' for none. A time in the future is that of a release whose workers
-- told their own, by a clock that was ahead.
function orders.note_declared(queue, limit, keeps, since, now)
  local name = shard.key('limits', queue)
  local known = redis.call('HMGET', name, 'declared', 'since', 'keeps')
  local is_same, before = (known[1] or '') == limit and (known[3] or '') == keeps, tonumber(known[2] or nil)
  if before and before > now then before = nil end
  if before and since < before or is_same and (not before or since == before) then return end
  redis.call('HSET', name, 'declared', limit, 'since', commands.whole(since))
  if keeps ~= '' then redis.call('HSET', name, 'keeps', keeps) else redis.call('HDEL', name, 'keeps') end
  if not is_same then orders.note(queue, now) end
end

-- Of a queue that is removed.
function orders.forget(queue)
  redis.call('DEL', shard.key('limits', queue), shard.key('slots', queue))
  redis.call('SREM', shard.root .. ':limited', queue)
  redis.call('ZREM', shard.root .. ':due', 'turn:' .. queue)
end
