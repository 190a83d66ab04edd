--needs base book hold limit_keys waking windows
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
local CLAIM_WIDTH = 8 -- fields of a claim (`candidate.lua`)

slots = {}
local known = {} -- queue -> its counts, read once in a call; false: it has no limit

-- limit, text: as they stand in the hash.
function slots.decode(limit, text, now)
  local fields, running = cmsgpack.unpack(limit), text and #text >= 4 and struct.unpack('>I4', text) or 0
  return {
    at_once = fields[1] > 0 and fields[1] or math.huge, running = running, windows = windows.read(fields[3], text or '', 5, now),
    each = fields[2] > 0 and fields[2] or math.huge, each_rates = fields[4], lanes = {},
  }
end

function slots.encode(counts)
  return struct.pack('>I4', counts.running) .. windows.encode(counts.windows)
end

-- Where somebody else's value stands nothing is claimed.
local function read(queue, now)
  if known[queue] ~= nil then return known[queue] end
  local found = try('HMGET', key('slots', queue), '=', '')
  local counts = not found and { at_once = 0, running = 0, windows = {}, each = 0, each_rates = {}, lanes = {}, is_foreign = true }
  if found and found[1] then
    counts = slots.decode(found[1], found[2], now)
    counts.was_full, counts.is_changed = counts.running >= counts.at_once, counts.windows.is_ahead
  end
  known[queue] = counts
  return counts
end

-- How many jobs may be claimed now.
local function count_free(counts)
  return math.max(0, math.min(counts.at_once - counts.running, windows.count_free(counts.windows)))
end

-- Gives the slot of a hold back that this call removes, if it has one.
function slots.release(hold, now)
  local queue, lane = Hold.slot_of(hold)
  local counts = queue and read(queue, now)
  if not counts or counts.is_foreign then return end
  counts.running, counts.is_changed = math.max(0, counts.running - 1), true
  if lane ~= '' and limit_keys.note_stop(counts, queue, lane, now) then counts.was_full = true end -- of the key, at least
end

function slots.release_all(holds, now)
  for _, hold in ipairs(holds or {}) do slots.release(hold, now) end
end

-- Bounds what a call asks of queues with limits.
function slots.cut_quotas(queues, now)
  for _, queue in ipairs(queues) do
    local counts = queue.quota > 0 and bit.band(queue.flags, book.LIMITED) ~= 0 and read(queue.name, now)
    if counts then queue.counts, queue.quota = counts, math.min(queue.quota, count_free(counts)) end
  end
end

-- Counts what a call is about to claim, names the queue in its holds, and says `more` of no queue that is closed now.
function slots.claim(plan, queues, now)
  plan.places = {}
  for i in ipairs(plan.ids) do
    local queue = queues[plan.rows[(i - 1) * CLAIM_WIDTH + 2]]
    local counts = queue.counts
    if counts then
      local lane = plan.lanes[plan.ids[i]]
      plan.places[i] = '\0' .. queue.name .. (lane and '\0' .. lane or '')
      counts.running, counts.is_changed = counts.running + 1, true
      windows.count_start(counts.windows)
      if lane then limit_keys.note_start(counts, queue.name, lane, now) end
    end
  end
  local more = {}
  for _, index in ipairs(plan.more) do
    local counts = queues[index].counts
    if not counts or count_free(counts) > 0 then more[#more + 1] = index end
  end
  plan.more = more
  for _, queue in ipairs(queues) do
    if queue.counts and queue.counts.is_foreign then plan.foreign[#plan.foreign + 1] = queue.name end
  end
end

-- The last writes of a call: the numbers, and wakes for what has become free. due: when anything is due, or -1. Returns
-- the same, for what is due now.
function slots.flush(now, due)
  for queue, counts in pairs(known) do
    if counts and counts.is_changed then redis.call('HSET', key('slots', queue), '', slots.encode(counts)) end
    if counts and next(counts.lanes) then limit_keys.flush(counts, queue) end
    local opens = counts and windows.find_opening(counts.windows)
    if opens then
      redis.call('ZADD', root .. ':due', opens, 'turn:' .. queue)
      if due and (due < 0 or opens < due) then due = opens end
    end
    if counts and counts.was_full and count_free(counts) > 0 then wake_filled({ queue }, now) end
  end
  known = {}
  return due
end
