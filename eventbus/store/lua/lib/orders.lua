--needs base book fields hold holds lanes slots limit_keys waking windows
--exports orders
-- What people and programs order for a queue: `limits:<queue>`, a hash, and `limited`, the queues for which anything holds.
--   paused, by, reason   since when the queue is paused, ms; who paused it, and why
--   ordered              the limit that somebody set at run time, JSON: {"at_once": 20, "rates": [[100, 1000]], "each": 5,
--                        "each_rates": [[10, 1000]]}
--   declared, since      the limit that a program declares, or ''; when the process started that declared it, ms
-- The limit that holds is the ordered one, else the declared one. It stands in `slots:<queue>` for claims (`slots.lua`).
-- What must hold: a queue is in `limited`, and has its flags in the book, exactly while the hash says so. All is written by
-- one call. An older process does not overwrite what a newer one declared; so where only `since` is left, it stays a day.
-- Crash windows: `book-lost` (who opens the shard again sets the flags by these hashes), `limit-begins` (jobs run when a
-- limit begins: the call that sets it counts them and names the queue in their holds, of the first 20,000 of the fleet).
local MOST = 20000 -- holds of one call
local REMEMBERED = 86400000 -- a day

orders = {}

-- Counts the holds of jobs of the queue, and names it in those that do not name it yet.
local function count_held(queue, counts, now)
  local left = MOST
  for _, worker in ipairs(redis.call('ZRANGE', root .. ':workers', 0, -1)) do
    local names, changed, held = {}, {}, list_held(worker)
    left = left - #held
    if left < 0 then return end
    for i, each in ipairs(held) do names[i] = job_root .. each.id end
    for i, text in ipairs(get_all(names)) do
      local each = held[i]
      local named, lane = Hold.slot_of(each.hold)
      local record = not named and text and fetch(each.id, text)
      if record and record.queue == queue then
        named, lane = queue, record.limit or ''
        local place = '\0' .. queue .. (record.limit and '\0' .. record.limit or '')
        changed[#changed + 1], changed[#changed + 2] = each.id, each.hold .. place
      end
      if named == queue then counts.running = counts.running + 1 end
      if named == queue and lane ~= '' then limit_keys.count_held(counts, queue, lane, now) end
    end
    call_many('HSET', key('held', worker), changed)
  end
end

local function list_rates(rates)
  local flat = {}
  for _, rate in ipairs(rates or {}) do flat[#flat + 1], flat[#flat + 2] = rate[1], rate[2] end
  return flat
end

-- The limit as claims read it.
local function pack(text)
  local limit = cjson.decode(text)
  return cmsgpack.pack({ limit.at_once or 0, limit.each or 0, list_rates(limit.rates), list_rates(limit.each_rates) })
end

local function set_limit(queue, text, now)
  local name = key('slots', queue)
  local known, packed = redis.call('HMGET', name, '=', '', '#'), text and pack(text)
  if (known[1] or nil) == packed then return end
  if packed then
    local counts = slots.decode(packed, nil, now)
    if known[1] then
      local before = slots.decode(known[1], known[2], now)
      counts.running = before.running
      windows.take_over(counts.windows, before.windows)
    else
      count_held(queue, counts, now)
      limit_keys.flush(counts, queue)
    end
    redis.call('HSET', name, '=', packed, '', slots.encode(counts))
  else
    redis.call('DEL', name)
    redis.call('ZREM', root .. ':due', 'turn:' .. queue)
    if known[3] then redis.call('HSET', name, '#', known[3]) end -- the lanes stay
  end
  for _, lane in ipairs(try('SMEMBERS', key('resting', queue)) or {}) do lanes.end_rest(queue, lane) end
  wake_filled({ queue }, now)
end

local function set_flag(queue, flag, is_set)
  if is_set then book.set(queue, flag) else book.clear(queue, flag) end
end

-- Makes all else what the hash says. Returns the limit that holds, or nil.
function orders.note(queue, now)
  local name = key('limits', queue)
  local known = redis.call('HMGET', name, 'paused', 'ordered', 'declared', 'since')
  local limit = known[2] or known[3] ~= '' and known[3] or nil
  set_limit(queue, limit, now)
  set_flag(queue, book.PAUSED, known[1])
  set_flag(queue, book.LIMITED, limit)
  if known[1] or limit then
    redis.call('SADD', root .. ':limited', queue)
    redis.call('PERSIST', name)
  else
    redis.call('SREM', root .. ':limited', queue)
    if known[4] then redis.call('PEXPIRE', name, REMEMBERED) end
  end
  return limit
end

-- A process that started at `since` declares the limit, '' for none.
function orders.note_declared(queue, limit, since, now)
  local name = key('limits', queue)
  local known = redis.call('HMGET', name, 'declared', 'since')
  local is_same, before = (known[1] or '') == limit, tonumber(known[2] or nil)
  if before and since < before or is_same and (not before or since == before) then return end
  redis.call('HSET', name, 'declared', limit, 'since', whole(since))
  if not is_same then orders.note(queue, now) end
end

-- Of a queue that is removed.
function orders.forget(queue)
  redis.call('DEL', key('limits', queue), key('slots', queue))
  redis.call('SREM', root .. ':limited', queue)
  redis.call('ZREM', root .. ':due', 'turn:' .. queue)
end
