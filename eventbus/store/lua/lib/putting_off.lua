--needs delays record
--exports set_apart put_off
-- Jobs that are in the server and cannot go where they belong, because somebody else's value stands in that place.

function set_apart(id, now, queue)
  quarantine(id, queue, 'its queue cannot be written', now)
end

function put_off(id, now, queue)
  delay_again(id, now, queue, set_apart)
end
