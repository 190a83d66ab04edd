--needs shard commands fields hold holds lanes limit_keys slots waking windows
--exports limiting
-- A limit begins, changes or ends: what `slots:<queue>` says (`slots.lua`), for the queue and for each limit key.
-- What runs when it begins is counted, and its holds name the queue; starts in windows of the same length are kept when it
-- changes; all keys that rest are looked at again. Where it ends, lanes stay, and have turns without a limit.
local MOST = bounds.CALL_HOLDS -- holds of one call
limiting = {}

-- Counts the holds of jobs of the queue, and names it in those that do not name it yet.
local function count_held(queue, counts, now)
  local left = MOST
  for _, worker in ipairs(redis.call('ZRANGE', shard.root .. ':workers', 0, -1)) do
    local names, changed, held = {}, {}, holds.list(worker)
    left = left - #held
    if left < 0 then return end
    for i, each in ipairs(held) do names[i] = shard.job_root .. each.id end
    for i, text in ipairs(commands.get_all(names)) do
      local each = held[i]
      local named, lane = Hold.slot_of(Hold.place_of_slot(each.hold))
      local record = not named and text and fields.fetch(each.id, text)
      if record and record.queue == queue then
        named, lane = queue, record.limit or ''
        local place = '\0' .. queue .. (record.limit and '\0' .. record.limit or '')
        changed[#changed + 1], changed[#changed + 2] = each.id, each.hold .. place
      end
      if named == queue then counts.running = counts.running + 1 end
      if named == queue and lane ~= '' then limit_keys.count_held(counts, queue, lane, now) end
    end
    commands.call_many('HSET', shard.key('held', worker), changed)
  end
end

-- Makes the numbers of all keys those of another limit: windows of the same length are kept. Where the rates are the same,
-- all numbers stand.
local function take_keys_over(counts, before, queue, now)
  if table.concat(counts.each_rates, ' ') == table.concat(before.each_rates, ' ') then return end
  local found = redis.call('HGETALL', shard.key('slots', queue))
  for i = 1, #found, 2 do
    local lane = string.match(found[i], '^:(.*)$')
    if lane then
      local former, own = limit_keys.decode(before, found[i + 1], now), limit_keys.decode(counts, nil, now)
      windows.take_over(own.windows, former.windows)
      own.running, own.is_changed, counts.lanes[lane] = former.running, true, own
    end
  end
  limit_keys.flush(counts, queue)
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

-- text: JSON, as in `orders.lua`; nil: there is none any more.
function limiting.set(queue, text, now)
  local name = shard.key('slots', queue)
  local known, packed = redis.call('HMGET', name, '=', '', '#'), text and pack(text)
  if (known[1] or nil) == packed then return end
  if packed then
    local counts = slots.decode(packed, nil, now)
    if known[1] then
      local before = slots.decode(known[1], known[2], now)
      counts.running = before.running
      windows.take_over(counts.windows, before.windows)
      take_keys_over(counts, before, queue, now)
    else
      count_held(queue, counts, now)
      limit_keys.flush(counts, queue)
    end
    redis.call('HSET', name, '=', packed, '', slots.encode(counts))
  else
    redis.call('DEL', name)
    redis.call('ZREM', shard.root .. ':due', 'turn:' .. queue)
    if known[3] then redis.call('HSET', name, '#', known[3]) end -- the lanes stay
  end
  lanes.end_all_rests(queue)
  waking.wake_filled({ queue }, now)
end
