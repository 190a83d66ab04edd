--needs shard commands blame epilogue handing hold lines putting_off records settle_rows slots
--exports giving_back
-- Giving back what a worker holds and does not know of. It may have run: where the server forgot, in a failover, that
-- it had ended. So that is a stall, but one that nobody is to blame for. What was handed over to it and not confirmed
-- did not run.
giving_back = {}
local MOST = bounds.CALL_ROWS -- jobs of one call, the last ones; the next renewal gives back more, which stand before these then

-- jobs: id and hold of each, the longest held first; ready: where they are placed. Returns the ids that were given back.
local function place_back(jobs, worker, is_stall, ready, now)
  local held = shard.key('held', worker)
  local message = 'given back, because worker ' .. worker .. ' held it and did not know of it: '
    .. 'what the server had recorded of its claim or of its end was lost'
  local rows, ids = {}, {}
  for i = math.max(1, #jobs - MOST + 1), #jobs do
    local id = jobs[i].id
    local record, why, queue = records.read(id)
    if record and record.state == 'waiting' and not record.is_later then
      record.id, ids[#ids + 1] = id, id
      if is_stall then blame.note_stall(record, jobs[i].hold, worker, message, nil, now) end
      lines.unlisted[id] = 'nowhere' -- until all are given back: one of them may stop the tree of another
      rows[#rows + 1] = { id = id, state = 'waiting', attempts = '', text = '', delay = 0, hold = jobs[i].hold }
    elseif record and record.state == 'waiting' then
      redis.call('HDEL', held, id)
      slots.release(jobs[i].hold, now)
      putting_off.park_later(id, record.queue, now)
    else
      redis.call('HDEL', held, id)
      slots.release(jobs[i].hold, now)
      if record and not records.is_placed(id, record) then why, queue = 'held in the state ' .. record.state, record.queue end
      if why then records.quarantine(id, queue, why, now) end
    end
  end
  settle_rows.write(settle_rows.complete(rows, {}), held, {}, ready, now)
  return ids
end

function giving_back.give_unknown(jobs, worker, now)
  local ready, handed = {}, {}
  for _, job in ipairs(jobs) do
    if Hold.is_handed(job.hold) then handed[#handed + 1] = job.id end
  end
  if handed[1] then handing.withdraw(worker, handed) end
  local ids = place_back(jobs, worker, true, ready, now)
  epilogue.end_call(ready, now)
  slots.flush(now)
  return ids
end

-- Gives back what was handed over and not confirmed; it did not run.
function giving_back.give_unconfirmed(worker, ids, ready, now)
  local jobs = {}
  for i, hold in ipairs(commands.try('HMGET', shard.key('held', worker), unpack(ids)) or {}) do
    if hold and Hold.is_handed(hold) then jobs[#jobs + 1] = { id = ids[i], hold = hold } end
  end
  handing.withdraw(worker, ids)
  place_back(jobs, worker, false, ready, now)
end
