--needs changes
--exports note_settle
-- What a settle tells to who watches (`changes.lua`), unless it ends the job: `fields.lua` tells of ends.
local SETTLES = { waiting = 'returned', shelved = 'returned', parked = 'parked', suspended = 'suspended' }

-- What a settle comes to that is no end; `fields.lua` notes ends. A retry has counted an attempt.
function note_settle(row, record, worker, now)
  local what, due = SETTLES[row.state], row.state == 'suspended' and row.delay >= 0 or row.state == 'delayed' and row.delay > 0
  local counted = row.state == 'delayed' and tonumber(row.attempts) or 0
  if row.state == 'delayed' then what = counted > (tonumber(record.attempts) or 0) and 'retried' or 'delayed' end
  if not what then return end
  local state = due and 'delayed' or what == 'suspended' and 'waiting-children' or what == 'parked' and 'parked' or 'waiting'
  local more = { worker = worker, due = due and now + row.delay, attempt = what == 'retried' and counted }
  more.text = (row.state == 'delayed' or what == 'parked') and row.text
  changes.note(what, record.queue, row.id, state, more)
  if row.goes_on then changes.note('released', record.queue, row.id, 'waiting') end -- it was sent a signal meanwhile
end
