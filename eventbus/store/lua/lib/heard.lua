-- When the server was last heard by any worker. After a gap longer than half of the
-- lease (server paused, restarted, failed over) leases were not renewed through no fault
-- of their holders: no rescue before one more lease has passed. Half, for renewals come each 0.3
-- of a lease: a single worker whose beats are a little late must not put its own rescue off.
local function note_heard(now, lease)
  local heard = tonumber(redis.call('HGET', root .. ':clock', 'heard') or now)
  if now - heard > lease / 2 then
    redis.call('HSET', root .. ':clock', 'heard', now, 'grace', now + lease)
  else
    redis.call('HSET', root .. ':clock', 'heard', now)
  end
end
