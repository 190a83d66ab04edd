--needs shard commands
--exports heard
-- When the server was last heard by any worker, and what its clock may have done meanwhile.
--
-- After a gap longer than half of the lease (server paused, restarted, failed over, its clock set
-- forward) leases were not renewed through no fault of their holders: no rescue before one more lease
-- has passed. Half, for renewals come each 0.3 of a lease: a single worker whose beats are a little
-- late must not put its own rescue off.
--
-- What the clock of the server does, by any size, may put a rescue off by one lease and not more:
--   set forward   is a gap, though no time has passed: all leases look ended, and who lives renews
--   set back      `heard` is ahead, which is no gap: leases end later than they should, not earlier.
--                 A grace that is further away than the lease that it was given for was written
--                 before, and holds no more. So was a lease that ends later than its holder could
--                 have made it; it is cut to one lease from now, in which a live holder renews it
--   both in turn  as each by itself: nothing here remembers the time between them

heard = {}

function heard.note(now, lease)
  local last = tonumber(redis.call('HGET', shard.root .. ':clock', 'heard') or now)
  if now - last > lease / 2 then
    redis.call('HSET', shard.root .. ':clock', 'heard', now, 'grace', now + lease, 'lease', lease)
  else
    redis.call('HSET', shard.root .. ':clock', 'heard', now)
  end
end

-- The ms until jobs may be rescued. `lease` is the caller's; the grace may be another worker's.
function heard.left_of_grace(now, lease)
  local v = redis.call('HMGET', shard.root .. ':clock', 'grace', 'lease')
  local left = (tonumber(v[1]) or 0) - now
  if left <= (tonumber(v[2]) or lease) then return math.max(0, left) end
  redis.call('HDEL', shard.root .. ':clock', 'grace') -- else it would look right again later
  return 0
end

local AHEAD = 100 -- a call looks at so many of the leases that end last
local UNHEARD = 60000 -- the lease of a worker that is not known, unless the caller's is longer

-- The longest that the leases of a worker may run: workers may have different ones.
local function read_span(worker, lease)
  return tonumber(commands.try('HGET', shard.key('worker', worker), 'lease')) or math.max(lease, UNHEARD)
end

function heard.cut_leases(now, lease)
  local workers = shard.root .. ':workers'
  local last = redis.call('ZREVRANGE', workers, 0, 0, 'WITHSCORES')[2]
  if not last or tonumber(last) <= now + lease then return end -- mostly
  local found = redis.call('ZREVRANGE', workers, 0, AHEAD - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    if tonumber(found[i + 1]) <= now + lease then return end
    local span = read_span(found[i], lease)
    if tonumber(found[i + 1]) > now + span then redis.call('ZADD', workers, now + span, found[i]) end
  end
end
