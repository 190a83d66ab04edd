--needs shard commands tables book changes codec entry lanes lines ranks waking
--exports placing
-- Putting jobs where they wait for their turn (`lines.lua` says where), and waking whoever serves the queue.
placing = {}
placing.gone = {} -- jobs that a stop took out while this call was about to place them

-- ready: queue -> what is to be placed there: lists of entries, and `ranked` for priorities that are not 0.
-- record: what is read of the job, with its id. It goes to the end of its priority; to the head if it is lifo, or was
-- given back (`is_back`): then what was given back first stands first. A suspect goes to the end of the suspects, what has
-- a limit key into its lane.
function placing.line_up(ready, queue, record, is_back)
  if placing.gone[record.id] then return end
  local kind, priority = is_back and 'backs' or record.lifo and 'heads' or 'ends', tonumber(record.priority) or 0
  if lines.is_suspect(record) then
    kind = 'suspects'
  elseif record.limit then
    queue, kind = queue .. '\0' .. record.limit, priority < 0 and not is_back and 'heads' or kind
  elseif priority ~= 0 then
    kind = 'ranked'
  end
  local line = ready[queue] or {}
  ready[queue] = line
  lines.unlisted[record.id] = kind -- of a job that was lined up before, taken out and released again, this alone counts
  local is_ranked = kind == 'ranked'
  tables.push(line, kind, is_ranked and { id = record.id, priority = priority, is_lifo = record.lifo, is_back = is_back } or Entry.of(record.id, record))
end

-- records: queue -> list of what was read of each job, with its id; one that waits already keeps its record.
function placing.requeue(records, ready)
  for queue, list in pairs(records) do
    for _, record in ipairs(list) do
      if not placing.gone[record.id] then
        if record.state ~= 'waiting' then
          codec.set_waiting(record.id)
          if changes.is_on() then changes.note(record.state == 'delayed' and 'promoted' or 'released', queue, record.id, 'waiting') end
        end
        placing.line_up(ready, queue, record)
      end
    end
  end
end

-- A flat list of score, job without what is gone.
function placing.without_gone(list)
  if not next(placing.gone) then return list end
  local left = {}
  for i = 1, #list, 2 do
    if not placing.gone[list[i + 1]] then left[#left + 1], left[#left + 2] = list[i], list[i + 1] end
  end
  return left
end

-- Places entries at the end of a list, or one after the other at its head: in their order, or the last one first.
-- Returns whether it was empty; nil where somebody else's value stands there.
local function extend(name, entries, is_head, is_reversed)
  local list, count, length = entries, #entries, 0
  if is_reversed then
    list = {}
    for i = 1, count do list[i] = entries[count + 1 - i] end
  end
  for first = 1, count, bounds.COMMAND_VALUES do
    local last = math.min(first + bounds.COMMAND_VALUES - 1, count)
    if is_head then length = commands.try('LPUSH', name, unpack(list, first, last)) else length = commands.try('RPUSH', name, unpack(list, first, last)) end
    if not length then return nil end
  end
  return length == count
end

-- What is still to be placed as jobs of this kind, each once.
local function list_due(jobs, kind)
  local due = {}
  for _, each in ipairs(jobs) do
    local id = kind == 'ranked' and each.id or Entry.job(each)
    if lines.unlisted[id] == kind then
      lines.unlisted[id] = nil
      due[#due + 1] = each
    end
  end
  return due
end

local PLACES = { heads = 'ready', backs = 'ready', ends = 'ready', suspects = 'suspects', ranked = 'ready+' }

-- Returns whether the queue, or a lane of it, was empty. `refuse` as below.
local function place_line(queue, lane, line, now, refuse)
  local was_empty = false
  for _, kind in ipairs({ 'heads', 'backs', 'ends', 'suspects', 'ranked' }) do
    local jobs, name, is_filled = list_due(line[kind] or {}, kind), lane == '' and shard.key(PLACES[kind], queue) or lanes.key_of(queue, lane), false
    if jobs[1] and kind == 'ranked' then
      is_filled = ranks.place(name, jobs)
    elseif jobs[1] then
      is_filled = extend(name, jobs, kind == 'heads' or kind == 'backs', kind == 'backs')
    end
    if is_filled == nil then
      for _, each in ipairs(jobs) do refuse(each.id or Entry.job(each), now, queue, name) end
    end
    if jobs[1] and lane ~= '' and is_filled ~= nil then lanes.note_placed(queue, lane, #jobs, is_filled) end
    was_empty = was_empty or is_filled
  end
  if line.ranked then book.set(queue, book.PLUS) end
  if line.suspects then book.set(queue, book.SUSPECTS) end
  return was_empty
end

-- ready: as `placing.line_up` fills it. Wakes queues that had nothing waiting:
-- where something waits already, the worker that leaves it there re-arms the wake. A call that
-- claims next wakes later, by `waking.wake_filled` and for what it leaves: then the queues are returned.
-- refuse: called with job, now, queue, key where somebody else's value stands in the place of the queue.
function placing.flush(ready, now, refuse, is_claiming)
  local filled = {}
  for queue, line in pairs(ready) do
    local base, lane = lanes.read_name(queue)
    if place_line(base, lane, line, now, refuse) then filled[#filled + 1] = base end
  end
  if is_claiming then return filled end
  for _, queue in ipairs(filled) do waking.wake_queue(queue, now) end
end
