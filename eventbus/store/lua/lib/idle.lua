--needs shard commands
--exports idle
-- Workers that have nothing to do: `idle:<pool>`, worker -> until when that counts, ms. `handing.lua` says what for.
-- The worker's announcement, which its event loop sends each 5 s, lets it count on; so one that hangs counts for 10 s.
local COUNTS = 10000
local KEPT_IDLE = 60000 -- the set of a pool that is gone

idle = {}

function idle.note(worker, pool, now)
  local name = shard.key('idle', pool)
  if commands.try('ZADD', name, now + COUNTS, worker) then redis.call('PEXPIRE', name, KEPT_IDLE) end
end

-- One that is there counts on.
function idle.keep(worker, pool, now)
  local name = shard.key('idle', pool)
  if commands.try('ZADD', name, 'XX', now + COUNTS, worker) then redis.call('PEXPIRE', name, KEPT_IDLE) end
end

-- Takes the worker of the pool that said so last out of the set; nil where no worker counts.
function idle.take(pool, now)
  local found = commands.try('ZPOPMAX', shard.key('idle', pool)) or {}
  return found[2] and tonumber(found[2]) >= now and found[1] or nil
end

-- What a turn says of its worker; `has_nothing`: the turn claims nothing and leaves nothing.
--   offer: 1 if nothing runs: the worker is idle unless it has something | 2 if it is idle by an earlier call: it is no
--   more if it claims something | 3 if it is not idle any more | 0
function idle.turn(offer, worker, pool, now, has_nothing, has_claims)
  if offer == 1 and has_nothing then
    idle.note(worker, pool, now)
  elseif offer == 3 or offer == 2 and has_claims then
    idle.forget(worker, pool)
  end
end

function idle.forget(worker, pool)
  commands.try('ZREM', shard.key('idle', pool), worker)
end
