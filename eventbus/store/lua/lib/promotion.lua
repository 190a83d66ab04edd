--needs shard commands delays fields holds moments placing plain putting_off records succession
--exports promotion
-- Promoting delayed jobs of a queue that are due, in their order: read first, then moved to ready.
promotion = {}
local to_promote = bounds.HEAVY_ROWS -- jobs that one call promotes

-- Sorts what is due into records to promote, damaged ones, those of a later release, and those that wait on for another job.
local function read_due(queue, ids, now)
  local due, bad, later, waiting = {}, {}, {}, {}
  for _, id in ipairs(ids) do
    local record, why = records.read(id)
    local is_later = record and record.is_later or plain.is_later(id)
    if is_later then why = nil end
    if record and not is_later and record.queue ~= queue then
      why = 'delayed in queue ' .. queue .. ' and of queue ' .. record.queue
    elseif record and not is_later and record.state ~= 'delayed' and not records.is_placed(id, record) then
      why = 'delayed in the state ' .. record.state
    end
    if why then
      bad[#bad + 1] = { id = id, why = why }
    elseif is_later then
      later[#later + 1] = id
    elseif record.state == 'delayed' and record.after and succession.has_to_wait(id, record, now) then
      waiting[#waiting + 1] = id
    elseif record.state == 'delayed' or record.state == 'waiting' and not holds.find(id) then
      record.id = id
      due[#due + 1] = record
    end
  end
  return due, bad, later, waiting
end

-- Promotes a bounded number, and puts the queue back into `due` where some are left.
function promotion.release_due(queue, now, ready)
  local name = shard.key('delayed', queue)
  local ids = to_promote > 0 and commands.try('ZRANGEBYSCORE', name, '-inf', moments.end_of(now), 'LIMIT', 0, to_promote) or {}
  local due, bad, later, waiting = read_due(queue, ids, now)
  to_promote = to_promote - #ids
  commands.call_many('ZREM', name, ids)
  for _, record in ipairs(due) do
    if record.state == 'waiting' then -- nobody can find its entry in a long list; if there is one, it means nothing from now on
      record.entry = (tonumber(record.entry) or 0) + 1
      fields.change(record.id, 'entry', record.entry)
    end
  end
  for _, each in ipairs(bad) do records.quarantine(each.id, queue, each.why, now) end
  for _, id in ipairs(later) do putting_off.park_later(id, queue, now) end
  for _, id in ipairs(waiting) do succession.put_off(id, queue, now) end
  placing.requeue({ [queue] = due }, ready)
  delays.note(queue)
end
