--needs candidate hold lines next_due records unusual
--exports repeats
-- What a turn that is sent again hears: what it claimed then and its worker still holds, read anew from the records.
repeats = {}

-- The jobs that the call claimed, in the order of their claims, which goes by queues only within lines and lanes.
local function read_claimed(queues, held, token)
  local claimed, all, places = {}, redis.call('HGETALL', held), {}
  for index, queue in ipairs(queues) do places[queue.name] = index end
  for i = 1, #all, 2 do
    local id = all[i]
    if string.sub(id, 1, 1) ~= '#' and Hold.token(all[i + 1]) == token then
      local record = records.read(id)
      local body = record and record.state == 'waiting' and not record.is_later and unusual.read_body(id, record)
      if body and places[record.queue] then
        record.id, record.body, record.time, record.place = id, body, 0, Hold.place(all[i + 1])
        record.stop = record.knows and record.stop -- not one that came after the claim
        claimed[#claimed + 1] = record
      end
    end
  end
  table.sort(claimed, Hold.is_older)
  return claimed, places
end

function repeats.answer(queues, held, token, now, last)
  local rows, watched, told = {}, {}, {}
  local claimed, places = read_claimed(queues, held, token)
  for _, each in ipairs(claimed) do
    candidate.add_claim(rows, each.id, places[each.queue], each.body, each.created, tonumber(each.attempts), each.stalls, each.due, each.stop, each.began)
    unusual.tell_journal(told, each.id, each)
    if lines.is_suspect(each) then
      local n = #watched
      watched[n + 1], watched[n + 2], watched[n + 3] = each.id, tonumber(each.crowd) or 1, tonumber(each.fatal) or 0
    end
  end
  return { now, next_due.read(), last[2], last[3], {}, rows, {}, watched, {}, last[4] or {}, told, 0, last[5] or {} }
end
