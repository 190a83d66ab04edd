--needs shard commands tables hold limit_keys waking windows
--exports slots
-- Limits over the fleet: at most so many jobs of a queue at once, and rates. Only calls of queues with the flag LIMITED,
-- and of their holds, come here.
--   slots:<queue>   `=`: the limit: at once, and at once of each key (0: any number), rates, and rates of each key
--                   ``: how many of its jobs are held and counted, u32; then the windows (`windows.lua`)
--                   more fields for keys: `lanes.lua`, `turns.lua`
--
--   claimed: a slot is taken, a start is counted -- held --> settled, rescued, given back, or waits: the slot is free
--
-- What must hold:
-- - the number is that of the holds that name the queue (`hold.lua`). Whoever removes a hold gives its slot back in that
--   call, by the hold itself; so no crash, lost answer or failover moves the number away from what it counts;
-- - while a slot is free and a job waits, each live pool is woken or knows of the queue. Who frees the first slot of a
--   full queue wakes the pools for what it does not claim itself; a queue without starts left has `turn:<queue>` in
--   `due`, when its oldest bucket falls out. So what is held back costs no polling.
-- Crash windows: `slot-holder-dies` (the rescue gives its slots back: never more than the limit, and full again within a
-- lease), `limit-begins` (what runs then is counted by the call that sets the limit, `orders.lua`), `turn-forgotten` (who
-- took the wake died: workers ask all their queues each 4 s).
-- Rejected: a sorted set of those that run. It is the same number, and costs 1.4 to 2.8 us a job more.

slots = {}
local known = {} -- queue -> its counts, read once in a call; false: it has no limit

-- limit, text: as they stand in the hash.
function slots.decode(limit, text, now)
  local fields, running = cmsgpack.unpack(limit), text and #text >= 4 and struct.unpack('>I4', text) or 0
  return {
    at_once = fields[1] > 0 and fields[1] or math.huge, running = running, windows = windows.read(fields[3], text or '', 5, now),
    each = fields[2] > 0 and fields[2] or math.huge, each_rates = fields[4], lanes = {}, freed = {},
  }
end

function slots.encode(counts)
  return struct.pack('>I4', counts.running) .. windows.encode(counts.windows)
end

-- Where somebody else's value stands nothing is claimed.
function slots.read(queue, now)
  if known[queue] ~= nil then return known[queue] end
  local found = commands.try('HMGET', shard.key('slots', queue), '=', '')
  local counts = not found and { at_once = 0, running = 0, windows = {}, each = 0, each_rates = {}, lanes = {}, freed = {}, is_foreign = true }
  if found and found[1] then
    counts = slots.decode(found[1], found[2], now)
    counts.was_full, counts.is_changed = counts.running >= counts.at_once, counts.windows.is_ahead
  end
  known[queue] = counts
  return counts
end

-- How many jobs may be claimed now.
function slots.count_free(counts)
  return math.max(0, math.min(counts.at_once - counts.running, windows.count_free(counts.windows)))
end

local function give_back(place, number, now)
  local queue, lane = Hold.slot_of(place)
  local counts = queue and slots.read(queue, now)
  if not counts or counts.is_foreign then return end
  counts.running, counts.is_changed = math.max(0, counts.running - number), true
  if lane ~= '' then limit_keys.note_stop(counts, queue, lane, now, number) end
end

-- Gives the slot of a hold back that this call removes, if it has one.
function slots.release(hold, now)
  give_back(Hold.place_of_slot(hold), 1, now)
end

-- The same for many: the numbers of their keys are read by one command. Many name the same slot.
function slots.release_all(holds, now)
  local numbers, names = {}, {} -- what stands behind the token -> how many
  for _, hold in ipairs(holds or {}) do
    local place = Hold.place_of_slot(hold)
    numbers[place] = (numbers[place] or 0) + 1
  end
  for place in pairs(numbers) do
    local queue, lane = Hold.slot_of(place)
    if queue and lane ~= '' then tables.push(names, queue, lane) end
  end
  for queue, list in pairs(names) do
    local counts = slots.read(queue, now)
    if counts and not counts.is_foreign then limit_keys.read(counts, queue, list, now) end
  end
  for place, number in pairs(numbers) do give_back(place, number, now) end
end

-- Keys that were freed have turns again; then somebody is woken for what this call leaves.
function slots.end_rests()
  for queue, counts in pairs(known) do
    if counts and limit_keys.end_rests(counts, queue) then counts.was_full = true end
  end
end

-- The last writes of a call: the numbers, and wakes for what has become free. due: when anything is due, or -1. Returns
-- the same, for what is due now.
function slots.flush(now, due)
  slots.end_rests()
  for queue, counts in pairs(known) do
    if counts and counts.is_changed then redis.call('HSET', shard.key('slots', queue), '', slots.encode(counts)) end
    if counts and next(counts.lanes) then limit_keys.flush(counts, queue) end
    local opens, own = counts and windows.find_opening(counts.windows), limit_keys.opens[queue]
    if opens then redis.call('ZADD', shard.root .. ':due', opens, 'turn:' .. queue) end
    opens = math.min(opens or math.huge, own or math.huge)
    if due and opens < math.huge and (due < 0 or opens < due) then due = opens end
    if own and not due then waking.wake_queue(queue, now) end -- else no worker knows when to come
    if counts and counts.was_full and slots.count_free(counts) > 0 then waking.wake_filled({ queue }, now) end
  end
  known = {}
  return due
end
