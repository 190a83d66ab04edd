--needs commands book candidates fields limit_keys lines unusual
--exports suspects
-- Claiming suspects: jobs that may kill whatever process runs them (`blame.lua`). Each has a cap: so many suspects may
-- be watched together with it. The worker says how many it may take more, and how many it watches (`engine/claiming/suspects.py`).
--
-- The head of a line alone is claimed, for an entry cannot be taken out of the middle. A head whose cap is 1 needs a
-- worker for itself: nothing else may have been started there for a beat. A call that meets it answers so, and its
-- worker makes room. The others would do the same; so the record says who makes room, and until when.
-- Crash windows: `room-not-made` (that worker dies, or is long in coming: another one makes room when the time is over),
-- `room-not-told` (its answer is lost: the same).

suspects = {}

-- room: worker: who asks; left: how many suspects the call may take; watched: how many the worker has; is_alone: it made room.
local function is_kept_by_other(record, room)
  local limit, worker = string.match(record.room or '', '^(%d+) (.*)$')
  return worker and worker ~= room.worker and tonumber(limit) > room.now
end

-- Whether the limit of the queue for each key lets one more job of the key start.
local function may_start(counts, queue, lane, now)
  return not counts or limit_keys.has_free(counts, queue, lane, now)
end

-- Whether the worker may take this suspect now.
local function admit(plan, room, line, id, record)
  if not lines.is_suspect(record) then return true end
  local cap, others = tonumber(record.crowd) or 1, room.watched + #plan.watched / 3
  local needs_room = cap <= 1 and not (room.is_alone and others == 0 and not plan.ids[1])
  if cap <= 1 and is_kept_by_other(record, room) then return false end
  if record.limit and not may_start(line.limit, line.queue, record.limit, room.now) then return false end
  if needs_room then
    plan.lonely[#plan.lonely + 1], plan.is_unusual = { id = id, index = line.index }, true
    return false
  elseif cap > 1 and others + 1 > cap then
    return false
  end
  local n = #plan.watched
  plan.watched[n + 1], plan.watched[n + 2], plan.watched[n + 3] = id, math.max(1, cap), tonumber(record.fatal) or 0
  plan.is_alone, plan.is_unusual = cap <= 1, true
  if record.limit and line.limit then limit_keys.note_planned(line.limit, line.queue, record.limit, room.now) end
  room.left = math.min(room.left - 1, cap - others - 1)
  return true
end

-- The queues that may have suspects, and of which the call may claim jobs.
function suspects.list(queues)
  local list = {}
  for _, queue in ipairs(queues) do
    if queue.quota > 0 and bit.band(queue.flags, book.SUSPECTS) ~= 0 then list[#list + 1] = queue end
  end
  return list
end

-- Chooses at most `want` suspects of these queues.
function suspects.take(plan, queues, want, bytes, room)
  for _, queue in ipairs(suspects.list(queues)) do
    local count = math.min(queue.quota - (queue.taken or 0), want)
    if count <= 0 or room.left <= 0 then
      plan.has_more[queue.index] = true -- what this call takes is in the way
    else
      local line, before, size = candidates.read_line(plan, queue, math.min(count, room.left), true), #plan.ids, 0
      line.limit = queue.counts
      line.admit = function(id, record) return admit(plan, room, line, id, record) end
      while size and #plan.ids - before < count and room.left > 0 and (bytes > 0 or not plan.ids[1]) and candidates.read_on(line, plan.budget) do
        size = unusual.choose(plan, line, line.seen + 1)
        if size then line.seen, bytes = line.seen + 1, bytes - size end
      end
      local taken = #plan.ids - before
      queue.taken, want = (queue.taken or 0) + taken, want - taken
      -- What does not fit is left without a word: to ask again at once would change nothing.
      if size and (line.ids[line.seen + 1] or candidates.is_open(line)) then plan.has_more[queue.index] = true end
    end
  end
  return bytes
end

-- Notes that the worker makes room for the heads that need it, and that nobody has to for what it claims.
function suspects.keep_room(plan, room, lease)
  local can_make = room.watched == 0 and not plan.watched[1]
  for _, each in ipairs(can_make and plan.lonely or {}) do
    fields.change(each.id, 'room', commands.whole(room.now + lease) .. ' ' .. room.worker)
  end
  for i = 1, #plan.watched, 3 do fields.clear(plan.watched[i], 'room') end
end

-- The indexes of the queues whose heads need room.
function suspects.list_lonely(plan)
  local indexes = {}
  for i, each in ipairs(plan.lonely) do indexes[i] = each.index end
  return indexes
end
