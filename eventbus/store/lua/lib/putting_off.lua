--needs shard codec delays fields moments records
--exports putting_off
-- Jobs that are in the server and cannot go where they belong, because somebody else's value stands in that place.
putting_off = {}

function putting_off.set_apart(id, now, queue)
  records.quarantine(id, queue, 'its queue cannot be written', now)
end

function putting_off.put_off(id, now, queue)
  delays.again(id, now, queue, putting_off.set_apart)
end

-- A job of a later release waits for a worker that can read it.
function putting_off.park_later(id, queue, now)
  if fields.peek(id) then fields.change(id, 'state', 'parked', 'token', false) else codec.set_parked(id) end
  if not moments.add(shard.key('parked', queue), { now, id }) then putting_off.put_off(id, now, queue) end
end
