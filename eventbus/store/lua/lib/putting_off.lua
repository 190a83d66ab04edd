--needs base codec delays fields record
--exports set_apart put_off park_later
-- Jobs that are in the server and cannot go where they belong, because somebody else's value stands in that place.

function set_apart(id, now, queue)
  quarantine(id, queue, 'its queue cannot be written', now)
end

function put_off(id, now, queue)
  delays.again(id, now, queue, set_apart)
end

-- A job of a later release waits for a worker that can read it.
function park_later(id, queue, now)
  if peek(id) then change(id, 'state', 'parked', 'token', false) else set_parked(id) end
  if not try('ZADD', key('parked', queue), now, id) then put_off(id, now, queue) end
end
