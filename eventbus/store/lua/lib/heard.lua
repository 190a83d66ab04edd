-- When the server was last heard by any worker. After a gap longer than a third of the
-- lease (server paused, restarted, failed over) leases were not renewed through no fault
-- of their holders: no rescue before one more lease has passed.
local function note_heard(now, lease)
  local heard = tonumber(redis.call('HGET', root .. ':clock', 'heard') or now)
  if now - heard > lease / 3 then
    redis.call('HSET', root .. ':clock', 'heard', now, 'grace', now + lease)
  else
    redis.call('HSET', root .. ':clock', 'heard', now)
  end
end
