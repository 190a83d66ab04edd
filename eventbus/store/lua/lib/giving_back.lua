--needs base epilogue lines putting_off record settle_rows stalls
--exports give_back
-- Giving back what a worker holds and does not know of. It may have run: where the server forgot, in a failover, that
-- it had ended. So that is a stall.
local MOST = 200 -- jobs of one call, the last ones; the next renewal gives back more, which stand before these then

-- jobs: what `list_held` tells of them. Returns the ids that were given back.
function give_back(jobs, worker, now)
  local held = key('held', worker)
  local message = 'given back, because worker ' .. worker .. ' held it and did not know of it: '
    .. 'what the server had recorded of its claim or of its end was lost'
  local rows, ids, ready = {}, {}, {}
  for i = math.max(1, #jobs - MOST + 1), #jobs do
    local id = jobs[i].id
    local record, why, queue = read(id)
    if record and record.state == 'waiting' and not record.is_later then
      record.id, ids[#ids + 1] = id, id
      note_stall(record, jobs[i].hold, worker, message)
      lines.unlisted[id] = 'nowhere' -- until all are given back: one of them may stop the tree of another
      rows[#rows + 1] = { id = id, state = 'waiting', attempts = '', text = '', delay = 0, hold = jobs[i].hold }
    elseif record and record.state == 'waiting' then
      redis.call('HDEL', held, id)
      park_later(id, record.queue, now)
    else
      redis.call('HDEL', held, id)
      if record and not is_placed(id, record) then why, queue = 'held in the state ' .. record.state, record.queue end
      if why then quarantine(id, queue, why, now) end
    end
  end
  write_rows(complete_rows(rows, {}), held, {}, ready, now)
  end_call(ready, now)
  return ids
end
