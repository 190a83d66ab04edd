--needs candidate due record
--exports answer_again
-- What a turn that is sent again hears: what it claimed then and its worker still holds, read anew from the records.
function answer_again(queues, token, now, lost, woken, ids)
  local rows = {}
  for _, id in ipairs(ids) do
    local record, lease_record = read(id), read_lease(id)
    local body = record and lease_record and read_body(id, record.body, lease_record.root)
    if body and record.state == 'active' and lease_record.token == token then
      for index, queue in ipairs(queues) do
        if queue.name == record.queue then
          local stop = lease_record.knows and lease_record.stop -- not one that came after the claim
          add_claim(rows, id, index, body, record.created, record.attempts, record.stalls, record.due, stop)
        end
      end
    end
  end
  return { now, next_due(), lost, woken, {}, rows, {} }
end
