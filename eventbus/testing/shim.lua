-- Stands before a script or the library, in the server of the test kit alone: gives it the virtual time.
--
-- Each call has one more argument, the last: the time in microseconds. `TIME` answers it, `XADD *` makes ids
-- of it, and keys expire `FAR` ms later than they should, so that the server's own clock never ends one. The
-- kit removes those whose virtual time has come; so a `SET` or a `PERSIST` ends an expiry as ever.
local FAR, shim = FAR_MS, { now = 0 }

-- Asked for each time: while a library is loaded, the server gives another table, which has no `call`.
local function real() return redis end

function shim.deadline(ms)
  return string.format('%.0f', math.floor(shim.now / 1000) + tonumber(ms) + FAR)
end

function shim.note(key, deadline)
  real().call('ZADD', 'expiring', deadline, key)
end

function shim.TIME()
  return { string.format('%.0f', math.floor(shim.now / 1000000)), string.format('%.0f', shim.now % 1000000) }
end

function shim.PEXPIRE(key, ms, ...)
  if tonumber(ms) <= 0 then return real().call('DEL', key) end
  local deadline = shim.deadline(ms)
  local done = real().call('PEXPIREAT', key, deadline, ...)
  if done == 1 then shim.note(key, deadline) end
  return done
end

function shim.RENAME(key, other)
  local answer, deadline = real().call('RENAME', key, other), real().call('ZSCORE', 'expiring', key)
  if deadline then shim.note(other, deadline) end
  return answer
end

function shim.EXPIRE(key, seconds, ...)
  return shim.PEXPIRE(key, tonumber(seconds) * 1000, ...)
end

-- For tests that ask how long a key has: the packages never do.
function shim.PTTL(key)
  local deadline = real().call('PEXPIRETIME', key)
  if deadline < 0 then return deadline end
  return deadline - FAR - math.floor(shim.now / 1000)
end

function shim.TTL(key)
  local ms = shim.PTTL(key)
  if ms < 0 then return ms end
  return math.floor((ms + 500) / 1000)
end

function shim.SET(key, value, ...)
  local given, deadline = { ... }, nil
  for at, word in ipairs(given) do
    if word == 'PX' or word == 'EX' then
      deadline = shim.deadline(given[at + 1] * (word == 'EX' and 1000 or 1))
      given[at], given[at + 1] = 'PXAT', deadline
    end
  end
  local answer = real().call('SET', key, value, unpack(given))
  if deadline and answer then shim.note(key, deadline) end
  return answer
end

-- The last id that a stream gave, also if its entry is gone: ms and number.
function shim.last(key)
  local facts = real().pcall('XINFO', 'STREAM', key)
  for at = 1, #facts, 2 do
    if facts[at] == 'last-generated-id' then
      local ms, number = string.match(facts[at + 1], '^(%d+)-(%d+)$')
      return tonumber(ms), tonumber(number)
    end
  end
  return -1, 0
end

function shim.XADD(key, ...)
  local given = { ... }
  for at, word in ipairs(given) do
    if word == '*' then
      -- Never below the last id, as the server makes its own when its clock was moved back.
      local ms, last, number = math.floor(shim.now / 1000), shim.last(key)
      if last >= ms then given[at] = string.format('%.0f-%.0f', last, number + 1)
      else given[at] = string.format('%.0f-0', ms) end
      break
    end
  end
  return real().call('XADD', key, unpack(given))
end

function shim.call(command, ...)
  local own = shim[command]
  if own then return own(...) end
  return real().call(command, ...)
end

function shim.pcall(command, ...)
  local own = shim[command]
  if not own then return real().pcall(command, ...) end
  local ok, answer = pcall(own, ...)
  if ok or type(answer) == 'table' then return answer end
  return { err = tostring(answer) }
end

local redis = { call = shim.call, pcall = shim.pcall }

function shim.begin(now)
  shim.now, redis.error_reply, redis.sha1hex = tonumber(now), real().error_reply, real().sha1hex
end
