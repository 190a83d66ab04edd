--needs shard args commands changes hold outcomes plain
--exports settling
-- Settling: first every hold is checked, then the outcomes are written.
-- Most jobs simply complete: nothing to count, nobody but their emitter to tell.
-- These go a short way of their own, which is what a busy worker's turn mostly does; all others are
-- rows for `settle_rows.lua`.
settling = {}
local WIDTH = 6 -- fields of a settle

-- What one command tells of the worker: its registration, the lane's last call, and the holds of the settles behind.
function settling.read_holds(held, lane, count)
  local fields = { '#', '#' .. lane }
  for i = 1, count do fields[i + 2] = args.values[args.at + 1 + (i - 1) * WIDTH] end
  return redis.call('HMGET', held, unpack(fields))
end

-- The records of all jobs of the settles that are held by the token which settles them: one command. false: not held. And
-- whether any of the holds takes a slot of a limit.
local function read_records(holds, count)
  local names, places, records, has_slots = {}, {}, {}, false
  for i = 1, count do
    local hold, row = holds[i + 2], args.at + (i - 1) * WIDTH
    local is_whole = hold and string.sub(hold, 10) == args.values[row + 2] -- mostly there is nothing behind the token
    if is_whole or hold and Hold.has_token(hold, args.values[row + 2]) then
      names[#names + 1], places[#places + 1] = shard.job_root .. args.values[row + 1], i
      has_slots = has_slots or not is_whole
    end
  end
  for i, text in ipairs(commands.get_all(names)) do records[places[i]] = text end
  return records, has_slots
end

-- Whether the short call of a job that was handed over has settled it, and its answer was lost (`settle_one.lua`).
local function has_ended_short(id, token)
  if not Hold.is_handed(token) then return false end
  local record = commands.try('GET', shard.job_root .. id)
  return not record or plain.was_completed_by(record, Hold.worker_of(token))
end

local PARTS = 9 -- of what is known of a simple settle

-- Adds what a simple settle takes to the flat list of all: job, its record, its hold, result, and what `plain.read` tells
-- of the record. Returns whether the record is plain.
function settling.add_simple(simple, id, record, hold, text)
  local queue, emitter, at, flags, is_root = plain.read(record)
  if not queue then return false end
  local n = #simple
  simple[n + 1], simple[n + 2], simple[n + 3], simple[n + 4] = id, record, hold, text
  simple[n + 5], simple[n + 6], simple[n + 7], simple[n + 8], simple[n + 9] = queue, emitter, at, flags, is_root
  return true
end

-- settles.simple: those that `add_simple` takes. settles.rows: all others. settles.slotted: the holds of simple ones, if any
-- takes a slot.
-- A hold whose job cannot be settled stays: the worker does not name it any more, and its renewal sees to it.
function settling.read(holds, count)
  local settles, lost = { simple = {}, rows = {} }, {}
  local records, has_slots = read_records(holds, count)
  settles.slotted = has_slots and {} or nil
  for i = 1, count do
    local id, state, attempts, text = args.values[args.at + 1], args.values[args.at + 3], args.values[args.at + 4], args.values[args.at + 5]
    local record, hold = records[i], holds[i + 2]
    if not record then
      if not has_ended_short(id, args.values[args.at + 2]) then lost[#lost + 1] = id end
    elseif state ~= 'completed' or attempts ~= '' or not settling.add_simple(settles.simple, id, record, hold, text) then
      settles.rows[#settles.rows + 1] = { id = id, state = state, attempts = attempts, text = text, delay = args.values[args.at + 6], hold = hold, recorded = record }
    elseif has_slots then
      settles.slotted[#settles.slotted + 1] = hold
    end
    args.at = args.at + WIDTH
  end
  return settles, lost
end

-- What is written of an end: the same for all jobs that the worker claimed at one time.
local function make_endings(worker, now)
  local endings, tail = {}, string.char(#worker) .. worker
  return function(hold)
    local claimed = Hold.time(hold)
    endings[claimed] = endings[claimed] or struct.pack('>I6I4', now, math.max(0, math.min(now - claimed, 4294967295))) .. tail
    return endings[claimed]
  end
end

-- policies: queue -> its row of the call.
function settling.write_simple(simple, held, worker, policies, now)
  if not simple[1] then return end
  local ended, records, n = {}, {}, 0
  local ending_of = make_endings(worker, now)
  for i = 1, #simple, PARTS do
    local id, record, hold, text = simple[i], simple[i + 1], simple[i + 2], simple[i + 3]
    local queue, emitter = simple[i + 4], simple[i + 5]
    local policy = policies[queue]
    if policy then policy.completed = (policy.completed or 0) + 1 end
    ended[#ended + 1] = id
    records[n + 1], records[n + 2] = shard.job_root .. id, plain.close(record, queue, simple[i + 6], simple[i + 7], ending_of(hold), text)
    n = n + 2
    if #text > plain.SMALL then
      records[n + 1], records[n + 2] = shard.key('result', id), text
      n = n + 2
    end
    if policy and policy.keep_completed == 0 then outcomes.leave(queue, id, now) else outcomes.list('completed', queue, id, now) end
    if simple[i + 8] then outcomes.unlist_root(queue, id) end
    if emitter ~= '' then outcomes.reply(emitter, id, 'completed', text) end
  end
  commands.set_all(records)
  commands.call_many('HDEL', held, ended)
  if changes.is_on() then changes.note_completed(simple, PARTS, worker) end
end
