--exports Hold
-- A hold: what `held:<worker>` says of one job.
--   6 bytes, when it was claimed, ms; 1 byte, `0`, or `c` once its holder was asked to cancel it; 2 bytes, its place among
--   the claims of that call; the token; and of a job that takes a slot of a limit (`slots.lua`) a NUL and its queue, and a NUL and its limit
--   key if it has one
--   token: the worker, for its second lane a `+`, and after a `:` the number of the call that claimed the job, or `h` if
--     it was handed over (`handing.lua`)
Hold = {}

function Hold.worker_of(token)
  return string.match(token or '', '^[^+:]+')
end

function Hold.make(token, now, place)
  return struct.pack('>I6c1I2', now, '0', place) .. token
end

-- What somebody else wrote there is as old as can be, and nobody's.
function Hold.time(hold)
  return #hold > 9 and struct.unpack('>I6', hold) or 0
end

-- Jobs that are given back are placed in the order in which they were claimed.
function Hold.place(hold)
  return #hold > 9 and struct.unpack('>I2', hold, 8) or 0
end

function Hold.token(hold)
  local cut = string.find(hold, '\0', 10, true)
  return string.sub(hold, 10, cut and cut - 1 or -1)
end

-- Whether that is its token, and a slot of a limit stands behind it.
function Hold.has_token(hold, token)
  return string.byte(hold, 10 + #token) == 0 and string.sub(hold, 10, 9 + #token) == token
end

-- What stands behind the token: of what limit it takes a slot; or ''.
function Hold.place_of_slot(hold)
  return string.sub(hold, string.find(hold, '\0', 10, true) or #hold + 1)
end

-- The queue of that limit, or nil; and the limit key, or ''.
function Hold.slot_of(place)
  return string.match(place, '^%z(%Z*)%z?(.*)$')
end

-- hold: or its token.
function Hold.is_handed(hold)
  return string.sub(hold, -2) == ':h' or string.find(hold, ':h\0', 1, true) ~= nil
end

-- What `due` says of a job that its worker has not confirmed.
function Hold.entry_of_hand(worker, id)
  return 'hand:' .. worker .. '/' .. id
end

function Hold.is_older(one, other)
  if one.time ~= other.time then return one.time < other.time end
  if one.place ~= other.place then return one.place < other.place end
  return one.id < other.id
end
